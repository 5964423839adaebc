"""Checks of a user's arguments; each message names the culprit and the cure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from attittud.autograd.layout import Layout, local, sparse_message
from attittud.eta import Eta, preset, presets
from attittud.report import SCORED

AnyEta = Eta | Literal["auto"]
Fits = Callable[[Any], bool]
T = TypeVar("T")


def as_losses(losses: object, where: str, *, may_be_empty: bool = False, may_be_scalar: bool = False) -> Tensor:
    """Check that losses are a vector with one entry for each example; the error names the cure.

    `may_be_scalar`: a scalar is accepted too, because only the mean of the losses is used.
    """
    if losses is None:
        raise TypeError(
            f"{where}: got None. None is allowed on a worker without primary examples if there are other workers, and in "
            "steps in which guide.primary_due is False; otherwise pass a vector of losses"
        )
    if not isinstance(losses, Tensor):
        raise TypeError(f"{where}: expected a tensor of per-example losses, got {type(losses).__name__}")
    if losses.ndim == 0 and may_be_scalar:
        losses = losses[None]
    if losses.ndim != 1:
        shape = "a scalar" if losses.ndim == 0 else f"shape {tuple(losses.shape)}"
        cure = (
            "compute the loss with reduction='none'"
            if losses.ndim == 0
            else "average over all dimensions but the first, for example losses.flatten(1).mean(1)"
        )
        raise ValueError(
            f"{where}: expected per-example primary losses (a vector, reduction='none'), got {shape}; {cure}"
        )
    if losses.shape[0] == 0 and not may_be_empty:
        raise ValueError(f"{where}: got an empty vector of losses; a step needs at least one primary example")
    check_graph(losses, where)
    return losses


def check_graph(loss: Tensor, where: str) -> None:
    if not loss.requires_grad:
        raise ValueError(
            f"{where}: the loss has no graph (requires_grad is False), so nothing can be learned from it; compute it from "
            "the model's output outside of torch.no_grad() and without detach() or item()"
        )
    if not loss.is_floating_point():
        raise TypeError(f"{where}: the loss must be a real floating-point tensor, got {loss.dtype}")


def check_auxiliary(tasks: Mapping[str, object], *, may_be_empty: bool = False) -> dict[str, Tensor]:
    """Check the auxiliary losses and return them by name."""
    if not tasks:
        raise ValueError("auxiliary: got an empty dict; pass at least one named loss")
    checked = {}
    for name, loss in tasks.items():
        where = f"auxiliary {name!r}"
        if not isinstance(loss, Tensor):
            raise TypeError(f"{where}: expected a loss tensor, got {type(loss).__name__}")
        if loss.ndim > 1 or (loss.numel() == 0 and not may_be_empty):
            raise ValueError(
                f"{where}: expected a scalar loss or a vector of per-example losses, got {tuple(loss.shape)}"
            )
        check_graph(loss, where)
        checked[name] = loss
    return checked


def check_callable(name: str, value: object) -> None:
    if value is not None and not callable(value):
        raise TypeError(
            f"{name} must be a callable that returns a tensor of losses, so that it can be called when they are needed; got "
            f"{type(value).__name__}. Write for example {name}=lambda: losses_of(batch)"
        )


def check_dense(model: nn.Module, layout: Layout) -> None:
    """Refuse embeddings with sparse gradients before anything is computed from them."""
    for path, module in model.named_modules():
        if not getattr(module, "sparse", False):
            continue  # reading a parametrized weight may change buffers or draw random numbers
        weight = getattr(module, "weight", None)
        if any(weight is parameter for parameter in layout.parameters):
            raise ValueError(sparse_message(f"{path}.weight" if path else "weight"))


def check_weight(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    return float(value)


def check_weights(name: str, value: object) -> float | dict[str, float]:
    if isinstance(value, Mapping):
        return {str(key): check_weight(f"{name}[{key!r}]", weight) for key, weight in value.items()}
    return check_weight(name, value)


def check_choice(name: str, value: object, choices: Collection[object]) -> None:
    if value not in choices:
        *others, last = map(repr, choices)
        raise ValueError(f"{name} must be {', '.join(others)} or {last}, got {value!r}")


def check_seed(seed: object) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise ValueError(f"seed must be a 64-bit integer, got {seed!r}")
    return seed


def check_count(name: str, value: object) -> int:
    # Integers of numpy are accepted too, because sweeps over settings often use them.
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)


def check_eta(eta: object) -> AnyEta | dict[str, AnyEta]:
    if isinstance(eta, Mapping) and eta:
        return {str(name): _as_eta(value, f"eta[{name!r}]") for name, value in eta.items()}
    return _as_eta(eta, "eta")


def _as_eta(eta: object, where: str) -> AnyEta:
    if isinstance(eta, Eta) or eta == "auto":
        return eta
    if isinstance(eta, str) and eta in presets():
        settings = preset(eta)
        if settings.keys() - {"eta"}:
            raise ValueError(
                f"{where}={eta!r}: this strategy sets more than its three weights; write Guide(model, **preset({eta!r}))"
            )
        return cast(Eta, settings["eta"])
    if isinstance(eta, (tuple, list)) and len(eta) == 3:
        return Eta(*eta)
    raise TypeError(
        f"{where} must be an Eta such as Eta(neutral=1, helpful=1, harmful=-1), three numbers in this order, the name of a "
        f"preset ({', '.join(presets())}), 'auto', or a dict with one of these for each named auxiliary loss; got {eta!r}"
    )


def of_each(what: str, setting: T | dict[str, T], names: Collection[str]) -> dict[str, T]:
    """Return the setting of each named auxiliary loss; a single value applies to all of them."""
    if not isinstance(setting, dict):
        return dict.fromkeys(names, setting)
    for name in names:
        if name not in setting:
            raise ValueError(
                f"auxiliary loss {name!r} has no {what}: {what}= has only {sorted(setting)}; pass the losses as a dict with "
                f"these names, or add {name!r} to {what}="
            )
    return {name: setting[name] for name in names}


def check_state(state: Mapping[str, Any], settings: Mapping[str, Any], named: Mapping[str, Tensor]) -> None:
    """Check that a saved state fits the guide that loads it. The state may come from a damaged or a malicious file."""
    version = state.get("version") if isinstance(state, Mapping) else None
    if type(version) is not int or version != 1:
        raise ValueError(
            f"not a state of a Guide that this library can read (its version is {shortened(version)}, not 1); save it with "
            "state_dict()"
        )
    whole = "the Guide's state"
    _check_fields(whole, state, FIELDS, optional={"judges", "worker"})
    _check_fields(f"'settings' in {whole}", state["settings"], dict.fromkeys(settings, _is_setting))
    for field, fits in (("shared", _is_shape), ("basis", _are_rows)):
        if isinstance(state[field], Mapping):
            _check_fields(f"{field!r} in {whole}", state[field], dict.fromkeys(state[field], fits))
    if (judges := state.get("judges")) is not None:
        _check_fields(f"'judges' in {whole}", judges, JUDGES)
        for name, scores in judges["records"].items():
            _check_fields(f"the record of {shortened(name)} under 'judges' in {whole}", scores, SCORES)
    for key, value in settings.items():
        if (saved := state["settings"][key]) != value:
            raise ValueError(
                f"the state was saved with {key}={shortened(saved)}, this guide has {value!r}; build the guide with the "
                "settings of the saved run"
            )
    shapes = {name: tuple(shape) for name, shape in state["shared"].items()}
    for name in (*shapes, *(state["reached_by_auxiliary"] or ())):
        here = tuple(named[name].shape) if name in named else "no such parameter"
        if here != shapes.get(name, here) or name not in named:
            what = f"has shape {shapes[name]}" if name in shapes else "is reached by auxiliary losses"
            raise ValueError(
                f"the state belongs to another model: there, parameter {shortened(name, 200)} {what}; here: {here}. Build the "
                "guide on the model of the saved run"
            )
    if not _covers(state["basis"], shapes, settings["rank"]):
        raise ValueError(
            f"the saved basis must have at most {settings['rank']} rows over every shared parameter, but has another shape; "
            "load another copy, or leave it out and let the next step compute the basis again"
        )


def _check_fields(where: str, value: Any, fields: Mapping[str, Fits], optional: Collection[str] = ()) -> None:
    """Refuse a value that is not a mapping, and missing fields, unknown fields and fields of a wrong type."""
    damaged = (
        "the file is damaged or was made by hand; load another copy, or leave it out and let the next step compute the "
        "basis again"
    )
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} cannot be {shortened(value)}: {damaged}")
    if missing := fields.keys() - set(optional) - set(value):
        raise ValueError(f"{where} is incomplete: it lacks {', '.join(sorted(missing))}; save it with state_dict()")
    for name, found in value.items():
        if not isinstance(name, str) or name not in fields:
            raise ValueError(
                f"{where} has the field {shortened(name)}, which this version of attittud does not know; leave the field "
                "out, or save the state with state_dict() of this version"
            )
        if not fields[name](found):
            raise ValueError(f"{shortened(name, 200)} in {where} cannot be {shortened(found)}: {damaged}")


def _covers(basis: Tensor | Mapping[str, Tensor] | None, shapes: Mapping[str, tuple[int, ...]], rank: int) -> bool:
    if basis is None:
        return True
    if isinstance(basis, Tensor):
        return basis.ndim == 2 and len(basis) <= rank and basis.shape[1] == sum(map(math.prod, shapes.values())) > 0
    rows = {len(tensor) for tensor in basis.values()}
    return {name: tuple(x.shape[1:]) for name, x in basis.items()} == shapes and len(rows) == 1 and max(rows) <= rank


def shortened(value: object, most: int = 60) -> str:
    """Describe a value from a file, short enough for a message."""
    text = repr(value) if isinstance(value, (str, int, float, type(None))) else f"a {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_list(value: Any, fits: Fits) -> bool:
    return isinstance(value, (list, tuple)) and all(map(fits, value))


def _is_shape(value: Any) -> bool:
    return _is_list(value, _is_count)


def _is_setting(value: Any) -> bool:
    return type(value) in (str, int, type(None))


def _are_numbers(value: Any, length: int, least: float, most: float) -> bool:
    return _is_list(value, lambda x: type(x) is float and least <= x <= most) and len(value) == length


def _are_moments(value: Any) -> bool:
    """Whether these are decaying sums of cosines, of their squares, and of ones."""
    limits = ((-2, 2), (0, 2), (0, 2))
    if not isinstance(value, (list, tuple)) or len(value) != len(limits):
        return False
    return all(_are_numbers(row, len(SCORED), *limit) for row, limit in zip(value, limits, strict=True))


def _are_rows(value: Any) -> bool:
    plain = isinstance(value, Tensor) and value.is_floating_point() and value.layout is torch.strided
    return plain and not value.is_meta and value.ndim > 0 and bool(local(value).isfinite().all())


FIELDS: dict[str, Fits] = {
    "version": lambda x: x == 1,
    "settings": lambda x: isinstance(x, Mapping),
    "since_refresh": lambda x: x is None or _is_count(x),
    "refreshes": _is_count,
    "skipped_refreshes": _is_count,
    "shared": lambda x: isinstance(x, Mapping),
    "reached_by_auxiliary": lambda x: x is None or _is_list(x, lambda name: isinstance(name, str)),
    "basis": lambda x: x is None or isinstance(x, Mapping) or _are_rows(x),
    "worker": lambda x: x is None or isinstance(x, str),
    "judges": lambda x: x is None or isinstance(x, Mapping),
}
"""The fields of a guide's state, each with the test that its value must pass."""
JUDGES: dict[str, Fits] = {
    "age": lambda x: x is None or _is_count(x),
    "count": _is_count,
    "records": lambda x: isinstance(x, Mapping),
}
SCORES: dict[str, Fits] = {
    "moments": _are_moments,
    "weights": lambda x: _are_numbers(x, 3, 0, 1),
    "skipped": _is_count,
}
