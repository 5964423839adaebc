"""Figures of a model on held-out examples."""

from __future__ import annotations

import math
from statistics import fmean

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from attittud_lab.data.tasks import Examples, Task
from attittud_lab.models.compiling import eagerly


@torch.no_grad()
def evaluate(
    model: nn.Module, task: Task, examples: Examples, device: torch.device, batch_size: int = 512
) -> dict[str, float]:
    """Loss, accuracy and macro-F1; for several labels at once also the area under the ROC curve: `auc`, and `auc/LABEL`.

    The area of a label without positive or without negative examples is NaN (null in files), and not part of the mean.
    """
    training = model.training
    model.eval()
    try:
        with eagerly(model):
            found = [
                (model(part.to(device), head=task.head).float(), rows) for rows, part in examples.parts(batch_size)
            ]
    finally:
        model.train(training)
    outputs, rows = (torch.cat(parts).cpu() for parts in zip(*found, strict=True))
    outputs = outputs[rows.argsort()]
    assert examples.targets is not None
    targets = examples.targets.cpu()
    if task.objective == "multi_label":
        loss = F.binary_cross_entropy_with_logits(outputs, targets.float())
        predicted = outputs > 0
        aucs = _aucs(targets.numpy(), outputs.numpy())
        defined = [value for value in aucs if not math.isnan(value)]
        return {
            "loss": float(loss),
            "accuracy": float((predicted == targets.bool()).float().mean()),
            # A single label would be taken for two classes, and the mean would include the F1 of not having it.
            "macro_f1": _f1(targets.numpy(), predicted.long().numpy(), [1] if targets.shape[1] == 1 else None),
            "auc": fmean(defined) if defined else math.nan,
            **{f"auc/{name}": value for name, value in zip(task.classes, aucs, strict=True)},
        }
    predicted = outputs.argmax(1)
    return {
        "loss": float(F.cross_entropy(outputs, targets)),
        "accuracy": float((predicted == targets).float().mean()),
        "macro_f1": _f1(targets.numpy(), predicted.numpy()),
    }


def default_metric(task: Task) -> str:
    return "auc" if task.objective == "multi_label" else "accuracy"


def _f1(targets: np.ndarray, predicted: np.ndarray, labels: list[int] | None = None) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(targets, predicted, labels=labels, average="macro", zero_division=0))


def has_both(targets: np.ndarray) -> np.ndarray:
    """Which labels have positive and negative examples, so that an area under the ROC curve is defined."""
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
