"""How the gradients of an ordered set of parameters lie in one flat vector."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from attittud._torch import concatenate, foreach_add_, foreach_copy_, foreach_zero_


class Layout:
    """An ordered set of parameters as consecutive pieces of a vector of length `size`.

    A piece keeps its parameter's own strides (channels_last too), so that a gradient is copied as memory lies and a
    view of the vector can serve as `.grad` of a fused optimizer.
    """

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        self.named = list(named)
        self.names = [name for name, _ in self.named]
        self.name_set = frozenset(self.names)
        self.parameters = [parameter for _, parameter in self.named]
        _check_one_device(self.named)
        self.device = self.parameters[0].device if self.parameters else torch.device("cpu")
        double = any(parameter.dtype == torch.float64 for parameter in self.parameters)
        self.dtype = torch.float64 if double else torch.float32
        """Arithmetic is in float32 at least: half-precision gradients are rounded once, at the end."""
        self.shapes = [tuple(parameter.shape) for parameter in self.parameters]
        self.total = sum(math.prod(shape) for shape in self.shapes)
        """Columns of V on all workers together: `size`, where parameters are not sharded."""
        pieces = [local(parameter) for parameter in self.parameters]
        self.strides = [_dense_strides(piece) for piece in pieces]
        self._pieces = [piece.shape for piece in pieces]
        self._sizes = [piece.numel() for piece in pieces]
        self._offsets: list[int] = []
        self.size = 0
        for size in self._sizes:
            self._offsets.append(self.size)
            self.size += size
        contiguous = [torch.empty(shape, device="meta").stride() for shape in self._pieces]
        laid_out = zip(self._pieces, self.strides, contiguous, strict=True)
        self._reordered = [i for i, layout in enumerate(laid_out) if not _same_order(*layout)]
        """Pieces whose elements lie in another order than a contiguous tensor's."""

    def describes(self, named: Sequence[tuple[str, nn.Parameter]]) -> bool:
        """Whether it is a layout of these parameters, as they are now."""
        if len(named) != len(self.named) or any(is_sharded(parameter) for parameter in self.parameters):
            return False
        return all(
            name == old_name and parameter is old and parameter.stride() == strides and parameter.device == self.device
            for (name, parameter), (old_name, old), strides in zip(named, self.named, self.strides, strict=True)
        )

    def same(self, other: Layout) -> bool:
        """Whether these are the very same parameters, in the same order and strides."""
        return self is other or (
            list(map(id, self.parameters)) == list(map(id, other.parameters)) and self.strides == other.strides
        )

    def empty(self, *rows: int) -> Tensor:
        return torch.empty(*rows, self.size, dtype=self.dtype, device=self.device)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Pieces of `flat` (D, or r x D) in the shapes of the parameters (with a leading r)."""
        start = flat.storage_offset()
        places = zip(self._pieces, self.strides, self._offsets, strict=True)
        if flat.ndim == 1:
            return [flat.as_strided(shape, strides, start + offset) for shape, strides, offset in places]
        lead, steps = flat.shape[:-1], flat.stride()[:-1]
        return [
            flat.as_strided((*lead, *shape), (*steps, *strides), start + offset) for shape, strides, offset in places
        ]

    def by_identity(self, flat: Tensor) -> dict[int, Tensor]:
        """The same by identity of the parameter."""
        return dict(zip(map(id, self.parameters), self.views(flat), strict=True))

    def flatten(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """Gradients (None counts as zero) as one new vector."""
        # Anything out of the ordinary goes the slow way: none, sparse or other tensors, a single one, which would not be copied.
        if len(gradients) > 1 and set(map(type, gradients)) == {Tensor}:
            pieces = cast(list[Tensor], list(gradients))
            for i in self._reordered:
                own, strides = pieces[i].stride(), self.strides[i]
                if own != strides and not _same_order(self._pieces[i], strides, own):
                    break
                pieces[i] = pieces[i].as_strided((self._sizes[i],), (1,))
            else:
                try:
                    flat = concatenate(pieces)
                except RuntimeError:
                    flat = None
                if flat is not None and flat.dtype == self.dtype:
                    return flat
        flat = self.empty()
        self.add_(flat, gradients, fresh=True)
        return flat

    def add_(self, flat: Tensor, gradients: Sequence[Tensor | None], *, fresh: bool) -> None:
        """Add gradients (None counts as zero) to `flat`, or write them when its content is `fresh` memory."""
        for name, gradient in zip(self.names, gradients, strict=True):
            if gradient is not None and gradient.layout != torch.strided:
                raise ValueError(sparse_message(name))
        pairs = list(zip(self.views(flat), gradients, strict=True))
        missing = [view for view, gradient in pairs if gradient is None]
        targets = [view for view, gradient in pairs if gradient is not None]
        sources = [gradient for gradient in gradients if gradient is not None]
        if fresh and missing:
            foreach_zero_(missing)
        if sources:
            foreach_copy_(targets, sources) if fresh else foreach_add_(targets, sources)

    def narrow_(self, flat: Tensor, kept: Layout) -> Tensor:
        """`flat` (D, or r x D, contiguous) with only the pieces of `kept`, moved together in place; a view of it."""
        if kept.size == self.size:  # what is left out has no elements, such as shards that are other workers'
            return flat
        rows = flat.reshape(-1, self.size)
        memory, stays = rows.view(-1), kept.name_set
        to = 0
        for row in range(rows.shape[0]):
            for name, offset, n in zip(self.names, self._offsets, self._sizes, strict=True):
                if name in stays:
                    source = row * self.size + offset
                    if to != source:
                        # Pieces move towards the front and may overlap their old place: one piece is copied at a time.
                        memory[to : to + n] = memory[source : source + n].clone()
                    to += n
        return memory[:to].view(*flat.shape[:-1], kept.size)


def _same_order(shape: Sequence[int], strides: Sequence[int], others: Sequence[int]) -> bool:
    """Whether two tensors of one shape have their elements in the same order; a dimension of 1 has any stride."""
    return strides == others or all(a == b for length, a, b in zip(shape, strides, others, strict=True) if length != 1)


def _check_one_device(named: Sequence[tuple[str, nn.Parameter]]) -> None:
    for name, parameter in named:
        first_name, first = named[0]
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
    """The complaint about a parameter whose gradient is sparse."""
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
