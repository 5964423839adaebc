"""Per-example losses: vectors with one entry for each example, as a `Guide` needs them for the
primary task.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]


def per_sequence(
    logits: Tensor,
    labels: Tensor,
    *,
    shift: bool = True,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum"] = "mean",
) -> Tensor:
    """Cross-entropy of each sequence: the mean over its tokens that count.

    `per_sequence(...).mean()` gives every sequence the same weight, whereas the mean over all
    tokens of a batch gives long sequences more weight. For the mean over tokens, use
    `reduction="sum"` and divide by the average number of tokens per sequence in the batch.

    >>> logits, labels = torch.zeros(2, 3, 5), torch.tensor([[1, 2, -100], [0, 4, 3]])
    >>> per_sequence(logits, labels)
    tensor([1.6094, 1.6094])
    >>> per_sequence(logits, labels, reduction="sum")
    tensor([1.6094, 3.2189])

    Args:
        logits: m x T x C.
        labels: m x T class numbers; `ignore_index` where a token does not count. A sequence without
            a token that counts has loss 0.
        shift: True if token t is predicted at position t - 1, as in causal language models; False
            if a label belongs to the logits at its own position (masked language models, token
            classification, encoder-decoder models).
        ignore_index: the label of tokens that do not count.
        reduction: "mean" or "sum" over the tokens of a sequence.

    Returns:
        m losses in float32 (float64 for float64 logits).
    """
    if logits.ndim != 3 or labels.shape != logits.shape[:2]:
        raise ValueError(
            f"per_sequence takes logits m x T x C and labels m x T, got {tuple(logits.shape)} and {tuple(labels.shape)}; "
            "in packed or padding-free batches a row is not an example: build the primary batch with padding"
        )
    if shift:
        labels = _shifted(labels, ignore_index)
    flat = F.cross_entropy(
        _full(logits.flatten(0, 1)), labels.flatten(), reduction="none", ignore_index=ignore_index
    )
    total = flat.view(labels.shape).sum(dim=1)
    if reduction == "sum":
        return total
    return total / (labels != ignore_index).sum(dim=1).clamp(min=1)


def per_sequence_kl(
    logits: Tensor,
    start_logits: Tensor,
    labels: Tensor,
    *,
    shift: bool = True,
    ignore_index: int = -100,
) -> Tensor:
    """Divergence KL(start ‖ now) of each sequence, from the logits of the start model and of the
    current model.

    As in `per_sequence`, the labels say which tokens count, and each entry is the mean over the
    tokens of one sequence. Both logits are m x T x C, the labels m x T; the result has m entries.

    At the start model the true gradient is zero, but its computed value is rounding noise, which
    normalisation would turn into a direction. So tokens whose two distributions differ by rounding
    alone get a loss and a gradient of exactly zero.

    >>> logits, labels = torch.zeros(2, 3, 5), torch.tensor([[1, 2, -100], [0, 4, 3]])
    >>> per_sequence_kl(logits, logits, labels)
    tensor([0., 0.])
    """
    if logits.ndim != 3 or labels.shape != logits.shape[:2] or start_logits.shape != logits.shape:
        raise ValueError(
            f"per_sequence_kl takes logits m x T x C twice and labels m x T, got {tuple(logits.shape)}, "
            f"{tuple(start_logits.shape)} and {tuple(labels.shape)}; both models must see the same batch, with padding"
        )
    if shift:
        labels = _shifted(labels, ignore_index)
    counted = labels != ignore_index
    log_now = F.log_softmax(_full(logits), dim=-1)
    log_start = F.log_softmax(_full(start_logits.detach()), dim=-1)
    start = log_start.exp()
    divergence = (start * (log_start - log_now)).sum(dim=-1)  # of each token, m x T
    difference = (log_now.detach().exp() - start).abs().sum(dim=-1)
    is_rounding = difference <= 64 * torch.finfo(log_now.dtype).eps
    total = torch.where(counted & ~is_rounding, divergence, 0.0).sum(dim=1)
    return total / counted.sum(dim=1).clamp(min=1)


def per_example(
    logits: Tensor, labels: Tensor, *, problem_type: ProblemType | None = None
) -> Tensor:
    """Loss of each example (m) of a classifier or regressor with logits m x C (or m). The loss of
    a regressor, or of yes/no decisions, is the mean over the C outputs.

    Without `problem_type`, a single logit means squared error, integer labels (m) mean
    cross-entropy, and other labels (m x C) mean independent yes/no decisions.

    >>> per_example(torch.zeros(2, 4), torch.tensor([1, 3]))
    tensor([1.3863, 1.3863])
    >>> per_example(torch.zeros(2, 1), torch.tensor([1.0, 3.0]))
    tensor([1., 9.])
    """
    if logits.ndim == 1:
        logits = logits[:, None]
    logits = _full(logits)
    if problem_type is None:
        if logits.shape[1] == 1:
            problem_type = "regression"
        elif labels.is_floating_point():
            problem_type = "multi_label_classification"
        else:
            problem_type = "single_label_classification"
    if problem_type == "single_label_classification":
        return F.cross_entropy(logits, labels.view(-1), reduction="none")
    labels = labels.view(logits.shape).to(logits.dtype)
    if problem_type == "regression":
        return F.mse_loss(logits, labels, reduction="none").mean(dim=1)
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(dim=1)


def _shifted(labels: Tensor, ignore_index: int) -> Tensor:
    """Move the label of each token to the position before it.

    Shifting the labels rather than the logits saves a copy of the largest tensor.
    """
    return F.pad(labels[:, 1:], (0, 1), value=ignore_index)


def _full(logits: Tensor) -> Tensor:
    """Convert half-precision logits to float32, so that no loss is summed in half precision."""
    if logits.dtype == torch.float64:
        return logits
    return logits.float()
