"""The end of a step where the rows of V are the directions: signs are taken and weights given among k-vectors."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attittud.decompose import Residual, Weights, correction, harmful_mask, residual_tolerance
from attittud.report import Split, TaskReport, ratio
from attittud.step.judges import Meeting, rounding
from attittud.step.step import Step
from attittud.step.subspace import Subspace
from attittud.step.task import Judges, Outcome


def finish(step: Step, subspace: Subspace, primary_weight: float) -> Outcome:
    """Take the signs and form the update over the shared parameters."""
    assert step.layout is not None
    if step.norms or step.include_mean:
        step.sum_primary_()
    if step.norms and len(step.tasks) == 1:
        step.sum_tasks_()
    for task in step.tasks.values():
        step.measure(task, subspace)
    p, square = step.measure_primary(subspace)
    judges = step.measure_judges(subspace)
    _exchange(step, p, square, judges)
    unknown = torch.full((), torch.nan, dtype=torch.float64, device=p.device)
    square = unknown if square is None else square
    directions, active = p, subspace.active.clone()  # a report may be read after the next refresh
    residual = Residual.of(p, square, residual_tolerance(step.layout.dtype)) if step.include_mean else None
    if residual is not None:
        directions = torch.cat([p, residual.norm[None]])
        active = torch.cat([active, (residual.norm > 0)[None]])
        if judges is not None:
            row = residual.coefficient(judges.rows, judges.primary)
            judges = replace(judges, rows=torch.cat([judges.rows, row[None]]))
    weights: Tensor | None = None
    primary_factor = torch.full((), primary_weight, dtype=torch.float64, device=p.device)
    reports, met = {}, {}
    for name, task in step.tasks.items():
        a, aa = task.a, unknown if task.square is None else task.square
        assert a is not None
        inner = unknown if task.inner is None else task.inner
        if task.primary_calls != step.primary_calls:
            # The primary gradient grew after this task had been reduced to a k-vector.
            inner = unknown
        if residual is not None:
            a = torch.cat([a, residual.coefficient(a, inner)[None]])
        harmful = harmful_mask(a, directions)
        if judges is not None and isinstance(task.eta, Weights) and task.judged is not None:
            meeting = Meeting(*Meeting.parts(a, harmful, judges.rows), task.judged, aa)
            met[name] = meeting.cosines(judges.primary, square, judges.square, rounding(step.layout.dtype))
        change = task.weight * correction(a, harmful, task.eta)
        if residual is not None:
            in_span, times_primary = residual.lift(change[-1])
            change = change[:-1] + in_span
            primary_factor = primary_factor + times_primary
        weights = change if weights is None else weights + change
        reports[name] = TaskReport(partial(Split.of, a, harmful, active), aa, inner, square)
    inside = p.square().sum() if residual is None else p.square().sum() + residual.norm.square()
    assert weights is not None
    return Outcome(_update(step, subspace, weights, primary_factor), reports, ratio(inside, square), met)


def _exchange(step: Step, p: Tensor, square: Tensor | None, judges: Judges | None) -> None:
    """One small sum over workers makes all k-vectors and inner products global."""
    columns = step.workers.splits_columns
    parts = [p, square] if columns or not step.primary_whole else []
    if judges is not None and columns:
        parts += [judges.rows, judges.square, judges.primary]
    for task in step.tasks.values():
        if columns or not task.whole:
            parts += [task.a, task.square, task.inner, task.judged]
    step.workers.sum_numbers_([part for part in parts if part is not None])


def _update(step: Step, subspace: Subspace, weights: Tensor, primary_factor: Tensor) -> Tensor:
    factor: float | Tensor = 1.0
    if len(step.tasks) == 1 and step.sum is None:
        # The only task: its weight is applied in the same pass as all the rest.
        (task,) = step.tasks.values()
        step.sum, factor = task.flat, task.weight * task.eta.neutral
    else:
        for task in step.tasks.values():
            step.fold(task)
    assert step.sum is not None
    whole = all(task.whole for task in step.tasks.values())
    if step.in_span or (step.primary_whole and whole):
        return subspace.lift_(weights, step.sum, step.primary, factor, primary_factor)
    assert step.primary is not None
    step.sum.mul_(factor)
    scaled = step.primary.mul_(primary_factor)
    if not step.primary_whole:
        step.sum.add_(scaled)
    if not whole:
        step.sum_over_workers_(step.sum, "gradients")
    subspace.add_(step.sum, weights)
    return step.sum.add_(scaled) if step.primary_whole else step.sum
