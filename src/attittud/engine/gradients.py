"""Per-example gradients of one parameter from one call, kept in factors while this is cheaper.

A `PerExampleGradient` represents m tensors of the parameter's shape. It is contracted like J: with
weights over the examples (`left`), or with vectors over the parameter (`right`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from operator import mul

import torch
from torch import Tensor
from torch.nn import functional as F

from attittud.autograd.layout import run_backward
from attittud.kernels import add_product_, kernels

Steps = tuple[Sequence[int], Sequence[int]]


class PerExampleGradient(ABC):
    """What some examples of one call contribute to the gradient of one parameter."""

    examples: int  # m
    size: int  # elements of the parameter

    @abstractmethod
    def chunk(self, rows: slice, dtype: torch.dtype) -> Tensor:
        """The gradients of some examples as rows: r x size."""

    def parts(self, budget: int) -> Iterator[slice]:
        """Split the examples into slices whose gradients have at most `budget` elements."""
        step = max(1, budget // max(1, self.elements))
        for start in range(0, self.examples, step):
            yield slice(start, min(start + step, self.examples))

    @property
    def elements(self) -> int:
        """The largest number of elements needed to form the gradient of one example."""
        return self.size

    def left(self, out: Tensor, weights: Tensor, budget: int) -> None:
        """Add weights (k x m) times the gradients to `out`: k x elements in order, or k x shape.

        At most `budget` elements of gradients are formed at once, or one example's.
        """
        if self.size == 0:
            return
        for rows in self.parts(budget):
            gradients = self.chunk(rows, out.dtype)
            if _in_order(out):
                add_product_(out.view(out.shape[0], -1), weights[:, rows], gradients)
            else:
                out.add_((weights[:, rows] @ gradients).view_as(out))
            del gradients  # freed before the next gradients are formed

    def right(self, vectors: Sequence[Tensor], budget: int) -> Tensor:
        """Inner products with l `vectors` (of the parameter's shape): m x l, float64. `budget`: as in
        `left`.
        """
        columns = torch.stack([vector.reshape(-1) for vector in vectors], dim=1)
        products = []
        for rows in self.parts(budget):
            products.append((self.chunk(rows, columns.dtype) @ columns).double())
        return torch.cat(products)


def _some(x: Tensor, rows: slice) -> Tensor:
    """Some examples of x. A view of all examples would take time for nothing."""
    if rows.stop - rows.start == len(x):
        return x
    return x[rows]


def _in_order(out: Tensor) -> bool:
    """Whether rows of sums lie in memory in the order of the parameter's elements."""
    return out.ndim == 2 or out[0].is_contiguous()


def _with_shape(out: Tensor, shape: Sequence[int]) -> Tensor:
    """Rows of sums with the parameter's shape: k x shape."""
    if out.ndim == 2:
        return out.view(-1, *shape)
    return out


class Dense(PerExampleGradient):
    """The gradients themselves, for biases, normalisation weights and what has no other class."""

    def __init__(self, gradients: Tensor) -> None:
        if gradients.ndim != 2:
            gradients = gradients.reshape(len(gradients), -1)
        self.gradients = gradients
        self.examples, self.size = gradients.shape

    def chunk(self, rows: slice, dtype: torch.dtype) -> Tensor:
        return _some(self.gradients, rows).to(dtype)


class Outer(PerExampleGradient):
    """Gradients Σ_t left_t rightᵀ_t of a matrix, or of several matrices for grouped convolutions.

    left: m x T x o, right: m x T x i. Internally the factors are m x groups x T x o and m x groups
    x T x i, for a parameter with groups * o * i elements in this order.
    """

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self._pair = left, right
        self.groups = 1
        self.examples, self.length, self.rows = left.shape
        self.columns = right.shape[2]
        self.size = self.rows * self.columns

    @property
    def factors(self) -> tuple[Tensor, Tensor]:
        """Both factors with a dimension for the groups."""
        left, right = self._pair
        return left[:, None], right[:, None]

    def chunk(self, rows: slice, dtype: torch.dtype) -> Tensor:
        left, right = self._pair
        return self.multiplied(_some(left, rows), _some(right, rows), dtype)

    def multiplied(self, left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
        """The gradients of all examples and groups, the first dimension of both factors."""
        are_halves = left.dtype == right.dtype and left.dtype.itemsize == 2
        if left.is_cuda and dtype == torch.float32 and are_halves:
            # Half-precision operands are multiplied as they are; sums and result are float32.
            product = torch.bmm(left.mT, right, out_dtype=torch.float32)
        else:
            product = torch.bmm(left.mT.to(dtype), right.to(dtype))
        return product.view(-1, self.size)

    def left(self, out: Tensor, weights: Tensor, budget: int) -> None:
        """Σ_j w_kj Σ_t left_jt rightᵀ_jt: the weights go into the left factor, or onto finished
        gradients, whichever is cheaper.
        """
        k = weights.shape[0]
        # Forming the gradients costs T + k products of a row and a column for each example;
        # weighting a factor costs k T.
        if self.groups > 1 or k * self.length > self.length + k:
            super().left(out, weights, budget)
            return
        left, right = self.factors
        a = left.squeeze(1).to(out.dtype)  # m x T x o
        b = right.squeeze(1).to(out.dtype).flatten(0, 1)  # (m T) x i
        # As many weighted copies of the left factor as the budget allows are formed at once.
        step = max(1, budget // max(1, a.numel()))
        for target, some in zip(out.split(step), weights.split(step), strict=True):
            weighted = (some[:, :, None, None] * a).flatten(1, 2).mT
            if _in_order(out):
                target.view(-1, self.rows, self.columns).baddbmm_(
                    weighted, b.expand(len(target), -1, -1)
                )
            else:
                target.add_((weighted @ b).view_as(target))

    def right(self, vectors: Sequence[Tensor], budget: int) -> Tensor:
        """⟨G_j, v⟩ = Σ_t ⟨left_jt, v right_jt⟩, so that few vectors need no gradients."""
        # The costs are compared as in `left`.
        count = len(vectors)
        if count * self.length > self.length + count:
            return super().right(vectors, budget)
        left, right = self.factors
        a = left.to(vectors[0].dtype)
        b = right.to(vectors[0].dtype)
        products = []
        for vector in vectors:
            matrices = vector.reshape(self.groups, self.rows, self.columns)
            products.append((a * (b @ matrices.mT)).sum((1, 2, 3), dtype=torch.float64))
        return torch.stack(products, dim=1)


class Rows(PerExampleGradient):
    """Gradients of a table from which rows were looked up: gradients m x T x E, index m x T."""

    def __init__(self, gradients: Tensor, index: Tensor, shape: Sequence[int]) -> None:
        self.gradients = gradients
        self.index = index
        self.examples, self.length = index.shape
        self.shape = tuple(shape)
        self.size = self.shape[0] * self.shape[1]

    def chunk(self, rows: slice, dtype: torch.dtype) -> Tensor:
        index = self.index[rows]
        gradients = self.gradients[rows].to(dtype)
        result = torch.zeros(index.shape[0], *self.shape, dtype=dtype, device=gradients.device)
        return result.scatter_add_(1, index[:, :, None].expand_as(gradients), gradients).flatten(1)

    def left(self, out: Tensor, weights: Tensor, budget: int) -> None:
        """Add each position's weighted gradient to the row of the table that it looked up."""
        index = self.index.flatten()
        gradients = self.gradients.to(out.dtype)
        for row, weight in zip(_with_shape(out, self.shape), weights, strict=True):
            row.index_add_(0, index, (weight[:, None, None] * gradients).flatten(0, 1))

    def right(self, vectors: Sequence[Tensor], budget: int) -> Tensor:
        """⟨G_j, v⟩ = Σ_t ⟨gradient_jt, v[index_jt]⟩."""
        sums = []
        for vector in vectors:
            products = self.gradients.to(vector.dtype) * vector[self.index]
            sums.append(products.sum((1, 2), dtype=torch.float64))
        return torch.stack(sums, dim=1)


class Pulled(PerExampleGradient):
    """Gradients of a parameter from those of a tensor that was computed from parameters alone.

    (Position embeddings, a normalised weight.) One backward pass through that computation for each
    row.
    """

    def __init__(self, gradients: PerExampleGradient, tensor: Tensor, parameter: Tensor) -> None:
        self.gradients = gradients
        self.tensor = tensor
        self.parameter = parameter
        self.examples = gradients.examples
        self.size = parameter.numel()

    @property
    def elements(self) -> int:
        return max(self.size, self.gradients.elements)

    def chunk(self, rows: slice, dtype: torch.dtype) -> Tensor:
        gradients = self.gradients.chunk(rows, dtype)
        return self._pull(gradients).view(len(gradients), self.size)

    def left(self, out: Tensor, weights: Tensor, budget: int) -> None:
        """Sum first, then go back once for each of the k sums instead of once for each example."""
        sums = out.new_zeros(weights.shape[0], self.tensor.numel())
        self.gradients.left(sums, weights, budget)
        out.add_(self._pull(sums).view_as(out))

    def _pull(self, gradients: Tensor) -> Tensor:
        """Turn gradients of the tensor (r x its elements) into gradients of the parameter (r x its
        shape), by one backward pass for each row.
        """
        starts = (self.tensor,)
        ends = (self.parameter,)
        pulled = gradients.new_zeros(len(gradients), *self.parameter.shape)
        for row, gradient in zip(pulled, gradients, strict=True):
            weights = (gradient.view_as(self.tensor).to(self.tensor.dtype),)
            (result,) = run_backward(
                starts, weights, True, False, ends, True, accumulate_grad=False
            )
            if result is not None:
                row.copy_(result)
        return pulled


class Windows(Outer):
    """A convolution as a product of matrices. The windows are copied for a few examples at a time.

    If a window has n positions, the copy is n times as large as the input. Where possible a kernel
    reads the windows in the input instead. gradient: N x o x positions, x: N x channels x space,
    with N = m r, where the r entries of an example follow each other. `steps`: stride and dilation;
    `pads`: as in F.pad.
    """

    def __init__(
        self,
        gradient: Tensor,
        x: Tensor,
        weight: Tensor,
        examples: int,
        steps: Steps,
        pads: Sequence[int],
        groups: int,
    ) -> None:
        """Note the sizes of a call with `weight`; nothing is copied yet.

        In terms of `Outer`, the parameter of a group has o / groups `rows` and (channels, window)
        `columns`, and an example has r times as many positions as a map.
        """
        self.gradient = gradient
        self.x = x
        self.examples = examples
        self.steps = steps
        self.pads = pads
        self.groups = groups
        self.dims = weight.ndim - 2
        self.rows = weight.shape[0] // groups
        self.columns = weight[0].numel()
        self.size = weight.numel()
        self.shape = weight.shape
        self.window = weight.shape[2:]  # its size in each dimension
        self.sizes = gradient.shape[2:]  # the positions in each dimension
        self.each = gradient.shape[0] // examples  # r
        self.length = self.each * self.sizes.numel()

    @cached_property
    def padded(self) -> Tensor:
        if not any(self.pads):
            return self.x
        return F.pad(self.x, list(self.pads))

    @property
    def elements(self) -> int:
        return max(self.size, self.length * self.groups * self.columns)

    def left(self, out: Tensor, weights: Tensor, budget: int) -> None:
        """As for `Outer`, with a kernel on GPUs that copies no windows."""
        shaped = _with_shape(out, self.shape)
        # With one position the gradient is an outer product, which is cheaper in factors. The
        # kernel forms no gradients, so it needs no `budget`.
        cuda = kernels() if out.is_cuda and self.length > 1 and self.size > 0 else None
        if cuda is None or not cuda.serves_windows(shaped, weights, self.gradient, self.x):
            super().left(out, weights, budget)
            return
        top_left = self.pads[-2::-2]  # F.pad lists the last dimension first
        cuda.add_windows_(shaped, weights, self.gradient, self.x, *self.steps, top_left)

    def chunk(self, rows: slice, dtype: torch.dtype) -> Tensor:
        left = self._left(rows).flatten(0, 1)
        right = self._right(rows).flatten(0, 1)
        return self.multiplied(left, right, dtype)

    @property
    def factors(self) -> tuple[Tensor, Tensor]:
        everything = slice(0, self.examples)
        return self._left(everything), self._right(everything)

    def _left(self, rows: slice) -> Tensor:
        """m x groups x (r, positions) x o."""
        # m x r x the rest, for some examples
        entries = self.gradient[rows.start * self.each : rows.stop * self.each]
        g: Tensor = entries.unflatten(0, (-1, self.each)).unflatten(2, (self.groups, -1))
        g = g.permute(0, 2, 1, *range(4, 4 + self.dims), 3)
        return g.reshape(g.shape[0], self.groups, self.length, self.rows)

    def _right(self, rows: slice) -> Tensor:
        """m x groups x (r, positions) x (channels, window)."""
        x = self.padded[rows.start * self.each : rows.stop * self.each]
        # N x channels x positions x window, as a view. The only copy is made for the product.
        space = x.stride()[2:]
        steps: list[int] = []
        for step in self.steps:  # the stride between positions, the dilation inside of a window
            steps += map(mul, space, step)
        shape = (*x.shape[:2], *self.sizes, *self.window)
        strides = (*x.stride()[:2], *steps)
        windows: Tensor = x.as_strided(shape, strides)
        windows = windows.unflatten(0, (-1, self.each)).unflatten(2, (self.groups, -1))
        positions = range(4, 4 + self.dims)
        window = range(4 + self.dims, 4 + 2 * self.dims)
        windows = windows.permute(0, 2, 1, *positions, 3, *window)
        return windows.reshape(windows.shape[0], self.groups, self.length, -1)
