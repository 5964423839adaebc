"""Products with the Jacobian J of per-example losses. J is never stored as an m x D matrix.

This file also compares an engine's products with an ordinary gradient, parameter by parameter.
"""

from __future__ import annotations

import logging
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from attittud._torch import CUDA_GRAPH_TREES, kept_graph
from attittud.autograd.layout import EVERYTHING, Layout, Share, run_backward, unconverted
from attittud.kernels import gram, project

logger = logging.getLogger("attittud")

AGREES = 5e-2
"""Products J·v are right if their sum is off by at most this share of an ordinary gradient times v."""
ROUNDING = 5e-3
"""A difference below this share of the products' absolute values may be rounding."""


class UnsupportedError(RuntimeError):
    """An engine does not support a model. The message names the part of the model and the engine to
    use instead.
    """


class Engine(ABC):
    """A way to compute products wᵀJ. One engine serves a guide for its whole life."""

    name: str
    needs_forward = False
    """Whether it must see the forward pass of the losses. Then `primary=` must be a callable, or
    `basis_losses=` is needed.
    """
    on_shards: ClassVar[str | None] = None
    """The engine to use for a model with sharded parameters; None: such models are refused."""
    second_derivatives: bool | None = None
    """Whether the model's second derivatives are right; None: not known yet."""

    def __init_subclass__(cls) -> None:
        """Reset what a subclass inherits: otherwise another engine would silently replace it."""
        super().__init_subclass__()
        cls.on_shards = cls.__dict__.get("on_shards")

    @abstractmethod
    def write(
        self, losses: Tensor, layout: Layout, weights: Tensor, out: Tensor, *, fresh: bool
    ) -> None:
        """Add weights @ J to `out` (r x D), or overwrite `out` if it is `fresh` memory.

        The graph of `losses` is retained.
        """

    def watch(self, model: nn.Module) -> AbstractContextManager[None]:
        """A context for the forward pass of the losses and every use of their graph, so that
        engines can observe them.
        """
        return nullcontext()

    def used(self) -> None:  # noqa: B027 - nothing to do for engines that do not watch
        """J of the latest `watch` is not needed any more: the engine need not observe further uses
        of the graph.
        """

    def jacobian(self, losses: Tensor, layout: Layout) -> Jacobian:
        """Return J of losses whose forward pass ran in the latest `watch`."""
        return Jacobian(self, losses, layout)


class Loop(Engine):
    """One vector-Jacobian product after the other on the retained graph: works for every model and
    needs little memory.
    """

    name = "loop"
    on_shards: ClassVar[str | None] = name

    def write(
        self,
        losses: Tensor,
        layout: Layout,
        weights: Tensor,
        out: Tensor,
        *,
        fresh: bool,
    ) -> None:
        """Row by row: out_i += Σ_j weights_ij ∇l_j, one backward pass each, so r passes for r rows."""
        compiled = CUDA_GRAPH_TREES in sys.modules
        ends: Sequence[Tensor | GradientEdge] = layout.parameters
        if fresh:
            # Gradients before their conversion to the parameters' type: a copy converts them too.
            # (An addition would take tensors of another type one by one.)
            ends = unconverted(losses, layout, layout.parameters)
        for row, to in zip(weights, out, strict=True):
            with kept_graph() if compiled else nullcontext():
                gradients = run_backward(
                    (losses,), (row,), True, False, tuple(ends), True, accumulate_grad=False
                )
            layout.add_(to, gradients, fresh=fresh)
            del gradients  # freed before the next row is computed


