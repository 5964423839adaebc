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

from attittud_lab.data.tasks import Examples, Task

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
    """Return a model's outputs (n x classes), in the order of the examples and in main memory.

    The model is in evaluation mode meanwhile. `options` are passed on to it, such as its head.
    """
    outputs = []
    order = []  # the numbers of the examples of each batch, which may be sorted by length
    training = model.training
    model.eval()
    try:
        for rows, inputs in examples.parts(batch_size):
            outputs.append(model(inputs.to(device), **options).float())
            order.append(rows)
    finally:
        model.train(training)
    return torch.cat(outputs).cpu()[torch.cat(order).cpu().argsort()]


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
    from sklearn.metrics import f1_score

    counted_classes = None
    if task.several:
        loss = F.binary_cross_entropy_with_logits(outputs, targets.float())
        targets = targets.long()
        predicted = (outputs > 0).long()
        if targets.shape[1] == 1:
            # A single label would be taken for two classes, and the mean would include the F1 of
            # not having it.
            counted_classes = [1]
    else:
        loss = F.cross_entropy(outputs, targets)
        predicted = outputs.argmax(1)
    f1 = f1_score(
        targets.numpy(),
        predicted.numpy(),
        labels=counted_classes,
        average="macro",
        zero_division=0,
    )
    values = {
        "loss": float(loss),
        "accuracy": float((predicted == targets).float().mean()),
        "macro_f1": float(f1),
    }
    if not task.several:
        return values
    aucs = _aucs(targets.numpy(), outputs.numpy())
    defined = aucs[~np.isnan(aucs)].tolist()
    values["auc"] = fmean(defined) if defined else math.nan
    for name, value in zip(task.classes, aucs.tolist(), strict=True):
        values[f"auc/{name}"] = value
    return values


def fitted_temperature(scores: Tensor, targets: Tensor) -> float:
    """Find the number to divide scores (n x classes) by, so that their probabilities fit held-out
    examples best.

    Targets are class numbers (n) or 0/1 (n x labels). They are smoothed a little: otherwise a few
    examples that are all predicted correctly would make every prediction certain. Platt's 1 / (n +
    2) is more than a network needs.
    """
    scores = scores.double()
    smoothing = (len(targets) + 2) ** -1.5
    # Bisection: the loss is convex in the sharpness 1 / temperature, so its slope changes sign at
    # the minimum. The middle is the geometric one.
    low = 1 / HOTTEST
    high = HOTTEST
    for _ in range(40):
        middle = math.sqrt(low * high)
        if _slope(middle, scores, targets, smoothing) < 0:
            low = middle
        else:
            high = middle
    return 1 / math.sqrt(low * high)


def _slope(sharpness: float, scores: Tensor, targets: Tensor, smoothing: float) -> float:
    """The derivative of the loss of sharpness * scores with respect to the sharpness.

    Each target gives the share `smoothing` of itself to all classes, or to both answers of a label.
    """
    factor = torch.tensor(sharpness, dtype=torch.float64, requires_grad=True)
    if targets.ndim == 2:
        smoothed = targets.double() * (1 - smoothing) + smoothing / 2
        loss = F.binary_cross_entropy_with_logits(scores * factor, smoothed)
    else:
        loss = F.cross_entropy(scores * factor, targets, label_smoothing=smoothing)
    return float(torch.autograd.grad(loss, factor)[0])


def seconds_each(
    model: nn.Module, examples: Examples, device: torch.device, **options: Any
) -> float:
    """Seconds that one prediction takes in a small batch, the fastest of three tries.

    `options` are passed on to the model.
    """
    some = Examples(examples.inputs[:TIMED], None)
    times = []
    for _ in range(4):  # libraries choose their kernels in the first try
        began = time.perf_counter()
        outputs_of(model, some, device, **options)
        times.append(time.perf_counter() - began)
    return min(times[1:]) / len(some)


def has_both(targets: np.ndarray) -> np.ndarray:
    """Which labels have positive and negative examples, so that an area under the ROC curve is
    defined.
    """
    positive: np.ndarray = targets.sum(0)
    return (positive > 0) & (positive < len(targets))


def _aucs(targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """The area under the ROC curve for each label, NaN where it is not defined.

    It is not defined for a label with one kind of examples, nor where an output is not finite.
    """
    from sklearn.metrics import roc_auc_score

    areas = np.full(targets.shape[1], math.nan)
    if np.isfinite(outputs).all():
        for label in np.flatnonzero(has_both(targets)):
            areas[label] = roc_auc_score(targets[:, label], outputs[:, label])
    return areas
