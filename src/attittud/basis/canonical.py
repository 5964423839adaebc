"""The identity matrix: signs are compared coordinate by coordinate (k = D). An ablation; V is never stored."""

from __future__ import annotations

from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attittud.basis.base import Basis, Refresh
from attittud.basis.subspace import Finished, Subspace
from attittud.decompose import Cosines, Judges, Weights, correction, harmful_mask
from attittud.kernels import chunk_size, dot
from attittud.report import Split, TaskReport

if TYPE_CHECKING:
    from attittud.step.step import Gradients


class Coordinates(Subspace):
    """Every coordinate is a direction. Computations run in chunks, because k-vectors are as long as the gradient."""

    @property
    def effective_rank(self) -> Tensor:
        return torch.full((), self.layout.total, device=self.layout.device)

    def coordinates(self, x: Tensor) -> Tensor:
        return x

    def squares(self, primary: Tensor, auxiliary: Tensor, *, include_mean: bool = False) -> Tensor:
        found = []
        for p, a in zip(self.layout.views(primary), self.layout.views(auxiliary), strict=True):
            harmful, square = harmful_mask(a, p), a.double().square()
            parts = torch.where(harmful, 0.0, square), torch.where(harmful, square, 0.0), torch.zeros_like(square)
            found.append(torch.stack([part.sum() for part in parts]))
        return torch.stack(found)

    def finish(self, step: Gradients, primary_weight: float) -> Finished:
        step.sum_primary()
        step.sum_tasks()
        primary = step.primary_gradient
        assert primary is not None
        square = dot(primary, primary)
        judges = (
            None
            if step.judges is None
            else Judges(step.judges, dot(step.judges, step.judges), dot(step.judges, primary))
        )
        found, judged = {}, {}
        for name, task in step.tasks.items():
            assert task.flat is not None
            inner, size, splits = dot(task.flat, primary), chunk_size(task.flat), []
            if judges is not None and isinstance(task.eta, Weights):
                judged[name] = (
                    torch.zeros(2, 2, dtype=torch.float64, device=task.flat.device),
                    dot(task.flat, judges.rows),
                )
            for at, (a, p) in enumerate(zip(task.flat.split(size), primary.split(size), strict=True)):
                harmful = harmful_mask(a, p)
                if judges is not None and name in judged:
                    j = judges.rows[at * size : (at + 1) * size]
                    judged[name][0].add_(torch.stack(Cosines.parts(a.double(), harmful, j.double())))
                splits.append(Split.of(a, harmful, torch.ones_like(harmful)))
                change = task.weight * correction(a, harmful, task.eta)
                a.mul_(task.weight * task.eta.neutral).add_(change)
            found[name] = Split(*(reduce(add, chunks) for chunks in zip(*splits, strict=True))), inner
        updates = [task.flat for task in step.tasks.values() if task.flat is not None]
        total = updates[0]
        for other in updates[1:]:
            total.add_(other)
        total.add_(primary.mul_(primary_weight))
        if self.workers.splits_columns:
            numbers = [square, *(x for split, inner in found.values() for x in (*split, inner))]
            numbers += [x for pair in judged.values() for x in pair]
            self.workers.sum_numbers_(numbers + ([judges.square, judges.primary] if judges is not None else []))
        reports, cosines = {}, {}
        for name, (split, inner) in found.items():
            inside = split.helpful + split.harmful
            reports[name] = TaskReport(partial(Split, *split), partial(_themselves, inside, inner, square))
            if judges is not None and name in judged:
                parts, whole = judged[name]
                cosines[name] = Cosines(parts[0], parts[1], whole, inside).values(judges, square, self.layout.dtype)
        return Finished(
            total, reports, partial(torch.ones_like, square), partial(torch.Tensor.long, self.effective_rank), cosines
        )


def _themselves(square: Tensor, inner: Tensor, primary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return square, inner, primary


class Canonical(Basis):
    name = "canonical"
    needs = "nothing"
    stored = False
    subspace = Coordinates

    def finish(self, refresh: Refresh) -> Tensor:
        refresh.put(refresh.layout.empty(0))
        return torch.ones((), dtype=torch.bool, device=refresh.layout.device)
