"""The end of a step where every coordinate is a direction: by chunks, since k-vectors are as long as the gradient."""

from __future__ import annotations

import torch

from attittud.decompose import Weights, correction, harmful_mask
from attittud.kernels.products import chunk_size, dot
from attittud.report import Split, TaskReport
from attittud.step.judges import Meeting, rounding
from attittud.step.step import Step
from attittud.step.task import Outcome


def finish(step: Step, primary_weight: float) -> Outcome:
    """Take the signs and form the update over the shared parameters."""
    assert step.primary is not None
    step.sum_primary_()
    step.sum_tasks_()
    square = dot(step.primary, step.primary)
    judges = step.measure_judges(None)
    found, met = {}, {}
    for name, task in step.tasks.items():
        assert task.flat is not None
        inner, split = dot(task.flat, step.primary), Split.none(task.flat.device)
        size = chunk_size(task.flat)
        if step.judges is not None and isinstance(task.eta, Weights):
            met[name] = torch.zeros(2, 2, dtype=torch.float64, device=task.flat.device), dot(task.flat, step.judges)
        for at, (a, p) in enumerate(zip(task.flat.split(size), step.primary.split(size), strict=True)):
            harmful = harmful_mask(a, p)
            if step.judges is not None and name in met:
                j = step.judges[at * size : (at + 1) * size]
                met[name][0].add_(torch.stack(Meeting.parts(a.double(), harmful, j.double())))
            split = split + Split.of(a, harmful, torch.ones_like(harmful))
            change = task.weight * correction(a, harmful, task.eta)
            a.mul_(task.weight * task.eta.neutral).add_(change)
        found[name] = split, inner
        step.sum = task.flat if step.sum is None else step.sum.add_(task.flat)
    assert step.sum is not None
    step.sum.add_(step.primary.mul_(primary_weight))
    if step.workers.splits_columns:
        numbers = [square, *(x for split, inner in found.values() for x in (*split.parts(), inner))]
        numbers += [x for pair in met.values() for x in pair]
        step.workers.sum_numbers_(numbers + ([judges.square, judges.primary] if judges is not None else []))
    reports = {
        name: TaskReport(split.itself, split.helpful + split.harmful, inner, square)
        for name, (split, inner) in found.items()
    }
    heard = {}
    for name, (parts, judged) in met.items():
        assert judges is not None
        split = found[name][0]
        meeting = Meeting(parts[0], parts[1], judged, split.helpful + split.harmful)
        heard[name] = meeting.cosines(judges.primary, square, judges.square, rounding(step.primary.dtype))
    return Outcome(step.sum, reports, torch.ones_like(square), heard)
