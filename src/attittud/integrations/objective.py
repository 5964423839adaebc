"""The loss that Hugging Face's Trainer takes from a model, as a vector over the examples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attittud.integrations.refusals import check_logits
from attittud.losses import per_example, per_sequence


class ModelLoss:
    """Per-example losses from logits and labels. Their mean is the loss that the model itself would have returned.

    So long sequences weigh as much as under the stock Trainer, which averages over tokens. What that loss is (whether labels
    are shifted, whether it is divided by `num_items_in_batch`: not all models that take the argument do so) is not told by
    names but found by comparison with the model's own loss on a first batch; a loss that matches nothing is refused.
    """

    def __init__(self, trainer: Any, model: nn.Module, inputs: dict[str, Any]) -> None:
        self.trainer = trainer
        if "labels" not in inputs:
            raise ValueError(
                f"the primary batch has no 'labels' (it has {', '.join(sorted(inputs))}); pass primary_losses=, a function of "
                "(model, inputs) that returns one loss per example"
            )
        self.shift, self.divides_by_items = self._compare(model, inputs)

    def __call__(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any) -> Tensor:
        """Without labels in the forward pass: models with a fused loss then return logits."""
        outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
        losses, total = self._sums(check_logits(outputs, self.trainer.model), inputs["labels"], self.shift)
        if self.divides_by_items and num_items_in_batch is not None:
            # The Trainer's rule: by the tokens of the whole window on all workers, whose gradients DDP then averages.
            workers = self.trainer.accelerator.num_processes if self.trainer.args.average_tokens_across_devices else 1
            total = num_items_in_batch / workers
        return losses * (losses.shape[0] / total)

    def _sums(self, logits: Tensor, labels: Tensor, shift: bool) -> tuple[Tensor, Tensor | int]:
        """Losses summed over the tokens of each example, and over how many tokens."""
        labels = labels.to(logits.device)
        if logits.ndim == 3 and labels.ndim == 2:
            count = (labels[:, 1:] if shift else labels).ne(-100).sum()
            return per_sequence(logits, labels, shift=shift, reduction="sum"), count
        kind = getattr(getattr(self.trainer.model, "config", None), "problem_type", None)
        return per_example(logits, labels, problem_type=kind), labels.shape[0]

    def _compare(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[bool, bool]:
        labels = inputs["labels"]
        model.eval()  # no dropout: the run's random numbers are not touched
        with torch.no_grad(), self.trainer.compute_loss_context_manager():
            outputs = model(**inputs)
            logits, own = check_logits(outputs, self.trainer.model), float(outputs.loss)
            divides = False
            if self.trainer.model_accepts_loss_kwargs:
                # Divided by far too many items the loss all but vanishes; a model that ignores them stays with its mean.
                many = labels.new_tensor(1 << 20, dtype=torch.int64)
                divides = float(model(**inputs, num_items_in_batch=many).loss) < own / 2
        model.train()
        causal = self.trainer._loss_shifts_labels or getattr(self.trainer.model, "loss_type", None) is None
        found = {}
        for shift in (causal, not causal):
            losses, total = self._sums(logits, labels, shift)
            found[shift] = float(losses.sum() / total)
        best = min(found, key=lambda shift: abs(found[shift] - own))  # ties: the likely one, which stands first
        tolerance = 1e-4 if logits.dtype.itemsize >= 4 else 1e-2
        if not abs(found[best] - own) <= tolerance * abs(own):
            raise ValueError(
                f"the loss of {type(self.trainer.model).__name__} ({own:.5g}) is not what its logits and labels give "
                f"({found[best]:.5g}): it has further terms or another form. Pass primary_losses=, a function of (model, "
                "inputs) that returns one loss per example"
            )
        return best, divides
