"""The identity matrix: signs are compared coordinate by coordinate (k = D). An ablation; V is never
stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from attittud.autograd.layout import Layout
from attittud.basis.base import Basis, Refresh
from attittud.basis.subspace import Subspace, TaskVector, Update
from attittud.decompose import Cosines, Judges, Weights, correction, harmful_mask
from attittud.kernels import chunk_size, dot
from attittud.report import Split, TaskReport


class Coordinates(Subspace):
    """Every coordinate is a direction. Computations run in chunks, because k-vectors are as long as
    the gradient.
    """

    @property
    def effective_rank(self) -> Tensor:
        return torch.full((), self.layout.total, device=self.layout.device)

    def replace(self, rows: Tensor, finite: Tensor, layout: Layout | None = None) -> None:
        self.finite = finite
        if layout is not None:
            self.layout = layout

    def coordinates(self, x: Tensor) -> Tensor:
        return x

    def squares(self, primary: Tensor, auxiliary: Tensor, *, include_mean: bool = False) -> Tensor:
        """Each coordinate is helpful or harmful, and nothing is neutral."""
        squares = []
        for p, a in zip(self.layout.views(primary), self.layout.views(auxiliary), strict=True):
            harmful = harmful_mask(a, p)
            split = Split.of(a, harmful, torch.ones_like(harmful))
            neutral = torch.zeros_like(split.helpful)
            squares.append(torch.stack([split.helpful, split.harmful, neutral]))
        return torch.stack(squares)

    def update_(
        self,
        primary: Tensor,
        tasks: Mapping[str, TaskVector],
        judges: Tensor | None,
        primary_weight: float,
    ) -> Update:
        """Form Σ_t weight_t (eta_tj a_tj) + primary_weight g_prim, by coordinate j, with the numbers
        of its report; all vectors are overwritten.

        Tasks with eta="auto" are also compared with the judges' gradient, if there is one. Sums over
        coordinates are of this worker's coordinates at first, and then summed over the workers in
        one exchange.
        """
        square = dot(primary, primary)
        judge = None
        if judges is not None:
            judge = Judges(judges, dot(judges, judges), dot(judges, primary))
        splits = {}
        inners = {}  # ⟨g_aux, g_prim⟩ of each task
        judged = {}  # what `_weigh_` collects in `parts`, and ⟨g_aux, g_judge⟩
        for name, task in tasks.items():
            inners[name] = dot(task.gradient, primary)
            judged_parts = None
            if judge is not None and isinstance(task.eta, Weights):
                judged_parts = torch.zeros(2, 2, dtype=torch.float64, device=primary.device)
                judged[name] = (judged_parts, dot(task.gradient, judge.rows))
            splits[name] = _weigh_(task, primary, judge, judged_parts)
        total, *others = [task.gradient for task in tasks.values()]
        for gradient in others:
            total.add_(gradient)
        total.add_(primary.mul_(primary_weight))
        if self.workers.splits_columns:
            # They are summed in place.
            numbers = [square]
            for name, split in splits.items():
                numbers += [*split, inners[name]]
            for pair in judged.values():
                numbers += pair
            if judge is not None:
                numbers += [judge.square, judge.primary]
            self.workers.sum_numbers_(numbers)
        reports = {}
        cosines = {}
        for name, split in splits.items():
            inside = split.helpful + split.harmful  # ‖g_aux‖², as nothing is neutral
            products = partial(_unchanged, (inside, inners[name], square))
            reports[name] = TaskReport(partial(Split, *split), products)
            if judge is not None and name in judged:
                judged_parts, whole = judged[name]
                values = Cosines(judged_parts[0], judged_parts[1], whole, inside)
                cosines[name] = values.values(judge, square, self.layout.dtype)
        whole_span = partial(torch.ones_like, square)
        rank = partial(torch.Tensor.long, self.effective_rank)
        return Update(total, reports, whole_span, rank, cosines)


def _unchanged(products: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the argument: a report calls a function for its products, but here they are known."""
    return products


def _weigh_(
    task: TaskVector, primary: Tensor, judges: Judges | None, parts: Tensor | None
) -> Split:
    """Overwrite the gradient of a task by weight * eta_j * a_j, one chunk of coordinates after the
    other, and return its split.

    `parts` (2 x 2), if given, collects the inner products of the helpful and the harmful part with
    the judges' gradient, and the squared norms of both parts.
    """
    size = chunk_size(task.gradient)
    total: Split | None = None
    for number, (a, p) in enumerate(
        zip(task.gradient.split(size), primary.split(size), strict=True)
    ):
        harmful = harmful_mask(a, p)
        if judges is not None and parts is not None:
            judges_chunk = judges.rows[number * size : (number + 1) * size].double()
            parts.add_(torch.stack(Cosines.parts(a.double(), harmful, judges_chunk)))
        split = Split.of(a, harmful, torch.ones_like(harmful))
        if total is None:
            total = split
        else:
            total = Split(*map(torch.add, total, split))
        # weight * (neutral a_j + (eta_j - neutral) a_j)
        change = task.weight * correction(a, harmful, task.eta)
        a.mul_(task.weight * task.eta.neutral).add_(change)
    assert total is not None
    return total


class Canonical(Basis):
    """V = I. Refreshes do nothing, and a step weighs each coordinate by the sign of a_j p_j."""

    name = "canonical"
    needs = "nothing"
    stored = False
    subspace = Coordinates

    def finish(self, refresh: Refresh) -> Tensor:
        refresh.put(refresh.layout.empty(0))
        return torch.ones((), dtype=torch.bool, device=refresh.layout.device)
