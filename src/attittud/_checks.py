"""Checks of a user's arguments; each message names the culprit and the cure.

`Guide` calls them: most when it is made, `of_each` in every step, and `check_state` when a state is
loaded. A check returns the value in the form that the library uses from there on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from numbers import Integral
from types import NoneType
from typing import Any, Literal, TypeVar, cast

from torch import Tensor, nn

from attittud.autograd.layout import Layout, sparse_message
from attittud.eta import Eta, check_weight, preset, presets

AnyEta = Eta | Literal["auto"]
Fits = Callable[[Any], bool]
T = TypeVar("T")


def check_callable(name: str, value: object) -> None:
    """Refuse anything but a function or None where losses are computed when they are needed."""
    if value is not None and not callable(value):
        raise TypeError(
            f"{name} must be a callable that returns a tensor of losses, so that it can be called when they are needed; got "
            f"{type(value).__name__}. Write for example {name}=lambda: losses_of(batch)"
        )


def check_dense(model: nn.Module, layout: Layout) -> None:
    """Refuse embeddings with sparse gradients before anything is computed from them, if their
    weight is a parameter of the layout.
    """
    for path, module in model.named_modules():
        if not getattr(module, "sparse", False):
            continue  # reading a parametrized weight may change buffers or draw random numbers
        weight = getattr(module, "weight", None)
        if any(weight is parameter for parameter in layout.parameters):
            raise ValueError(sparse_message(f"{path}.weight".removeprefix(".")))


def check_weights(name: str, value: object) -> float | dict[str, float]:
    """Return one weight for all auxiliary losses, or a weight for each name."""
    if isinstance(value, Mapping):
        return {str(key): check_weight(f"{name}[{key!r}]", weight) for key, weight in value.items()}
    return check_weight(name, value)


def check_choice(name: str, value: object, choices: Collection[object]) -> None:
    """Refuse a value that is none of the choices (two or more); the message lists them."""
    if value not in choices:
        *others, last = map(repr, choices)
        raise ValueError(f"{name} must be {', '.join(others)} or {last}, got {value!r}")


def check_seed(seed: object) -> int:
    """Return a seed that fits into a signed integer of 64 bits."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise ValueError(f"seed must be a 64-bit integer, got {seed!r}")
    return seed


def check_count(name: str, value: object) -> int:
    """Return a whole number of at least 1 as a plain int."""
    # Integers of numpy are accepted too, because sweeps over settings often use them.
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)


def check_eta(eta: object) -> AnyEta | dict[str, AnyEta]:
    """Return the weights of all auxiliary losses, or those of each named loss."""
    if isinstance(eta, Mapping) and eta:
        return {str(name): _as_eta(value, f"eta[{name!r}]") for name, value in eta.items()}
    return _as_eta(eta, "eta")


def _as_eta(eta: object, where: str) -> AnyEta:
    """Return an `Eta`, or "auto", from any of the accepted forms.

    A preset that also sets a basis or a primary weight is refused, because here only its three
    weights would be used.
    """
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


def of_each(argument: str, setting: dict[str, T], names: Collection[str]) -> dict[str, T]:
    """Return the setting of each auxiliary loss in `names`; refuse a name without a setting.

    `argument`: the argument of `Guide` that `setting` was passed as. It may have more names, whose
    losses are not part of this step.
    """
    for name in names:
        if name not in setting:
            raise ValueError(
                f"auxiliary loss {name!r} has no {argument}: {argument}= has only {sorted(setting)}; pass the losses as a dict "
                f"with these names, or add {name!r} to {argument}="
            )
    return {name: setting[name] for name in names}


def check_state(
    state: Mapping[str, Any], settings: Mapping[str, Any], named: Mapping[str, Tensor]
) -> None:
    """Check that a saved state has today's format and fits the guide that loads it: the same
    settings, its parameters in the same shapes, and a basis over them.

    Args:
        state: what `Guide.state_dict` returned.
        settings: the settings of this guide that decide the meaning of a basis.
        named: the parameters of this guide's model by name.
    """
    version = None
    if isinstance(state, Mapping):
        version = state.get("version")
    if type(version) is not int or version != VERSION:
        raise ValueError(
            f"not a state of a Guide that this library can read (its version is {version!r:.60}, not {VERSION}); save it with "
            "state_dict()"
        )
    for name, kinds in FIELDS.items():
        value = state.get(name)
        fits = name in state and isinstance(value, kinds) and not isinstance(value, bool)
        out_of_range = isinstance(value, int) and not 0 <= value < 2**63
        if not fits or out_of_range:
            raise ValueError(
                f"{name!r} in the Guide's state cannot be {value!r:.60}; load another copy, or leave the state out and "
                "let the next step compute the basis again"
            )
    for key, value in settings.items():
        if (saved := state["settings"].get(key)) != value:
            raise ValueError(
                f"the state was saved with {key}={saved!r:.60}, this guide has {value!r}; build the guide with the settings of "
                "the saved run"
            )
    shapes = {name: tuple(shape) for name, shape in state["shared"].items()}
    # Parameters that auxiliary losses reach must be there too; the state has no shapes for them.
    for name in (*shapes, *(state["reached_by_auxiliary"] or ())):
        # `here`: the shape of the parameter in this model, for the comparison and the error.
        here: object = "no such parameter"
        if name in named:
            here = tuple(named[name].shape)
        if name not in named or here != shapes.get(name, here):
            use = "is reached by auxiliary losses"
            if name in shapes:
                use = f"has shape {shapes[name]}"
            raise ValueError(
                f"the state belongs to another model: there, parameter {name!r:.200} {use}; here: {here}. Build the guide on "
                "the model of the saved run"
            )
    if not _covers(state["basis"], shapes, settings["rank"]):
        raise ValueError(
            f"the saved basis must have 1 to {settings['rank']} rows over every shared parameter, but has another shape; "
            "load another copy, or leave it out and let the next step compute the basis again"
        )


def _covers(
    basis: Tensor | Mapping[str, Tensor] | None, shapes: Mapping[str, tuple[int, ...]], rank: int
) -> bool:
    """Whether a saved basis has 1 to `rank` rows over all shared parameters, whose `shapes` are
    given by name. A state without a basis (None) is fine too.

    The basis is one matrix k x D, or by parameter k x shape, as `checkpoint` saves it.
    """
    if basis is None:
        return True
    if isinstance(basis, Tensor):
        columns = sum(map(math.prod, shapes.values()))
        return (
            basis.ndim == 2 and 0 < len(basis) <= rank and basis.shape[1] == columns and columns > 0
        )
    rows = {len(tensor) for tensor in basis.values()}
    same_shapes = {name: tuple(x.shape[1:]) for name, x in basis.items()} == shapes
    return same_shapes and len(rows) == 1 and 0 < max(rows) <= rank


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
