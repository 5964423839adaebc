"""Which parameters take part, how their gradients lie in one flat vector, and how they get into `.grad`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

Predicate = Callable[[str, nn.Parameter], bool]


class Layout:
    """An ordered set of parameters as consecutive pieces of a vector of length `size`.

    A piece keeps its parameter's own strides (channels_last too), so that a gradient is copied as memory lies and a
    view of the vector can serve as `.grad` of a fused optimizer.
    """

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        pairs = list(named)
        self.names = [name for name, _ in pairs]
        self.parameters = [parameter for _, parameter in pairs]
        self._check_one_device(pairs)
        pieces = [local(parameter) for parameter in self.parameters]
        self._strides = [_dense_strides(piece) for piece in pieces]
        self._pieces = [piece.shape for piece in pieces]
        self._sizes = [piece.numel() for piece in pieces]
        self._offsets: list[int] = []
        self.size = 0
        for size in self._sizes:
            self._offsets.append(self.size)
            self.size += size

    @property
    def ids(self) -> set[int]:
        """Identities of the parameters; not kept, a copied guide has other ones."""
        return {id(parameter) for parameter in self.parameters}

    @property
    def named(self) -> list[tuple[str, nn.Parameter]]:
        return list(zip(self.names, self.parameters, strict=True))

    def pick(self, found: Mapping[int, Tensor]) -> list[Tensor | None]:
        """Gradients by identity in the order of the parameters, None where there is none."""
        return [found.get(id(parameter)) for parameter in self.parameters]

    def belongs_to(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Whether all of these are still parameters of the model."""
        return self.ids <= {id(parameter) for parameter in parameters}

    def describes(self, pairs: Sequence[tuple[str, nn.Parameter]]) -> bool:
        """Whether it is a layout of these parameters, as they are now."""
        if [id(parameter) for _, parameter in pairs] != [id(parameter) for parameter in self.parameters]:
            return False
        if any(is_sharded(parameter) for parameter in self.parameters):
            return False
        device, known = self.device, zip(pairs, self.names, self._strides, strict=True)
        return all(n == name and p.stride() == strides and p.device == device for (n, p), name, strides in known)

    def same(self, other: Layout) -> bool:
        """Whether these are the very same parameters, in the same order and strides."""
        mine, theirs = (zip(map(id, x.parameters), x._strides, strict=True) for x in (self, other))
        return list(mine) == list(theirs)

    @property
    def device(self) -> torch.device:
        return self.parameters[0].device if self.parameters else torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """Arithmetic is in float32 at least: half-precision gradients are rounded once, at the end."""
        double = any(parameter.dtype == torch.float64 for parameter in self.parameters)
        return torch.float64 if double else torch.float32

    @property
    def total(self) -> int:
        """Columns of V on all workers together: `size`, where parameters are not sharded."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [tuple(parameter.shape) for parameter in self.parameters]

    def empty(self, *rows: int) -> Tensor:
        return torch.empty(*rows, self.size, dtype=self.dtype, device=self.device)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Pieces of `flat` (D, or r x D) in the shapes of the parameters (with a leading r)."""
        lead, steps = flat.shape[:-1], flat.stride()[:-1]
        start = flat.storage_offset()
        return [
            flat.as_strided((*lead, *shape), (*steps, *strides), start + offset)
            for shape, strides, offset in zip(self._pieces, self._strides, self._offsets, strict=True)
        ]

    def by_identity(self, flat: Tensor) -> dict[int, Tensor]:
        """The same by identity of the parameter; `pick` goes the other way."""
        return dict(zip(map(id, self.parameters), self.views(flat), strict=True))

    def add_(self, flat: Tensor, gradients: Sequence[Tensor | None], *, fresh: bool) -> None:
        """Add gradients (None counts as zero) to `flat`, or write them when its content is `fresh` memory."""
        for name, gradient in zip(self.names, gradients, strict=True):
            if gradient is not None and gradient.layout != torch.strided:
                raise ValueError(sparse_message(name))
        views = self.views(flat)
        missing = [view for view, gradient in zip(views, gradients, strict=True) if gradient is None]
        pairs = [(view, gradient) for view, gradient in zip(views, gradients, strict=True) if gradient is not None]
        if fresh and missing:
            torch._foreach_zero_(missing)
        if not pairs:
            return
        targets, sources = [view for view, _ in pairs], [gradient for _, gradient in pairs]
        if fresh:
            torch._foreach_copy_(targets, sources)
        else:
            torch._foreach_add_(targets, sources)

    def narrow_(self, flat: Tensor, kept: Layout) -> Tensor:
        """`flat` (D, or r x D, contiguous) with only the pieces of `kept`, moved together in place; a view of it."""
        rows = flat.reshape(-1, self.size)
        memory, stays = rows.view(-1), kept.ids
        to = 0
        for row in range(rows.shape[0]):
            for parameter, offset, n in zip(self.parameters, self._offsets, self._sizes, strict=True):
                if id(parameter) in stays:
                    source = row * self.size + offset
                    if to != source:
                        # Pieces move towards the front and may overlap their old place: one piece is copied at a time.
                        memory[to : to + n] = memory[source : source + n].clone()
                    to += n
        return memory[:to].view(*flat.shape[:-1], kept.size)

    @staticmethod
    def _check_one_device(pairs: list[tuple[str, nn.Parameter]]) -> None:
        for name, parameter in pairs:
            first_name, first = pairs[0]
            if parameter.device != first.device:
                raise ValueError(
                    f"shared parameters lie on two devices: {first_name!r} on {first.device} and {name!r} on "
                    f"{parameter.device}; move the model to one device, or leave one side out with parameters="
                )
            if not parameter.is_floating_point():
                raise TypeError(
                    f"shared parameter {name!r} is {parameter.dtype}; only real floating-point parameters can be "
                    "decomposed, leave it out with parameters="
                )