class Jacobian:
    """J of one vector of per-example losses with respect to the parameters of a layout."""

    share = EVERYTHING
    gradients: Sequence[Tensor | None] | None = None
    """The gradients that `expect` asked for, once a pass has computed them."""

    def __init__(self, engine: Engine, losses: Tensor, layout: Layout) -> None:
        self.engine = engine
        self.losses = losses
        self.layout = layout
        self.examples = losses.shape[0]

    def of_share(self, share: Share) -> Self:
        """Return the same Jacobian for a worker that has only some of the examples."""
        self.share = share
        return self

    def expect(self, parameters: Sequence[Tensor], weight: float) -> None:
        """Ask the next pass for the gradients of weight * the sum of the losses too. Afterwards the
        caller uses `left` or `rows` once, and the graph no more.

        An engine whose passes do not compute such gradients does nothing: `gradients` stays None,
        and the graph is kept.
        """

    def total(self) -> int:
        """Return the number of examples of all workers. With several workers this waits for the
        device.
        """
        return int(self.share.count(self.losses))

    def rows(self) -> Tensor:
        """Return J itself: m x D. With several workers, the rows of other workers' examples are
        zero.
        """
        identity = torch.eye(self.examples, device=self.losses.device)
        if self.share.total is None:
            return self.left(identity)
        out = self.layout.empty(self.total()).zero_()
        first = int(self.share.first)
        if self.examples:
            self.left(identity, out[first : first + self.examples])
        return out

    def left(self, weights: Tensor, out: Tensor | None = None) -> Tensor:
        """weights (r x m) times J, added to `out` (r x D) if it is given."""
        fresh = out is None
        if out is None:
            out = self.layout.empty(weights.shape[0])
        self.engine.write(self.losses, self.layout, weights.to(self.losses.dtype), out, fresh=fresh)
        return out

    def right(self, vectors: Tensor) -> Tensor:
        """J times the rows of `vectors` (l x D): m x l, in float64.

        wᵀJ is linear in w, so its derivative along a vector v is Jv: one backward pass through the
        backward pass. If an operation has no second derivative, the rows of J are formed one after
        the other.
        """
        if self.engine.second_derivatives is not False:
            try:
                return self._right_by_double_backward(vectors)
            except RuntimeError as error:
                reason = str(error).split("\n")[0]
                logger.info(
                    "J·v is computed with one product per example, because no second derivative "
                    "is available here (%s)",
                    reason,
                )
        return self._right_by_rows(vectors)

    def _right_by_double_backward(self, vectors: Tensor) -> Tensor:
        """J V: with s_v = ⟨Jᵀ w, v⟩, column v is ds_v/dw. One backward pass forms Jᵀ w, and one
        more each s_v.
        """
        # Any weights except zeros work: some backward passes of torch take the logarithm of a
        # gradient (logcumsumexp).
        weights = torch.ones_like(self.losses, requires_grad=True)
        parameters = self.layout.parameters
        with kept_graph():
            gradients = torch.autograd.grad(
                self.losses, parameters, weights, create_graph=True, allow_unused=True
            )
        columns = []
        sums = []
        for vector in vectors:
            products_by_parameter = []
            for gradient, view in zip(gradients, self.layout.views(vector), strict=True):
                if gradient is not None:
                    products_by_parameter.append((gradient * view).sum())
            total = torch.stack(products_by_parameter).sum()
            sums.append(total.detach())
            columns.append(torch.autograd.grad(total, weights, retain_graph=True)[0])
        products = torch.stack(columns, dim=1).double()
        # The check waits for the device, which is impossible while a CUDA graph is captured.
        capturing = products.is_cuda and torch.cuda.is_current_stream_capturing()
        if self.engine.second_derivatives is None and not capturing:
            self._check_second_derivatives(products, torch.stack(sums).double())
        return products

    def _check_second_derivatives(self, products: Tensor, sums: Tensor) -> None:
        """Compare the sum of J·v over the examples with an ordinary gradient times v, for each v.

        `products` is J V (m x l), and `sums` are the ordinary products (l). The result is noted in
        `engine.second_derivatives`, so that the check, which waits for the device, need not be
        repeated. If the two differ, this raises UnsupportedError. Nothing is decided where gradients
        are zero or not finite, or where the difference may be rounding.

        A custom autograd.Function whose backward pass does not consist of torch functions (a
        kernel, `no_grad`) silently cuts the graph, so the second derivatives of everything before
        it are missing.
        """
        size = sums.norm()
        error = (products.sum(0) - sums).norm()
        # For heads that start at zero, a later refresh can tell.
        if not bool(torch.isfinite(size) & (size > 0)):
            return
        agrees = bool(error <= AGREES * size)
        # Where examples cancel, rounding looks like an error, for example in half precision after
        # training. It is small beside the sum without cancellation.
        may_be_rounding = bool(error < ROUNDING * products.abs().sum(0).norm())
        if not agrees and may_be_rounding:
            return
        self.engine.second_derivatives = agrees
        if not self.engine.second_derivatives:
            raise UnsupportedError(
                "second derivatives are wrong, which happens with a custom autograd.Function"
            )

    def _right_by_rows(self, vectors: Tensor) -> Tensor:
        """J V, row by row: ⟨∇l_i, v⟩ for one example i after the other."""
        row = self.layout.empty(1)
        shape = (self.examples, vectors.shape[0])
        result = torch.empty(shape, dtype=torch.float64, device=self.layout.device)
        # Made on the device, because setting one number of a tensor would copy it from the host and
        # wait for the copy.
        identity = torch.eye(self.examples, dtype=self.losses.dtype, device=self.losses.device)
        # Empty on a worker without examples, although split() would return one part.
        for i in range(self.examples):
            self.engine.write(self.losses, self.layout, identity[i : i + 1], row, fresh=True)
            result[i] = project(vectors, row[0])
        return result

    def gram(self) -> Tensor:
        """J Jᵀ, m x m float64. These engines form the m rows of J for it."""
        return gram(self.rows())


