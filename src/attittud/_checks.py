"""Checks of what a user hands in; each message names the culprit and the cure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, cast

from torch import Tensor, nn

from attittud.autograd.layout import Layout, sparse_message
from attittud.eta import Eta, preset, presets
from attittud.report import SCORED

AnyEta = Eta | Literal["auto"]
T = TypeVar("T")


def as_losses(losses: object, where: str, *, may_be_empty: bool = False) -> Tensor:
    """Check a vector of per-example losses, naming what to do about anything else."""
    if losses is None:
        raise TypeError(f"{where}: got None, which only a worker of several may pass; give a vector of losses")
    if not isinstance(losses, Tensor):
        raise TypeError(f"{where}: expected a tensor of per-example losses, got {type(losses).__name__}")
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
    """Auxiliary losses by name."""
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
            f"{name} must be a callable that returns a tensor of losses, called when they are needed; got "
            f"{type(value).__name__}. Write for example {name}=lambda: losses_of(batch)"
        )


def check_dense(model: nn.Module, layout: Layout) -> None:
    """Refuse embeddings with sparse gradients before anything is computed from them."""
    for path, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if getattr(module, "sparse", False) and any(weight is parameter for parameter in layout.parameters):
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
    # (Of numpy too, which a sweep over settings hands out.)
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
        f"{where} must be an Eta, such as Eta(neutral=1, helpful=1, harmful=-1), three numbers in this order, the name of a "
        f"preset ({', '.join(presets())}), 'auto', or a dict of one for each named auxiliary loss; got {eta!r}"
    )


def of_each(what: str, setting: T | dict[str, T], names: Collection[str]) -> dict[str, T]:
    """What was set for each of the named auxiliary losses, or for all of them at once."""
    if not isinstance(setting, dict):
        return dict.fromkeys(names, setting)
    for name in names:
        if name not in setting:
            raise ValueError(
                f"auxiliary loss {name!r} has no {what}: it is given for {sorted(setting)}; pass the losses as a dict with "
                f"those names, or add {name!r} to {what}="
            )
    return {name: setting[name] for name in names}


def check_state(state: Mapping[str, Any], settings: Mapping[str, Any], named: Mapping[str, Tensor]) -> None:
    """Check that a saved state, which may come from a damaged or a crafted file, fits the guide that is to load it."""
    version = state.get("version") if isinstance(state, Mapping) else None
    if type(version) is not int or version != 1:
        raise ValueError(
            f"not a state of a Guide this version can read (version {shortened(version)}, not 1); save it by state_dict()"
        )
    if missing := TYPES.keys() - {"judges"} - set(state):
        raise ValueError(
            f"the state of the Guide is incomplete: {', '.join(sorted(missing))} missing; save it by state_dict()"
        )
    judges = state.get("judges")
    if isinstance(judges, Mapping) and (missing := {"age", "count", "records"} - set(judges)):
        raise ValueError(
            f"what the judges said is incomplete: {', '.join(sorted(missing))} missing; save it by state_dict()"
        )
    for name, fits in TYPES.items():
        if not fits(state.get(name)):
            raise ValueError(
                f"{name!r} in the state of the Guide cannot be {shortened(state[name])}: the file is damaged or was made by "
                "hand; load another copy, or leave it out and let the next step compute the basis again"
            )
    for key, value in settings.items():
        saved = state["settings"].get(key)
        if not isinstance(saved, (str, int, type(None))) or saved != value:
            raise ValueError(
                f"the state was saved with {key}={shortened(saved)}, this guide has {value!r}; build the guide with the "
                "settings of the saved run"
            )
    for name, shape in state["shared"].items():
        found = tuple(named[name].shape) if name in named else "no such parameter"
        if found != tuple(shape):
            raise ValueError(
                f"the state belongs to another model: parameter {name!r} has shape {tuple(shape)} in it, here: {found}"
            )
    if not _covers(state["basis"], state["shared"]):
        raise ValueError("the saved basis does not have as many rows over every shared parameter; load another copy")


def _covers(basis: Any, shared: Mapping[str, Any]) -> bool:
    if not isinstance(basis, Mapping):
        return basis is None or bool(shared)
    shapes = {name: tuple(tensor.shape[1:]) for name, tensor in basis.items()}
    rows = {tensor.shape[0] for tensor in basis.values()}
    return len(rows) == 1 and shapes == {name: tuple(shape) for name, shape in shared.items()}


def shortened(value: object) -> str:
    """Describe what a file holds, short enough for a message."""
    text = repr(value) if isinstance(value, (str, int, float, type(None))) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:56]} ..."


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_list(value: Any, fits: Callable[[Any], bool], length: int | None = None) -> bool:
    return isinstance(value, (list, tuple)) and length in (None, len(value)) and all(map(fits, value))


def _is_mapping(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) and fits(item) for name, item in value.items())


def _are_numbers(value: Any, length: int) -> bool:
    return _is_list(value, lambda x: type(x) is float and math.isfinite(x), length)


def _are_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 0


def _are_scores(value: Any) -> bool:
    """Whether this is the state of `attittud.step.auto.Scores`."""
    return (
        isinstance(value, Mapping)
        and _is_list(value.get("moments"), lambda row: _are_numbers(row, len(SCORED)), 3)
        and _are_numbers(value.get("weights"), 3)
        and _is_count(value.get("skipped"))
    )


def _are_judges(value: Mapping[str, Any]) -> bool:
    known = value["age"] is None or _is_count(value["age"])
    return known and _is_count(value["count"]) and _is_mapping(value["records"], _are_scores)


TYPES: dict[str, Callable[[Any], bool]] = {
    "settings": lambda x: isinstance(x, Mapping),
    "since_refresh": lambda x: x is None or _is_count(x),
    "refreshes": _is_count,
    "skipped_refreshes": _is_count,
    "shared": lambda x: _is_mapping(x, lambda shape: _is_list(shape, _is_count)),
    "reached_by_auxiliary": lambda x: x is None or _is_list(x, lambda name: isinstance(name, str)),
    "basis": lambda x: x is None or _are_rows(x) or _is_mapping(x, _are_rows),
    "judges": lambda x: x is None or (isinstance(x, Mapping) and _are_judges(x)),
}
"""The fields of a guide's state, and whether a value is of their type."""
