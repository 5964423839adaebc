"""Figures of a model on held-out examples."""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from attittud.recipes.tasks import Examples, Task


@torch.no_grad()
def evaluate(
    model: nn.Module, task: Task, examples: Examples, device: torch.device, batch_size: int = 512
) -> dict[str, float]:
    """Loss, and accuracy and macro-F1 (one class each), or the mean area under the ROC curve (several labels at once)."""
    training = model.training
    model.eval()
    try:
        pieces = [model(part.to(device), head=task.head).float().cpu() for part in examples.inputs.split(batch_size)]
    finally:
        model.train(training)
    outputs = torch.cat(pieces)
    assert examples.targets is not None
    targets = examples.targets.cpu()
    if task.objective == "multi_label":
        loss = F.binary_cross_entropy_with_logits(outputs, targets.float())
        predicted = outputs > 0
        return {
            "loss": float(loss),
            "accuracy": float((predicted == targets.bool()).float().mean()),
            "macro_f1": _f1(targets.numpy(), predicted.long().numpy()),
            "auc": _auc(targets.numpy(), outputs.numpy()),
        }
    predicted = outputs.argmax(1)
    return {
        "loss": float(F.cross_entropy(outputs, targets)),
        "accuracy": float((predicted == targets).float().mean()),
        "macro_f1": _f1(targets.numpy(), predicted.numpy()),
    }


def default_metric(task: Task) -> str:
    return "auc" if task.objective == "multi_label" else "accuracy"


def _f1(targets: np.ndarray, predicted: np.ndarray) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(targets, predicted, average="macro", zero_division=0))


def _auc(targets: np.ndarray, outputs: np.ndarray) -> float:
    """Mean over the labels that have both kinds of examples; NaN where none has."""
    from sklearn.metrics import roc_auc_score

    if not np.isfinite(outputs).all():
        return math.nan
    both = [label for label in range(targets.shape[1]) if 0 < targets[:, label].sum() < len(targets)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (
            float(np.mean([roc_auc_score(targets[:, label], outputs[:, label]) for label in both]))
            if both
            else math.nan
        )
