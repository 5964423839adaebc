"""Hugging Face's `Trainer` with a primary and named auxiliary datasets; as a mixin also for TRL's trainers.

trainer = AttittudTrainer(
    model=model, args=args, train_dataset=primary, auxiliary_datasets={"web": web}, guide=preset("drop_harmful")
)

class GuidedSFTTrainer(AttittudMixin, SFTTrainer): ...
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from attittud.guide import Guide
from attittud.integrations.auxiliary import JUDGES, AuxiliaryData, Window
from attittud.integrations.logs import Latest
from attittud.integrations.objective import LossFunction, Objective
from attittud.integrations.refusals import check_judges, check_trainer
from attittud.integrations.state import load_guide, save_guide
from attittud.report import Report

try:
    from transformers import Trainer
except ImportError as error:
    raise ImportError(
        f"attittud.integrations.transformers needs the extra 'transformers': pip install 'attittud[transformers]' ({error})"
    ) from error


class AttittudMixin(Trainer):  # type: ignore[misc] # transformers has no types for a checker
    """Put before a `Trainer` class: `train_dataset` is the primary task, `auxiliary_datasets` are judged by it.

    Accumulation, mixed precision, clipping, checkpoints and Accelerate's ways to use several GPUs stay the Trainer's own.
    The loss in its log is the summed objective, primary_weight * primary + the weighted auxiliary losses.

    Args:
        auxiliary_datasets: one dataset, or a dict of named ones. They are gone through again and again.
        guide: keyword arguments of a `Guide`, such as `preset("flip")` or `{"eta": Eta(...), "rank": 5}`.
        auxiliary_collators: collators by name. An auxiliary dataset with one of its own is taken as it is; the others go
            through the Trainer's collator and, in TRL, through the preparation of its `train_dataset`.
        auxiliary_batch_size: per device; that of the primary dataset unless given.
        primary_losses: returns per-example losses from (model, inputs), in place of the Trainer's own loss.
        auxiliary_losses: functions by name that return a loss from (model, inputs), in place of the Trainer's own.
        judge_dataset: with eta="auto", primary examples that are kept out of training.
    """

    current_gradient_accumulation_steps: int

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
        self.guide_settings = dict(guide)
        # Wrong settings are told before any data is prepared.
        check_judges(Guide(self.model, **self.guide_settings), judge_dataset)
        own_losses = dict(auxiliary_losses or {})
        self.auxiliary = AuxiliaryData(
            self,
            auxiliary_datasets,
            auxiliary_collators or {},
            auxiliary_batch_size,
            judges=judge_dataset,
            known=own_losses,
        )
        self.objective = Objective(
            self,
            own=type(self).compute_loss is not Trainer.compute_loss,
            primary_losses=primary_losses,
            auxiliary_losses=own_losses,
        )
        self.guide: Guide | None = None
        self._latest = Latest()
        self._window: Window = {}

    @property
    def report(self) -> Report | None:
        """What the last step found."""
        return self._latest.report

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._window = self.auxiliary.draw(len(batches), device)
        return batches, items

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        guide = self.guide
        assert guide is not None
        model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        with self.compute_loss_context_manager():
            losses = self.objective.primary(model, self._prepare_inputs(inputs), num_items_in_batch)
        guide.primary(self._scaled(losses))
        total = guide.primary_weight * self._latest.add("primary", losses.detach().mean())
        if not self.accelerator.sync_gradients:
            return total
        if guide.judge_due:
            guide.judge(lambda: self._judges(model))
        # The basis adds up over all primary micro-batches of a window and is fixed by the first auxiliary one.
        for name, (batches, items) in self._window.items():
            weights = guide.auxiliary_weight
            weight = weights[name] if isinstance(weights, dict) else weights
            for batch in batches:
                with self.compute_loss_context_manager():
                    loss = self.objective.auxiliary(name, model, self._prepare_inputs(batch), items)
                guide.auxiliary({name: self._scaled(loss)})
                total = total + weight * self._latest.add(name, loss.detach())
        self._latest.take(guide.combine())
        return total

    def _judges(self, model: nn.Module) -> Tensor:
        inputs = self._prepare_inputs(self.auxiliary.streams[JUDGES].draw())
        with self.compute_loss_context_manager():
            return self._scaled(self.objective.primary(model, inputs, None))

    def _scaled(self, loss: Tensor) -> Tensor:
        scaler = self.accelerator.scaler
        return loss if scaler is None else scaler.scale(loss)

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        self.guide = Guide(prepared[0], **self.guide_settings)
        # The guide adds up micro-batches itself and under FSDP2 needs each of them reduced.
        self.accelerator.gradient_state.plugin_kwargs["sync_each_batch"] = True
        resumed = resume_from_checkpoint is not None
        self.auxiliary.begin(load_guide(self.guide, Path(resume_from_checkpoint)) if resumed else {})
        self._latest = Latest()
        return prepared

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        assert self.guide is not None
        save_guide(self.guide, Path(output_dir), self.auxiliary.drawn, writes=self.args.should_save)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs and self.report is not None:
            # As its own loss, the Trainer's log shows the mean over the workers.
            logs |= {name: float(self.accelerator.reduce(mean, "mean")) for name, mean in self._latest.losses().items()}
            logs |= self._latest.numbers()
        super().log(logs, *args, **kwargs)


class AttittudTrainer(AttittudMixin):
    """Hugging Face's `Trainer` with auxiliary datasets that the primary task judges."""
