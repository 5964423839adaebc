"""A look at the gradients of one step, as the primary task sees them, with other examples than the basis has seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attittud import Guide, Subspace, isolated_forward
from attittud_lab.data.tasks import mix
from attittud_lab.errors import InputError
from attittud_lab.strategies.layers import groups

SHORTEST_BLOCK = 5
"""Steps of a block, or `refresh_every` if that is more. Blocks are taken to be independent: they share no basis."""


@dataclass(frozen=True)
class Figures:
    """One step, as tensors on the device; nothing waits for it."""

    captured_primary: Tensor
    """Share of a fresh primary gradient's squared norm in the span."""
    agreeing: Tensor
    compared: Tensor
    """Directions in which two half-batches have the same sign, and those in which both have one."""
    squares: dict[str, Tensor]
    """By source: squared norms by layer group and part, groups x 3. All together are that of the auxiliary gradient; within
    a group the parts need not be orthogonal, and may even cancel."""
    gradients: dict[str, Tensor]
    """By source: squared norms of the auxiliary gradient itself by layer group."""
    opposed: dict[str, Tensor]
    """By source: share of the directions that are harmful."""


class Probe:
    """Looks at gradients without a trace in the model but for `.grad`, which is cleared."""

    def __init__(
        self,
        guide: Guide,
        primary: Callable[[Tensor], Tensor],
        auxiliary: Callable[[], dict[str, Tensor]],
        *,
        examples: int,
        basis_batch: int,
        primary_batch: int,
        seed: int,
    ) -> None:
        """`primary` returns the losses of the given ones of so many examples; `auxiliary` the mean losses by source."""
        self.guide, self.primary, self.auxiliary, self.seed = guide, primary, auxiliary, seed
        self.examples = examples
        self.basis_batch, self.fresh_batch = batch_sizes(examples, basis_batch, primary_batch)
        self.block = max(SHORTEST_BLOCK, guide.refresh_every)
        self._pool = torch.empty(0)

    def measure(self, step: int) -> Figures:
        """The figures before update number `step`, counted from 0."""
        with isolated_forward(self.guide.model, self.guide.batch_norm, seed=mix(self.seed, step)), torch.enable_grad():
            if step % self.guide.refresh_every == 0:
                self._refresh(step)
            space = self.space
            # Two passes rather than two halves of one: BatchNorm would connect them.
            first, second = (space.gradient(self.primary(rows).mean()) for rows in self.halves(step))
            p, q, fresh = space.coordinates(first), space.coordinates(second), (first + second) / 2
            own, compared = space.coordinates(fresh), (p != 0) & (q != 0)
            squares, gradients, opposed = {}, {}, {}
            for name, loss in self.auxiliary().items():
                gradient = space.gradient(loss)
                parts = space.squares(fresh, gradient, include_mean=self.guide.include_mean)
                by_parameter = [one.double().square().sum() for one in space.layout.views(gradient)]
                squares[name], gradients[name] = self._by_group(parts), self._by_group(torch.stack(by_parameter))
                harmful = space.coordinates(gradient).sign() * own.sign() < 0
                opposed[name] = ratio(harmful.sum(), (own != 0).sum())
        captured = ratio(own.double().square().sum(), torch.dot(fresh.double(), fresh.double()))
        agreeing = (compared & (p.sign() == q.sign())).sum()
        return Figures(captured, agreeing, compared.sum(), squares, gradients, opposed)

    @property
    def space(self) -> Subspace:
        """The basis in use."""
        assert self.guide.subspace is not None
        return self.guide.subspace

    def halves(self, step: int) -> tuple[Tensor, Tensor]:
        """Two half-batches of primary examples, none of which the basis in use has seen.

        They are drawn independently of each other. Cut from one batch, they would have opposite signs too often: what one
        half has too much of (a class, say) the other has too little of, by a correlation of -h/(N - h) for h of N examples.
        Drawn so they have some examples in common; `chance` allows for that.
        """
        size, half = len(self._pool), self.fresh_batch // 2
        first, second = (_permutation(size, mix(self.seed, name, step))[:half] for name in ("first", "second"))
        return self._pool[first], self._pool[second]

    @property
    def chance(self) -> float:
        """How often two half-batches agree in sign by chance alone.

        Where the gradients of single examples scatter around 0, the mean of N of them is not 0, and half-batches of h
        drawn from these N are correlated by h/N: they agree in the sign of this training set, not of the task.
        """
        return 0.5 + math.asin(self.fresh_batch / 2 / (self.examples - self.basis_batch)) / math.pi

    def _refresh(self, step: int) -> None:
        rows = _permutation(self.examples, mix(self.seed, "basis", step))
        basis, self._pool = rows[: self.basis_batch], rows[self.basis_batch :]
        # The guide finds the parameters that both tasks reach; the update that it writes is not wanted.
        self.guide.backward(
            self.primary(self.halves(step)[0]), self.auxiliary(), basis_losses=lambda: self.primary(basis), refresh=True
        )
        self.guide.model.zero_grad(set_to_none=True)

    def _by_group(self, squares: Tensor) -> Tensor:
        """One row for each parameter, summed to one for each group of layers."""
        wanted = list(groups(self.space.layout.names).values())
        self.groups = list(dict.fromkeys(wanted))
        index = torch.tensor([self.groups.index(group) for group in wanted], device=squares.device)
        return squares.new_zeros(len(self.groups), *squares.shape[1:]).index_add_(0, index, squares)


def batch_sizes(examples: int, basis_batch: int, primary_batch: int) -> tuple[int, int]:
    """Examples for a basis and for a fresh gradient (an even number), made smaller where there are not enough for both."""
    if examples < 4:
        raise InputError(
            f"the primary training set has {examples} examples; a basis and two half-batches of others need at least 4: raise "
            "data.primary.train"
        )
    fresh = max(2, primary_batch)
    basis = basis_batch if basis_batch + fresh <= examples else min(basis_batch, max(2, examples // 2))
    return basis, min(fresh, examples - basis) // 2 * 2


def _permutation(n: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def ratio(part: Tensor, whole: Tensor) -> Tensor:
    """part/whole, and 0 of nothing."""
    return torch.where(whole == 0, 0.0, part / whole)
