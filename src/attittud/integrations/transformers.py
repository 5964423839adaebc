"""Hugging Face's `Trainer` with a primary dataset and named auxiliary datasets; also a mixin for
TRL's trainers.

trainer = AttittudTrainer(
    model=model, args=args, train_dataset=primary, auxiliary_datasets={"web": web},
    guide=preset("drop_harmful")
)

class GuidedSFTTrainer(AttittudMixin, SFTTrainer): ...
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from attittud import checkpoint
from attittud.guide import Guide
from attittud.integrations import Latest, missing_extra
from attittud.integrations.auxiliary import JUDGES, AuxiliaryData, Window
from attittud.integrations.objective import LossFunction, TrainerLoss
from attittud.report import Report

try:
    from transformers import Trainer
except ImportError as error:
    raise missing_extra("transformers", error) from error

logger = logging.getLogger("attittud")

# the folder in a Trainer's checkpoint that holds the guide (see attittud.checkpoint) and AUXILIARY
FOLDER = "attittud"
AUXILIARY = "auxiliary.json"


class AttittudMixin(Trainer):  # type: ignore[misc] # transformers has no types for a checker
    """Put this before a `Trainer` class: `train_dataset` is the primary task and guides the
    `auxiliary_datasets`.

    Accumulation, mixed precision, clipping, checkpoints and Accelerate's ways to use several GPUs
    stay the Trainer's own. The logged `loss` is primary_weight * primary loss + the weighted
    auxiliary losses.

    Args:
        auxiliary_datasets: one dataset, or a dict of named datasets. They are repeated as often as
            needed.
        guide: keyword arguments of a `Guide`, such as `preset("flip")` or `{"eta": Eta(...),
            "rank": 5}`.
        auxiliary_collators: collators by name. An auxiliary dataset with its own collator is used
            as it is; the others go through the Trainer's collator and, in TRL, through the
            preparation of its `train_dataset`.
        auxiliary_batch_size: per device; by default the batch size of the primary dataset.
        primary_losses: a function of (model, inputs) that returns per-example losses, in place of
            the Trainer's own loss.
        auxiliary_losses: functions of (model, inputs) by name that return a loss, in place of the
            Trainer's own loss.
        judge_dataset: with eta="auto", primary examples that are not used for training.
    """

    current_gradient_accumulation_steps: int
    packs = False
    """Whether several examples of `train_dataset` may share a row, since none needs a loss of its
    own.
    """
    full_batches = False
    """Whether the last batch of the other datasets is filled up from their next epoch."""

    def __init__(
        self,
        *args: Any,
        auxiliary_datasets: Any,
        guide: Mapping[str, Any],
        auxiliary_collators: Mapping[str, Any] | None = None,
        auxiliary_batch_size: int | None = None,
        primary_losses: LossFunction | None = None,
        auxiliary_losses: Mapping[str, LossFunction] | None = None,
        judge_dataset: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        check_trainer(self)
        self.guide_settings = guide
        self.guide: Guide | None = None
        # Wrong settings are refused before any data is prepared.
        if self.make_guide(self.model).judge_due != (judge_dataset is not None):
            raise ValueError(
                "eta='auto' and judge_dataset=, primary examples that are not in train_dataset, "
                "need each other"
            )
        losses = dict(auxiliary_losses or {})
        self.auxiliary = AuxiliaryData(
            self,
            auxiliary_datasets,
            auxiliary_collators or {},
            auxiliary_batch_size,
            judge_dataset,
            others=losses,
        )
        overridden = type(self).compute_loss is not Trainer.compute_loss
        self.objective = TrainerLoss(self, primary_losses, losses, overrides_loss=overridden)
        self._latest = Latest()
        self._window: Window = {}

    def argument_of(self, name: str) -> str:
        """Return what messages call a dataset."""
        if name == JUDGES:
            return f"{JUDGES}="
        return f"the auxiliary dataset {name!r}"

    def checked_collator(self, name: str, collator: Any) -> Any:
        """Return a collator for a dataset that does what `collator` does, and refuses labels for
        which the model has no output. If this cannot be checked, it is `collator` itself.
        """
        classes = self.objective.classes(name)
        if classes is None:
            return collator
        return partial(collate, collator, self.argument_of(name), classes)

    def make_guide(self, model: nn.Module) -> Guide:
        """Make the guide of a model."""
        return Guide(model, **self.guide_settings)

    @property
    def report(self) -> Report | None:
        """The report of the last step."""
        return self._latest.report

    def get_batch_samples(
        self, epoch_iterator: Any, num_batches: int, device: Any
    ) -> tuple[list[Any], Any]:
        """Fetch the micro-batches of a step as the Trainer does, and draw as many batches from each
        auxiliary dataset.
        """
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._window = self.auxiliary.draw(len(batches), device)
        return batches, items

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> Tensor:
        """Take a primary micro-batch. The last one of a step also takes all auxiliary batches and
        writes the update to `.grad`.

        Returns the loss for the log: primary_weight * primary loss + the weighted auxiliary losses.
        """
        guide = self.guide
        assert guide is not None
        self._begin_micro_batch(model)
        with self.compute_loss_context_manager():
            losses = self.objective.primary(model, self._prepare_inputs(inputs), num_items_in_batch)
        guide.primary(self._scaled(losses))
        total = guide.primary_weight * self._latest.add("primary", losses.detach().mean())
        if not self.accelerator.sync_gradients:
            return total
        if guide.judge_due:
            guide.judge(lambda: self._judges(model))
        # All primary micro-batches of a step contribute to the basis, which the first auxiliary
        # micro-batch fixes.
        for name, (batches, items) in self._window.items():
            weight = guide.auxiliary_weight
            if isinstance(weight, dict):
                weight = weight[name]
            for batch in batches:
                with self.compute_loss_context_manager():
                    loss = self.objective.auxiliary(name, model, self._prepare_inputs(batch), items)
                guide.auxiliary({name: self._scaled(loss)})
                total = total + weight * self._latest.add(name, loss.detach())
        self._latest.take(guide.combine())
        return total

    def _begin_micro_batch(self, model: nn.Module) -> None:
        """Set training mode, as the Trainer does at the beginning of its own step."""
        model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()

    def _judges(self, model: nn.Module) -> Tensor:
        """Draw a batch of judges and return their losses."""
        inputs = self._prepare_inputs(self.auxiliary.streams[JUDGES].draw())
        with self.compute_loss_context_manager():
            return self._scaled(self.objective.primary(model, inputs, None))

    def _scaled(self, loss: Tensor) -> Tensor:
        """Apply the loss scale of float16 training, as `Accelerator.backward` does."""
        scaler = self.accelerator.scaler
        if scaler is not None:
            loss = scaler.scale(loss)
        return loss

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any
    ) -> Any:
        """Make the guide of the prepared model, and the loaders of the auxiliary data. Both continue
        from the checkpoint, if a run is resumed.
        """
        prepared = super()._prepare_for_training(
            max_steps, train_dataloader, resume_from_checkpoint
        )
        self.guide = self.make_guide(prepared[0])
        # The guide sums micro-batches itself, and under FSDP2 every micro-batch must be reduced.
        self.accelerator.gradient_state.plugin_kwargs["sync_each_batch"] = True
        drawn: dict[str, int] = {}
        if resume_from_checkpoint is not None:
            drawn = load_guide(self.guide, Path(resume_from_checkpoint))
        self.auxiliary.begin(drawn)
        self._latest = Latest()
        return prepared

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save the guide, and how many auxiliary batches were drawn, beside the optimizer."""
        super()._save_optimizer_and_scheduler(output_dir)
        assert self.guide is not None
        folder = Path(output_dir, FOLDER)
        checkpoint.save(self.guide, folder, writes=self.args.should_save)
        if self.args.should_save:
            (folder / AUXILIARY).write_text(json.dumps({"drawn": self.auxiliary.drawn}))

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log the loss of each task and the numbers of the report beside the Trainer's loss."""
        if "loss" in logs:
            # The mean over the workers, as the Trainer logs its own loss.
            for name, mean in self._latest.losses().items():
                logs[name] = float(self.accelerator.reduce(mean, "mean"))
            logs |= self._latest.numbers()
        super().log(logs, *args, **kwargs)


