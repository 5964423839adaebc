"""The loss of Hugging Face's Trainer, as a vector over the examples.

If the model computes its loss from logits and labels, the loss is computed again per example
(`ModelLoss`). Any other loss L of a trainer is a function of the outputs Z of one forward pass, and
row i of Z belongs to example i. So

    l_i = m * <dL/dZ_i, Z_i>        (dL/dZ_i held fixed)

is a vector whose mean has the gradient of L, and whose Jacobian has the m per-example gradients as
rows. A Guide needs nothing else of per-example losses (`Cut`). So every loss of TRL, label
smoothing and a user's own `compute_loss` work unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attittud.autograd.layout import walk
from attittud.losses import per_example, per_sequence

LossFunction = Callable[[nn.Module, dict[str, Any]], Tensor]
# values of `loss_type` in transformers for models whose labels are classes
CLASSIFIERS = [
    f"For{kind}Classification" for kind in ("Sequence", "Token", "Image", "Video", "Audio")
]
# outputs that transformers' models and TRL's fused heads pass to a loss function
OUTPUTS = ("logits", "log_probs")


class TrainerLoss:
    """The loss of a micro-batch, as it is added to the loss of a step: the Trainer's own loss, or a
    user's function.

    The Trainer's rules for accumulation apply to the auxiliary losses too. `overrides_loss`:
    whether `compute_loss` differs from `Trainer.compute_loss`. A user's functions (for auxiliary
    losses: a dict by name) take (model, inputs).
    """

    def __init__(
        self,
        trainer: Any,
        primary: LossFunction | None,
        auxiliary: Mapping[str, LossFunction],
        *,
        overrides_loss: bool,
    ) -> None:
        self.trainer = trainer
        self.primary_losses = primary
        self.auxiliary_losses = auxiliary
        self.from_outputs = (
            overrides_loss
            or trainer.compute_loss_func is not None
            or trainer.label_smoother is not None
        )
        """Whether per-example losses come from the outputs (`Cut`), because the loss is not the
        model's own (`ModelLoss`).
        """
        # DPO has two rows of output for each example: the chosen and the rejected answer.
        is_dpo = any(base.__name__ == "DPOTrainer" for base in type(trainer).__mro__)
        self.rows_per_example = 1
        if is_dpo:
            self.rows_per_example = 2
        self._model_loss: ModelLoss | None = None

    def primary(self, model: nn.Module, inputs: dict[str, Any], items: Any) -> Tensor:
        """Compute per-example losses (m), whose mean is the loss that the micro-batch adds to the
        step. `items`: the number of items of the step, as the Trainer counts them.
        """
        if self.primary_losses is not None:
            return self.primary_losses(model, inputs) / self._micro_batches
        check_batch(inputs)
        if self.from_outputs:
            cut = Cut(model)
            loss = self.trainer.compute_loss(cut, inputs, num_items_in_batch=items)
            name = f"{type(self.trainer).__name__}.compute_loss"
            losses = cut.per_example(loss, self.rows_per_example, name)
        else:
            if self._model_loss is None:
                self._model_loss = ModelLoss(self.trainer, model, inputs)
            losses = self._model_loss(model, inputs, items)
        return losses / self.divisor(items)

    def auxiliary(self, name: str, model: nn.Module, inputs: dict[str, Any], items: Any) -> Tensor:
        """Compute the loss of a micro-batch of dataset `name`, as it is added to the step. `items`:
        as in `primary`, for this dataset.
        """
        if name in self.auxiliary_losses:
            return self.auxiliary_losses[name](model, inputs) / self._micro_batches
        loss: Tensor = self.trainer.compute_loss(model, inputs, num_items_in_batch=items)
        return loss / self.divisor(items)

    def classes(self, name: str) -> int | None:
        """Return the number of classes that labels of dataset `name` can have; None if only its loss
        knows. It is known for classifiers of transformers with their own loss.
        """
        model = self.trainer.model
        if name in self.auxiliary_losses or self.from_outputs:
            return None
        # A class of the user may have an output layer for each dataset.
        is_of_transformers = type(model).__module__.startswith("transformers.")
        if not is_of_transformers or getattr(model, "loss_type", None) not in CLASSIFIERS:
            return None
        kind = getattr(model.config, "problem_type", None)
        if kind not in (None, "single_label_classification") or model.config.num_labels == 1:
            return None
        return int(model.config.num_labels)

    @property
    def _micro_batches(self) -> int:
        return int(self.trainer.current_gradient_accumulation_steps)

    def divisor(self, items: Any) -> int:
        """Return the number by which the Trainer divides a loss under accumulation: the number of
        micro-batches, or 1 if the loss is already divided. `items`: as in `primary`.
        """
        trainer = self.trainer
        is_divided = getattr(trainer, "loss_is_scaled_for_ga", None)  # since transformers 5.19
        if is_divided is None:
            counts_items = trainer.model_accepts_loss_kwargs and items is not None
            is_divided = counts_items or trainer.compute_loss_func is not None
        if is_divided:
            return 1
        return self._micro_batches


def shifts_labels(trainer: Any) -> bool:
    """Whether token t is probably predicted at position t - 1, as in causal language models."""
    return bool(trainer._loss_shifts_labels or getattr(trainer.model, "loss_type", None) is None)


def check_batch(inputs: Any) -> None:
    """Refuse a primary batch in which rows are not examples, because several share a row."""
    packed = any(name in inputs for name in ("cu_seq_lens_q", "seq_idx", "seq_lengths"))
    # Examples in a single row without padding are told apart by their positions alone.
    has_positions_alone = "position_ids" in inputs and "attention_mask" not in inputs
    if packed or (has_positions_alone and inputs["input_ids"].shape[0] == 1):
        raise ValueError(
            "the primary batch is packed or padding-free, so its examples have no losses of their "
            "own; use a padding collator for train_dataset"
        )


def check_logits(outputs: Any, model: Any) -> Tensor:
    """Return the logits of a model's outputs; refuse outputs without any."""
    logits = getattr(outputs, "logits", None)
    if not isinstance(logits, Tensor):
        raise ValueError(
            f"{type(model).__name__} returned no logits for a primary batch, as fused losses do; set "
            "liger_kernel_config={'fused_linear_cross_entropy': False}, or pass primary_losses="
        )
    return logits


