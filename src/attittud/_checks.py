"""Checks of a user's arguments; each message names the culprit and the cure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from numbers import Integral, Real
from types import NoneType
from typing import Any, Literal, TypeVar, cast

from torch import Tensor, nn

from attittud.autograd.layout import Layout, sparse_message
from attittud.eta import Eta, preset, presets

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
    """Check that a saved state has today's format and fits the guide that loads it."""
    version = state.get("version") if isinstance(state, Mapping) else None
    if type(version) is not int or version != VERSION:
        raise ValueError(
            f"not a state of a Guide that this library can read (its version is {version!r:.60}, not {VERSION}); save it with "
            "state_dict()"
        )
    for name, kinds in FIELDS.items():
        if not isinstance(state.get(name), kinds):
            raise ValueError(
                f"{name!r} in the Guide's state cannot be {state.get(name)!r:.60}; load another copy, or leave the state out and "
                "let the next step compute the basis again"
            )
    for key, value in settings.items():
        if (saved := state["settings"].get(key)) != value:
            raise ValueError(
                f"the state was saved with {key}={saved!r:.60}, this guide has {value!r}; build the guide with the settings of "
                "the saved run"
            )
    shapes = {name: tuple(shape) for name, shape in state["shared"].items()}
    for name in (*shapes, *(state["reached_by_auxiliary"] or ())):
        here = tuple(named[name].shape) if name in named else "no such parameter"
        if here != shapes.get(name, here) or name not in named:
            what = f"has shape {shapes[name]}" if name in shapes else "is reached by auxiliary losses"
            raise ValueError(
                f"the state belongs to another model: there, parameter {name!r:.200} {what}; here: {here}. Build the guide on "
                "the model of the saved run"
            )
    if not _covers(state["basis"], shapes, settings["rank"]):
        raise ValueError(
            f"the saved basis must have at most {settings['rank']} rows over every shared parameter, but has another shape; "
            "load another copy, or leave it out and let the next step compute the basis again"
        )


def _covers(basis: Tensor | Mapping[str, Tensor] | None, shapes: Mapping[str, tuple[int, ...]], rank: int) -> bool:
    if basis is None:
        return True
    if isinstance(basis, Tensor):
        return basis.ndim == 2 and len(basis) <= rank and basis.shape[1] == sum(map(math.prod, shapes.values())) > 0
    rows = {len(tensor) for tensor in basis.values()}
    return {name: tuple(x.shape[1:]) for name, x in basis.items()} == shapes and len(rows) == 1 and max(rows) <= rank


VERSION = 1
"""The version of the format of a guide's state."""
FIELDS: dict[str, tuple[type, ...]] = {
    "settings": (Mapping,),
    "since_refresh": (int, NoneType),
    "refreshes": (int,),
    "skipped_refreshes": (int,),
    "shared": (Mapping,),
    "reached_by_auxiliary": (list, tuple, NoneType),
    "basis": (Tensor, Mapping, NoneType),
}
"""The fields of a guide's state that every state has, with their types."""
