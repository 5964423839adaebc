"""Per-example gradients of the weight of a convolution: what the windows of the input meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn import functional as F

from attittud.engine.per_example.gradients import Outer, PerExampleGradient
from attittud.kernels import kernels


class Windows(Outer):
    """A convolution as a product of matrices, its windows laid out for a few examples at a time.

    They are as many times larger than the input as a window has positions; a kernel that reads them in the input takes
    over where it can. gradient: N x o x positions, x: N x channels x space, where the N = m r entries of an example follow
    each other; `pads` as in F.pad.
    """

    def __init__(
        self,
        gradient: Tensor,
        x: Tensor,
        weight: Tensor,
        examples: int,
        stride: Sequence[int],
        dilation: Sequence[int],
        pads: Sequence[int],
        groups: int,
    ) -> None:
        self.examples, self.groups = examples, groups
        self.dims = weight.ndim - 2
        self.rows, self.columns = weight.shape[0] // groups, weight[0].numel()
        self.size = weight.numel()
        self.sizes, self.window = gradient.shape[2:], weight.shape[2:]
        self.each = gradient.shape[0] // examples
        self.length = self.each * self.sizes.numel()
        self.steps, self.pads = (stride, dilation), pads
        self.gradient, self.x = gradient, x

    @cached_property
    def padded(self) -> Tensor:
        return padded(self.x, self.pads) if any(self.pads) else self.x

    @property
    def elements(self) -> int:
        return max(self.size, self.length * self.groups * self.columns)

    def left(self, out: Tensor, weights: Tensor, budget: int) -> None:
        # One position is an outer product, cheaper in its factors. The kernel forms no gradients that `budget` would bound.
        found = kernels() if out.is_cuda and self.length > 1 and self.size > 0 else None
        if found is None or not found.serves_windows(out, weights, self.gradient, self.x):
            super().left(out, weights, budget)
            return
        top_left = self.pads[-2::-2]  # F.pad has the last dimension first
        found.add_windows_(out, weights, self.gradient, self.x, *self.steps, top_left)

    def ordered(self, out: Tensor) -> tuple[Tensor, Callable[[slice, torch.dtype], Tensor]]:
        last = (0, 1, *range(3, out.ndim), 2)
        if out[0].is_contiguous() or not out.permute(last)[0].is_contiguous():
            return out, self.chunk
        # channels_last, in the input most likely too: whole runs of channels are copied, and added where they are.
        return out.permute(last), partial(self.chunk, channels_last=True)

    def chunk(self, rows: slice, dtype: torch.dtype, *, channels_last: bool = False) -> Tensor:
        return self.multiplied(self._left(rows), self._right(rows, channels_last=channels_last), dtype)

    def _formed(self, other: Outer, budget: int) -> Tensor:
        # By examples: the windows of all of them would be larger than their gradients.
        return PerExampleGradient.cross(self, other, budget)

    # Laid out when they are asked for, where other classes hold them: hence the ignored type of override.
    @property
    def left_factor(self) -> Tensor:  # type: ignore[override]
        return self._left(slice(0, self.examples))

    @property
    def right_factor(self) -> Tensor:  # type: ignore[override]
        return self._right(slice(0, self.examples), channels_last=False)

    def _left(self, rows: slice) -> Tensor:
        """m x groups x (r, positions) x o."""
        entries = self.gradient[rows.start * self.each : rows.stop * self.each]  # m x r x the rest, of some examples
        g: Tensor = entries.unflatten(0, (-1, self.each)).unflatten(2, (self.groups, -1))
        g = g.permute(0, 2, 1, *range(4, 4 + self.dims), 3)
        return g.reshape(g.shape[0], self.groups, self.length, self.rows)

    def _right(self, rows: slice, *, channels_last: bool) -> Tensor:
        """m x groups x (r, positions) x (channels, window), or x (window, channels)."""
        x = self.padded[rows.start * self.each : rows.stop * self.each]
        wide = _wide(x, x.shape[1] // self.groups) if channels_last and self.window.numel() > 1 else None
        if wide is not None:
            return self._windows(wide, channels_last=True).view(x.dtype)
        return self._windows(x, channels_last=channels_last)

    def _windows(self, x: Tensor, *, channels_last: bool) -> Tensor:
        strides, (stride, dilation) = x.stride(), self.steps
        # N x channels x positions x window, as a view: laying it out for the product makes the only copy.
        windows: Tensor = x.as_strided(
            (*x.shape[:2], *self.sizes, *self.window),
            (*strides[:2], *(s * t for s, t in zip(strides[2:], stride, strict=True)), *(
                s * t for s, t in zip(strides[2:], dilation, strict=True)
            )),
        )  # fmt: skip
        windows = windows.unflatten(0, (-1, self.each)).unflatten(2, (self.groups, -1))
        positions, window = range(4, 4 + self.dims), range(4 + self.dims, 4 + 2 * self.dims)
        inner = (*window, 3) if channels_last else (3, *window)
        windows = windows.permute(0, 2, 1, *positions, *inner)
        return windows.reshape(windows.shape[0], self.groups, self.length, -1)


def padded(x: Tensor, pads: Sequence[int]) -> Tensor:
    """As F.pad with zeros; images in channels_last as wide elements."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    last = x.ndim in formats and x.is_contiguous(memory_format=formats[x.ndim])
    wide = _wide(x, x.shape[1]) if last else None
    if wide is None:
        return F.pad(x, list(pads))
    # With channels at the end, where torch would choose a layout by strides that say little where a dimension has one element.
    there, back = _channels(x.ndim)
    return F.pad(wide.permute(there), [0, 0, *pads]).view(x.dtype).permute(back)


def _channels(dims: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The permutation that brings channels to the end, and the one back."""
    return (0, *range(2, dims), 1), (0, dims - 1, *range(1, dims - 1))


def _wide(x: Tensor, channels: int) -> Tensor | None:
    """`x` (N x channels x space) with 8 bytes of neighbouring channels as one element, so that a copy has fewer to find.

    None where a group's `channels` do not lie side by side in multiples of that.
    """
    count = 8 // x.element_size()
    steps = x.stride()
    if (
        count < 2
        or channels == count
        or steps[1] != 1
        or any(n % count for n in (x.storage_offset(), channels, steps[0], *steps[2:]))
    ):
        return None
    there, back = _channels(x.ndim)
    return x.permute(there).view(torch.int64).permute(back)
