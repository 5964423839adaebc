"""How the Jacobian J of per-example losses is touched: by products, never as a stored m x D matrix."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from attittud._torch import kept_graph
from attittud.autograd.layout import Layout
from attittud.kernels import gram, project

logger = logging.getLogger("attittud")


class UnsupportedError(RuntimeError):
    """What an engine cannot do with a model: the message names the part of the model and the engine to use instead."""


class Engine(ABC):
    """A way to compute products wᵀJ. One engine serves a guide for its whole life."""

    name: str
    keeps_graph = False
    """The graph of the losses is also used after `watch`, until the step is over: for the basis `implicit`."""
    second_derivatives: bool | None = None
    """Whether the model's are right; None: no J·v has told yet."""

    @abstractmethod
    def write(self, losses: Tensor, layout: Layout, weights: Tensor, out: Tensor, *, fresh: bool) -> None:
        """Add weights @ J to `out` (r x D), or write it where its content is `fresh` memory.

        The graph of `losses` is retained.
        """

    def watch(self, model: nn.Module) -> AbstractContextManager[None]:
        """The forward pass of the losses, and every use of their graph, runs inside: for engines that must see it."""
        return nullcontext()

    def forget(self) -> None:  # noqa: B027 - nothing to do for engines that keep nothing
        """A step was given up: let go of its graph."""

    def seen(self) -> None:  # noqa: B027 - nothing to do for engines that do not watch
        """The forward pass is over; what follows inside of `watch` need not be looked at."""

    def jacobian(self, losses: Tensor, layout: Layout) -> Jacobian:
        """J of losses whose forward pass ran in the latest `watch`."""
        return Jacobian(self, losses, layout)


class Jacobian:
    """J of one vector of per-example losses with respect to the parameters of a layout."""

    def __init__(self, engine: Engine, losses: Tensor, layout: Layout) -> None:
        self.engine = engine
        self.losses = losses
        self.layout = layout
        self.examples = losses.shape[0]

    def total(self) -> int:
        """Examples of all workers. Where there are several this waits for the device."""
        return self.examples

    def rows(self) -> Tensor:
        """J itself: m x D."""
        return self.left(torch.eye(self.examples, device=self.losses.device))

    def left(self, weights: Tensor, out: Tensor | None = None) -> Tensor:
        """weights (r x m) times J, added to `out` (r x D) where given."""
        fresh = out is None
        if out is None:
            out = self.layout.empty(weights.shape[0])
        self.engine.write(self.losses, self.layout, weights.to(self.losses.dtype), out, fresh=fresh)
        return out

    def right(self, vectors: Tensor) -> Tensor:
        """J times the rows of `vectors` (l x D): m x l, in float64.

        wᵀJ is linear in w, so its derivative along a vector is Jv: one backward pass through the backward pass. Where
        an operation has no second derivative, the rows of J are formed one after the other.
        """
        if self.engine.second_derivatives is False:
            return self._right_by_rows(vectors)
        try:
            return self._right_by_double_backward(vectors)
        except RuntimeError as error:
            logger.info("J·v: no double backward here (%s); using one product per example", str(error).split("\n")[0])
            return self._right_by_rows(vectors)

    def _right_by_double_backward(self, vectors: Tensor) -> Tensor:
        # Any weights will do but zeros, of whose gradients torch takes logarithms here and there (logcumsumexp).
        weights = torch.ones_like(self.losses, requires_grad=True)
        with kept_graph():
            gradients = torch.autograd.grad(
                self.losses, self.layout.parameters, weights, create_graph=True, allow_unused=True
            )
        columns, sums = [], []
        for vector in vectors:
            pieces = self.layout.views(vector)
            inner = [
                (gradient * piece).sum()
                for gradient, piece in zip(gradients, pieces, strict=True)
                if gradient is not None
            ]
            total = torch.stack(inner).sum()
            sums.append(total.detach())
            columns.append(torch.autograd.grad(total, weights, retain_graph=True)[0])
        found = torch.stack(columns, dim=1).double()
        # (Not inside of a CUDA graph, which cannot wait.)
        if self.engine.second_derivatives is None and not (found.is_cuda and torch.cuda.is_current_stream_capturing()):
            self._check_second_derivatives(found, torch.stack(sums).double())
        return found

    def _check_second_derivatives(self, found: Tensor, sums: Tensor) -> None:
        """The sum over the examples is known without them. Until that has told: it waits for the device.

        A custom autograd.Function whose backward pass is no torch function (a kernel, `no_grad`) cuts the graph without a
        word, and what lies before it would be missing.
        """
        size, error = sums.norm(), (found.sum(0) - sums).norm()
        if not bool(torch.isfinite(size) & (size > 0)):  # heads that start at zero: the next refresh will tell
            return
        if bool(error > 5e-2 * size) and bool(error < 5e-3 * found.abs().sum(0).norm()):
            return  # nor can rounding be told from errors where examples cancel, as in half precision after training
        self.engine.second_derivatives = bool(error <= 5e-2 * size)
        if not self.engine.second_derivatives:
            raise UnsupportedError("second derivatives are wrong, as those of a custom autograd.Function may be")

    def _right_by_rows(self, vectors: Tensor) -> Tensor:
        row = self.layout.empty(1)
        result = torch.empty(self.examples, vectors.shape[0], dtype=torch.float64, device=self.layout.device)
        # Made on the device: to set one number of a tensor there is a copy from the host, for which it waits.
        identity = torch.eye(self.examples, dtype=self.losses.dtype, device=self.losses.device)
        for i in range(self.examples):  # none on a worker without examples; split() would still give a part
            self.engine.write(self.losses, self.layout, identity[i : i + 1], row, fresh=True)
            result[i] = project(vectors, row[0])
        return result

    def gram(self) -> Tensor:
        """J Jᵀ, m x m float64. These engines form the m rows of J for it."""
        return gram(self.rows())