class AttittudTrainer(AttittudMixin):
    """Hugging Face's `Trainer` with auxiliary datasets that the primary task guides."""


def collate(collator: Callable[[Any], Any], argument: str, classes: int, rows: Any) -> Any:
    """Make a batch by `collator`, and refuse it if it has a label that is no class of the model.

    The model's own error would name no dataset, and on a GPU not even the label. `argument`: the
    name of the dataset, for the error. `classes`: the number of classes.
    """
    batch = collator(rows)
    labels = None
    if isinstance(batch, Mapping):
        labels = batch.get("labels")
    if isinstance(labels, Tensor) and not labels.is_floating_point():
        wrong = labels[(labels >= classes) | ((labels < 0) & (labels != -100))]
        if wrong.numel():
            raise ValueError(
                f"{argument} has the label {int(wrong[0])}, but the model has outputs for labels "
                f"from 0 to {classes - 1}; correct the labels, or pass auxiliary_losses= for "
                "labels of another kind"
            )
    return batch


def load_guide(guide: Guide, folder: Path) -> dict[str, int]:
    """Load a guide from a Trainer's checkpoint; returns how many batches were drawn from each
    auxiliary dataset.

    The checkpoint of a plain Trainer has no guide. Then the guide stays as it is, and the result
    is empty.
    """
    saved = folder / FOLDER
    if not any(checkpoint.gather(guide, saved.exists())):
        logger.warning(
            "%s is missing: the guide and the auxiliary data start from the beginning", saved
        )
        return {}
    with checkpoint.together(guide):
        content = checkpoint.read_json(saved / AUXILIARY)
        with checkpoint.reading(saved / AUXILIARY):
            drawn = {str(name): int(count) for name, count in content["drawn"].items()}
    checkpoint.load(guide, saved)
    return drawn


def check_trainer(trainer: Any) -> None:
    """Refuse settings of a Trainer under which there are no per-example primary gradients."""
    args = trainer.args
    packed = any(getattr(args, name, False) for name in ("packing", "padding_free"))
    if packed and not trainer.packs:
        raise ValueError(
            "packing=True and padding_free=True join primary examples, which then have no losses "
            "of their own; set both to False. Auxiliary datasets may be packed"
        )
    if args.n_gpu > 1:
        raise ValueError(
            "several GPUs are visible to one process, but nn.DataParallel is not supported; "
            "launch one process per GPU (`torchrun`) or set CUDA_VISIBLE_DEVICES"
        )
    if getattr(args, "activation_offloading", False):
        raise ValueError(
            "activation_offloading=True frees activations that a refresh needs again; use "
            "gradient_checkpointing=True"
        )
    optimizer = str(args.optim)
    if "lomo" in optimizer.lower():
        raise ValueError(
            f"optim={optimizer!r} updates parameters during the backward pass, before gradients "
            "can be decomposed; use optim='adamw_torch'"
        )
    mesh = getattr(trainer.accelerator, "parallelism_config", None)
    for name in ("tp_size", "cp_size", "sp_size"):
        if (getattr(mesh, name, None) or 1) > 1:
            raise ValueError(
                "tp_size, cp_size and sp_size must be 1: tensor, context and sequence parallelism "
                "are not supported; use FSDP2"
            )
