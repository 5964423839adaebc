"""Calls of functions that combine a parameter with data: what is recorded of a forward pass, and where the examples are in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from attittud._torch import tree_flatten, tree_unflatten
from attittud.engine.base import UnsupportedError

Function = Callable[..., Any]
Gradients = tuple[Tensor | None, ...]

# Examples are in the first dimension, channels in the second.
LEADING: set[Function] = {
    *(F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
    *(F.group_norm, F.batch_norm, F.instance_norm),
}
# They repeat a parameter for every example.
SPREADING: set[Function] = {
    *(Tensor.expand, Tensor.expand_as, Tensor.repeat, Tensor.broadcast_to, torch.broadcast_to, torch.tile, Tensor.tile),
}
# Their gradients need no data, as those of `SPREADING`: nothing has to be held for them.
ADDITIONS: set[Function] = {
    *(torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__),
}


class _Keep(torch.autograd.Function):
    """A node outside of the loss's graph that saves tensors as autograd does.

    So activation checkpointing recomputes them and offloading moves them.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.new_empty(0)


_keep: Function = _Keep.apply


class Call:
    """One function call that combines parameters with data."""

    def __init__(self, func: Function, args: Any, kwargs: Any, met: list[Tensor], kept: set[int]) -> None:
        self.func = func
        self.met = met  # the parameters, or tensors derived from parameters alone, among its arguments
        self.shape = torch.Size()  # of its first output that has a gradient
        self.in_attention = False  # a part of `nn.MultiheadAttention`, where examples always come after positions
        self.outputs: list[int] = []  # which of its outputs have a gradient
        self.edges: list[torch.autograd.graph.GradientEdge] = []
        # Most calls have their tensors at the top, where the slow way through trees is not needed.
        self._names = tuple(kwargs)
        self._flat: list[Any] = [*args, *kwargs.values()]
        self._spec: Any = None
        self.positional = len(args)  # so many keys of `shapes` are those of arguments without a name
        if any(isinstance(value, (tuple, list, dict)) and tensors_in((value,)) for value in self._flat):
            self._flat, self._spec = tree_flatten((args, kwargs))
            self.positional = len(tree_flatten(args)[0])
        self._at = [at for at, value in enumerate(self._flat) if isinstance(value, Tensor) and id(value) in kept]
        self.shapes = {
            at: tuple(self._flat[at].shape) for at in self._at
        }  # of the data, by its number among the arguments
        self._kept: Any = None
        self._versions: list[int] = []

    def shape_of(self, at: int | None) -> tuple[int, ...]:
        """The shape of the result (None), or of some data among the arguments."""
        return tuple(self.shape) if at is None else self.shapes[at]

    @property
    def name(self) -> str:
        return str(getattr(self.func, "__name__", self.func))

    def keep(self, anchor: Tensor, packed: bool) -> None:
        """Hold the data among the arguments; where autograd packs away what it saves, let it do so with these too."""
        if packed and self._at:
            # The result and not its grad_fn alone: up to torch 2.11 the node does not outlive it.
            self._kept = _keep(anchor, *(self._flat[at] for at in self._at))
            for at in self._at:
                self._flat[at] = None
        else:
            self._versions = [self._flat[at]._version for at in self._at]

    def arguments(self) -> tuple[Any, Any, dict[int, int]]:
        """Positional and keyword arguments as they were, and the ids of the data among them with its key in `shapes`."""
        flat = list(self._flat)
        if self._kept is not None:
            for at, tensor in zip(self._at, self._kept.grad_fn.saved_tensors, strict=True):
                flat[at] = tensor
        elif any(flat[at]._version != version for at, version in zip(self._at, self._versions, strict=True)):
            raise UnsupportedError("an argument was overwritten in place, which its gradient would need")
        data = {id(flat[at]): at for at in self._at}
        if self._spec is not None:
            return *tree_unflatten(flat, self._spec), data
        count = len(flat) - len(self._names)
        return flat[:count], dict(zip(self._names, flat[count:], strict=True)), data


def tensors_in(entries: Iterable[Any]) -> list[Tensor]:
    """Tensors among arguments or results, in lists and dicts too."""
    found: list[Tensor] = []
    for entry in entries:
        if isinstance(entry, Tensor):
            found.append(entry)
        elif isinstance(entry, (tuple, list)):
            found += tensors_in(entry)
        elif isinstance(entry, dict):
            found += tensors_in(entry.values())
    return found


# ---------------------------------------------------------------------------------------------------- where examples are

BatchAxis = Literal["first", "second", "flattened", "interleaved"]
"""Where the examples are in a tensor: in the first or second dimension, or flattened into one with what follows
("flattened") or with what comes before ("interleaved")."""

# Parameters in a function, or an argument of it, and the number of the call: another one may have its examples in another axis.
Use = tuple[str, int]
# With the axes that its shape allows. A later batch may allow others: as many positions as examples, another call.
Form = tuple[Use, int, bool, frozenset[BatchAxis]]


class KnownAxes:
    """Where calls and their arguments have their examples, if any, as a check has confirmed it."""

    def __init__(self) -> None:
        self._of_forms: dict[Form, BatchAxis | None] = {}
        self._usual: dict[tuple[Use, int], BatchAxis | None] = {}  # of the latest forms, by number of dimensions

    @staticmethod
    def form(use: Use, shape: tuple[int, ...], examples: int) -> Form:
        allowed = frozenset(axis for axis in get_args(BatchAxis) if fits(axis, shape, examples))
        # One example confirms nothing for several: every row of whatever it is given is its own.
        return use, len(shape), examples == 1, allowed

    @property
    def confirmed(self) -> Set[Form]:
        return self._of_forms.keys()

    def confirm(self, axes: dict[Form, BatchAxis | None]) -> None:
        self._of_forms |= axes
        self._usual |= {form[:2]: axis for form, axis in axes.items()}

    def known(self, use: Use, shape: tuple[int, ...], examples: int, guess: BatchAxis | None) -> BatchAxis | None:
        """As it was confirmed; in a new form as in the latest one where the shape allows it, else as guessed."""
        form = self.form(use, shape, examples)
        if form in self._of_forms:
            return self._of_forms[form]
        usual = self._usual.get(form[:2], guess)
        return usual if usual is None or fits(usual, shape, examples) else guess


def guess_axis(shape: tuple[int, ...], examples: int, *, leading: bool = False) -> BatchAxis | None:
    """A guess from the shape; what is guessed wrong is found by the check of the first refresh.

    `leading`: of a function that knows examples in the first dimension only.
    """
    guesses: tuple[BatchAxis, ...] = ("first", "second", "flattened")
    if leading or len(shape) == 2:
        # As many features or channels as examples are more likely than examples in the last dimension.
        guesses = ("first", "flattened") if leading else ("first", "flattened", "second")
    return next((axis for axis in guesses if fits(axis, shape, examples)), None)


def fits(axis: BatchAxis, shape: tuple[int, ...], examples: int) -> bool:
    if axis == "second":
        return len(shape) > 1 and shape[1] == examples
    if len(shape) == 0:
        return False
    return shape[0] == examples if axis == "first" else shape[0] > 0 and shape[0] % examples == 0


def by_example(x: Tensor, axis: BatchAxis, examples: int) -> Tensor:
    """m x r x the rest: r positions of the first dimension belong to each example."""
    if axis == "second":
        return x.movedim(1, 0)
    if axis == "interleaved":
        return x.reshape(-1, examples, *x.shape[1:]).movedim(1, 0)
    return x.reshape(examples, -1, *x.shape[1:])
