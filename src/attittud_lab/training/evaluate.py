"""Figures of a model on held-out examples."""

from __future__ import annotations

import math
import time
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attittud_lab.data.tasks import OBJECTIVES, Examples, Task

HOTTEST = 100.0
"""A temperature lies between this and its inverse."""
TIMED = 32
"""Examples of the batch whose prediction is timed."""


@torch.no_grad()
def outputs_of(
    model: nn.Module,
    examples: Examples,
    device: torch.device,
    *,
    batch_size: int = 512,
    **options: Any,
) -> Tensor:
    """Return a model's outputs (n x classes), in the order of the examples and in main memory."""
    training = model.training
    model.eval()
    try:
        batches = [
            (model(part.to(device), **options).float(), rows)
            for rows, part in examples.parts(batch_size)
        ]
    finally:
        model.train(training)
    outputs, rows = (torch.cat(parts).cpu() for parts in zip(*batches, strict=True))
    return outputs[rows.argsort()]


def evaluate(
    model: nn.Module, task: Task, examples: Examples, device: torch.device
) -> dict[str, float]:
    """The figures of a model on some examples."""
    outputs = outputs_of(model, examples, device, head=task.head)
    assert examples.targets is not None
    return figures(task, outputs, examples.targets.cpu())


def figures(task: Task, outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """Loss, accuracy and macro-F1; for several labels at once also the area under the ROC curve:
    `auc`, and `auc/LABEL`.

    The area of a label without positive or without negative examples is NaN (null in files), and
    not part of the mean.
    """
    if task.several:
        loss = F.binary_cross_entropy_with_logits(outputs, targets.float())
        predicted = outputs > 0
        aucs = _aucs(targets.numpy(), outputs.numpy())
        defined = [value for value in aucs if not math.isnan(value)]
        return {
            "loss": float(loss),
            "accuracy": float((predicted == targets.bool()).float().mean()),
            # A single label would be taken for two classes, and the mean would include the F1 of
            # not having it.
            "macro_f1": _f1(
                targets.numpy(), predicted.long().numpy(), [1] if targets.shape[1] == 1 else None
            ),
            "auc": fmean(defined) if defined else math.nan,
            **{f"auc/{name}": value for name, value in zip(task.classes, aucs, strict=True)},
        }
    predicted = outputs.argmax(1)
    return {
        "loss": float(F.cross_entropy(outputs, targets)),
        "accuracy": float((predicted == targets).float().mean()),
        "macro_f1": _f1(targets.numpy(), predicted.numpy()),
    }


def fitted_temperature(scores: Tensor, targets: Tensor) -> float:
    """Find the number to divide scores (n x classes) by, so that their probabilities fit held-out
    examples best.

    Targets are class numbers (n) or 0/1 (n x labels). They are smoothed a little: otherwise a few
    examples that are all predicted correctly would make every prediction certain. Platt's 1 / (n +
    2) is more than a network needs.
    """
    scores, smoothing = scores.double(), (len(targets) + 2) ** -1.5

    def slope(sharpness: float) -> float:
        """The derivative of the loss, which is convex in 1 / temperature."""
        factor = torch.tensor(sharpness, dtype=torch.float64, requires_grad=True)
        if targets.ndim == 2:
            smoothed = targets.double() * (1 - smoothing) + smoothing / 2
            loss = F.binary_cross_entropy_with_logits(scores * factor, smoothed)
        else:
            loss = F.cross_entropy(scores * factor, targets, label_smoothing=smoothing)
        return float(torch.autograd.grad(loss, factor)[0])

    low, high = 1 / HOTTEST, HOTTEST
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return 1 / math.sqrt(low * high)


def seconds_each(
    model: nn.Module, examples: Examples, device: torch.device, **options: Any
) -> float:
    """Seconds that one prediction takes in a small batch, the fastest of three tries."""
    some, times = Examples(examples.inputs[:TIMED], None), []
    for _ in range(4):  # libraries choose their kernels in the first try
        began = time.perf_counter()
        outputs_of(model, some, device, **options)
        times.append(time.perf_counter() - began)
    return min(times[1:]) / len(some)


def default_metric(task: Task) -> str:
    return OBJECTIVES[task.objective].metric


def _f1(targets: np.ndarray, predicted: np.ndarray, labels: list[int] | None = None) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(targets, predicted, labels=labels, average="macro", zero_division=0))


def has_both(targets: np.ndarray) -> np.ndarray:
    """Which labels have positive and negative examples, so that an area under the ROC curve is
    defined.
    """
    positive: np.ndarray = targets.sum(0)
    return (positive > 0) & (positive < len(targets))


def _aucs(targets: np.ndarray, outputs: np.ndarray) -> list[float]:
    """The area for each label, NaN where it is not defined."""
    from sklearn.metrics import roc_auc_score

    if not np.isfinite(outputs).all():
        return [math.nan] * targets.shape[1]
    return [
        float(roc_auc_score(targets[:, label], outputs[:, label])) if both else math.nan
        for label, both in enumerate(has_both(targets))
    ]