def sparse_message(name: str) -> str:
    """What to say of a parameter whose gradient is sparse."""
    return (
        f"parameter {name!r} has a sparse gradient, which cannot be projected; build its embedding with sparse=False, or "
        "leave it out with parameters="
    )


def is_sharded(tensor: Tensor) -> bool:
    """Whether a worker holds only a shard (a DTensor). Not by type: importing that takes as long as importing torch."""
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """What this worker holds of a tensor: its shard, or all of it."""
    return cast(Any, tensor.detach()).to_local() if is_sharded(tensor) else tensor


def as_gradient(piece: Tensor, parameter: nn.Parameter) -> Tensor:
    """A piece over what this worker holds of a parameter, as its `.grad`."""
    if not is_sharded(parameter):
        return piece
    from torch.distributed.tensor import DTensor

    like = cast(DTensor, parameter)
    return DTensor.from_local(
        piece, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def _dense_strides(parameter: Tensor) -> tuple[int, ...]:
    """The parameter's strides where they fill memory without holes, else those of a contiguous tensor."""
    dense = torch.empty_like(parameter, device="meta", memory_format=torch.preserve_format)
    return tuple(dense.stride())


def trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Parameters that want a gradient; tied ones once, under their first name."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def allowed(
    named: Sequence[tuple[str, nn.Parameter]], parameters: Iterable[nn.Parameter] | nn.Module | Predicate | None
) -> set[str] | None:
    """Names of the parameters a user lets take part (None: all)."""
    if parameters is None:
        return None
    if isinstance(parameters, nn.Module):
        parameters = parameters.parameters()
    if callable(parameters):
        chosen = {name for name, parameter in named if parameters(name, parameter)}
    else:
        known = {id(parameter): name for name, parameter in named}
        chosen = set()
        for position, parameter in enumerate(parameters):
            if not isinstance(parameter, Tensor):
                raise TypeError(
                    f"parameters= takes nn.Parameter objects or a predicate (name, parameter) -> bool, got "
                    f"{type(parameter).__name__} at position {position}; did you pass named_parameters()?"
                )
            if id(parameter) not in known:
                raise ValueError(
                    f"parameters=: the tensor at position {position} (shape {tuple(parameter.shape)}) is not a parameter "
                    "of the model; take them from the model given to Guide"
                )
            chosen.add(known[id(parameter)])
    if not chosen:
        raise ValueError("parameters= leaves no parameter to decompose; widen it, or train without a Guide")
    return chosen


def write_gradients(
    named: Sequence[tuple[str, nn.Parameter]], layout: Layout, update: Tensor, rest: dict[int, Tensor]
) -> None:
    """Add to `.grad` as `Tensor.backward` does; a missing `.grad` becomes a view of the update."""
    shared = layout.by_identity(update)
    old, new = [], []
    for _, parameter in named:
        key = id(parameter)
        if key not in shared and key not in rest:
            continue
        if parameter.grad is not None:
            old.append(local(parameter.grad))
            new.append(shared[key] if key in shared else rest[key])
        elif key in shared and shared[key].stride() == local(parameter).stride():
            parameter.grad = as_gradient(shared[key].to(parameter.dtype), parameter)
        elif key in rest and rest[key].layout != torch.strided:
            parameter.grad = rest[key].clone()
        else:
            # Of the parameter's own strides and memory, as optimizers write into it: autograd may hand out one tensor
            # for two parameters, or an expanded one, and a user may have changed the memory format.
            value = shared[key] if key in shared else rest[key]
            parameter.grad = as_gradient(torch.empty_like(local(parameter)).copy_(value), parameter)
    if old:
        torch._foreach_add_(old, new)
    for _, parameter in named:
        # Such as an optimizer that steps during the backward pass.
        for hook in (parameter._post_accumulate_grad_hooks or {}).values():
            hook(parameter)