# --------------------------------------------------------------------------------------- comparison


def probe(losses: Tensor) -> Tensor:
    """Weights (2 x m) that differ from example to example.

    Equal weights would hide gradients that are assigned to the wrong example, and examples that
    influence each other. There are two rows, so that the same products are computed as in a
    refresh. The ordinary gradient, to which they are compared, is computed with the sum of both
    rows. This sum is a power of two for every example, so that half precision rounds as it does
    without weights. Otherwise, where gradients cancel (often in biases), rounding would look like a
    difference.
    """
    number = torch.arange(1, losses.shape[0] + 1, dtype=torch.float64, device=losses.device)
    # The fractional parts of successive multiples of the golden ratio, or of √2, are never close to
    # each other. They choose the sum among 1/4, 1/2, 1 and 2, and the first row's share of it among
    # 1/64 to 63/64.
    golden = (math.sqrt(5) - 1) / 2
    total = torch.exp2(((number * golden) % 1 * 4).floor() - 2)
    first = total * (1 + ((number * math.sqrt(2)) % 1 * 63).floor()) / 64
    return torch.stack([first, total - first]).to(losses.dtype)


def verify(
    jacobian: Jacobian, weights: Tensor, product: Tensor, *, half: bool, cure: str
) -> set[str]:
    """Raise an error if `product`, weights @ J, differs from the ordinary gradient of the weighted
    losses.

    Returns the names of parameters whose gradients cannot be compared. `half`: as in `differing`.
    `cure` ends the message of the error.
    """
    # Without autocast, as in the pass that is verified.
    with torch.autocast(jacobian.layout.device.type, enabled=False):
        wrong, silent = differing(
            jacobian.losses, jacobian.layout, weights.sum(0), product.sum(0), half=half
        )
    if wrong:
        raise UnsupportedError(
            f"engine {jacobian.engine.name!r}: per-example gradients do not add up to the gradient "
            f"of {', '.join(wrong)}. Either examples influence each other (statistics of the "
            "batch, a loss over pairs), or some examples have no loss, or these parameters are "
            "used outside of torch's functions (a custom autograd.Function, TorchScript) or in a "
            f"function that draws random numbers; {cure}"
        )
    return silent


def differing(
    losses: Tensor, layout: Layout, weights: Tensor, product: Tensor, *, half: bool
) -> tuple[list[str], set[str]]:
    """Return the parameters for which `product`, weights (m) @ J, differs from the ordinary
    gradient of the weighted losses.

    Also returns the names of parameters whose gradient cannot be compared, because it is zero or
    not finite. `half`: whether gradients went through half precision.
    """
    expected = layout.empty()
    with kept_graph():
        parameters = tuple(layout.parameters)
        # (torch.autograd.grad would hide what activation checkpointing runs again from the
        # recorder.)
        ordinary = run_backward(
            (losses,), (weights,), True, False, parameters, True, accumulate_grad=False
        )
    layout.add_(expected, ordinary, fresh=True)
    is_reached = [gradient is not None for gradient in ordinary]
    del ordinary
    # Float64 gets the tolerance of float32, because models compute some parts in float32, for
    # example normalisation.
    relative = 3e-4
    if half or _rounded(layout):
        relative = 5e-2
    # A gradient that is zero by symmetry, such as the gradient of an attention's key bias, is only
    # rounding noise.
    absolute = 1e-2 * relative * torch.linalg.vector_norm(expected)
    if not bool(torch.isfinite(absolute)):  # the refresh handles losses that are not finite
        return [], set(layout.names)
    wrong = []
    silent = set()
    views = zip(layout.views(product), layout.views(expected), strict=True)
    for name, reached, (actual, ordinary_view) in zip(layout.names, is_reached, views, strict=True):
        error = torch.linalg.vector_norm(actual - ordinary_view)
        size = torch.linalg.vector_norm(ordinary_view)
        if not bool(error <= relative * size + absolute):
            wrong.append(f"{name} (off by {float(error / size):.2g} of its norm)")
        elif reached and not bool(size > 0):
            silent.add(name)
    return wrong, silent


def _rounded(layout: Layout) -> bool:
    """Whether float32 products may use fewer bits: TF32, which is cuDNN's default on GPUs, or
    bfloat16.
    """
    if layout.dtype != torch.float32:
        return False
    if layout.device.type != "cpu":
        return True
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:
        # The precision is set for each backend separately, which this call cannot report.
        return True