class ModelLoss:
    """Per-example losses from logits and labels. Their mean is the loss that the model itself would
    have returned.

    So long sequences weigh as much as under the stock Trainer, which averages over tokens. A
    comparison with the model's own loss on a first batch shows whether the loss shifts labels, and
    whether it is divided by `num_items_in_batch` (some models accept this argument but ignore it).
    A loss that matches no form is refused.
    """

    def __init__(self, trainer: Any, model: nn.Module, inputs: dict[str, Any]) -> None:
        self.trainer = trainer
        if "labels" not in inputs:
            raise ValueError(
                f"the primary batch has no 'labels' (it has {', '.join(sorted(inputs))}); pass "
                "primary_losses="
            )
        self.shift, self.divides_by_items = self._compare(model, inputs)

    def __call__(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any) -> Tensor:
        """Compute the losses (m) of a micro-batch in a forward pass without labels.

        Each is m / total times the example's loss summed over its tokens, so their mean is Σ /
        total. Here total is the number of tokens of the micro-batch, or `num_items_in_batch` if the
        model divides by that.
        """
        # Models with a fused loss return logits only if the forward pass gets no labels.
        others = dict(inputs)
        labels = others.pop("labels")
        logits = check_logits(model(**others), self.trainer.model)
        losses, total = self._sums(logits, labels, self.shift)
        if self.divides_by_items and num_items_in_batch is not None:
            # The Trainer divides by the tokens of all micro-batches on all workers, whose gradients
            # DDP then averages.
            total = num_items_in_batch
            if self.trainer.args.average_tokens_across_devices:
                total = total / self.trainer.accelerator.num_processes
        return losses * (losses.shape[0] / total)

    def _sums(self, logits: Tensor, labels: Tensor, shift: bool) -> tuple[Tensor, Tensor | int]:
        """Return the losses summed over the tokens of each example (m), and the number of tokens. If
        an example has a single label, it counts as one token.
        """
        labels = labels.to(logits.device)
        if logits.ndim == 3 and labels.ndim == 2:
            count = labels[:, int(shift) :].ne(-100).sum()
            return per_sequence(logits, labels, shift=shift, reduction="sum"), count
        kind = getattr(getattr(self.trainer.model, "config", None), "problem_type", None)
        return per_example(logits, labels, problem_type=kind), labels.shape[0]

    def _compare(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[bool, bool]:
        """Find out by the first batch whether the model's loss shifts labels, and whether it is
        divided by the number of items: returns both. A loss that matches neither form is refused.
        """
        labels = inputs["labels"]
        model.eval()  # without dropout, so that the run's random numbers do not change
        with torch.no_grad(), self.trainer.compute_loss_context_manager():
            outputs = model(**inputs)
            logits = check_logits(outputs, self.trainer.model)
            model_loss = float(outputs.loss)
            divides = False
            if self.trainer.model_accepts_loss_kwargs:
                # With a huge number of items the loss nearly vanishes, unless the model ignores the
                # argument.
                many = labels.new_tensor(1 << 20, dtype=torch.int64)
                divides = float(model(**inputs, num_items_in_batch=many).loss) < model_loss / 2
        model.train()
        probable = shifts_labels(self.trainer)
        means = {}  # the mean loss, if labels are shifted and if they are not
        for shift in (probable, not probable):
            losses, total = self._sums(logits, labels, shift)
            means[shift] = float(losses.sum() / total)
        # on a tie the first, more likely form
        best = min(means, key=lambda shift: abs(means[shift] - model_loss))
        tolerance = 1e-4
        if logits.dtype.itemsize < 4:
            tolerance = 1e-2
        if not abs(means[best] - model_loss) <= tolerance * abs(model_loss):
            raise ValueError(
                f"the loss of {type(self.trainer.model).__name__} ({model_loss:.5g}) is not what "
                f"its logits and labels give ({means[best]:.5g}); pass primary_losses=, a function "
                "of (model, inputs) that returns one loss per example"
            )
        return best, divides


class Cut:
    """Replaces a model while a loss is computed from its outputs. The forward pass is the model's
    own.

    The graph is cut at the outputs: the loss is computed from detached copies.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._cuts: list[tuple[Tensor, Tensor]] = []  # outputs with their detached copies

    @property  # type: ignore[misc]  # isinstance may see another type, on purpose
    def __class__(self) -> type:
        """The model's class: loss functions check whether a model is a PEFT or a wrapped model, and
        shift labels accordingly.
        """
        return type(self._model)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's forward pass. With gradients enabled, replace its `OUTPUTS` by detached
        copies, and keep both.
        """
        outputs = self._model(*args, **kwargs)
        if not torch.is_grad_enabled():
            return outputs
        for name in OUTPUTS:
            value = getattr(outputs, name, None)
            if isinstance(value, Tensor) and value.requires_grad:
                leaf = value.detach().requires_grad_()
                self._cuts.append((value, leaf))
                outputs[name] = leaf
        return outputs

    def per_example(self, loss: Tensor, rows_per_example: int, whose: str) -> Tensor:
        """Divide `loss`, which was computed from the detached outputs, among the examples: returns m
        losses with its mean and its gradients, as the formula at the top of this file says.

        Args:
            loss: a scalar.
            rows_per_example: how many rows of the outputs belong to an example. These rows are m
                apart (chosen answers first, then the rejected ones).
            whose: names the loss, for the error.
        """
        leaves = [leaf for _, leaf in self._cuts]
        if not leaves or not walk(loss).leaves <= {id(leaf) for leaf in leaves}:
            raise ValueError(
                f"the loss of {whose} is not a function of the model's {' or '.join(OUTPUTS)} "
                "alone, so it cannot be divided among the examples; turn off losses inside the "
                "model (use_liger_kernel=False, router_aux_loss_coef=0), or pass primary_losses="
            )
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        shares = torch.zeros((), dtype=loss.dtype, device=loss.device)
        for (value, _), gradient in zip(self._cuts, gradients, strict=True):
            if gradient is not None:
                # Rows i, i + m, ... belong to example i.
                examples = value.shape[0] // rows_per_example
                products = (gradient * value).reshape(rows_per_example, examples, -1)
                shares = shares + examples * products.sum(dim=(0, 2)).to(loss.dtype)
        # The constant makes the mean of the values the value of `loss`.
        return shares + (loss - shares.mean()).detach()
