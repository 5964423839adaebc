"""Hugging Face's `Trainer` with a primary and named auxiliary datasets; as a mixin also for TRL's trainers.

trainer = AttittudTrainer(
    model=model, args=args, train_dataset=primary, auxiliary_datasets={"web": web}, guide=preset("drop_harmful")
)

class GuidedSFTTrainer(AttittudMixin, SFTTrainer): ...
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_saver import save

from attittud import checkpoint
from attittud.guide import SINGLE, Guide
from attittud.integrations.cut import Cut
from attittud.integrations.logs import Latest
from attittud.integrations.objective import ModelLoss
from attittud.integrations.refusals import check_batch, check_trainer
from attittud.integrations.streams import Shuffled, Stream
from attittud.report import Report

try:
    from accelerate import skip_first_batches
    from transformers import Trainer
except ImportError as error:
    raise ImportError(
        f"attittud.integrations.transformers needs the extra 'transformers': pip install 'attittud[transformers]' ({error})"
    ) from error

logger = logging.getLogger("attittud")

LossFunction = Callable[[nn.Module, dict[str, Any]], Tensor]

STATE_FILE = "attittud.pt"  # beside the Trainer's own files in a checkpoint


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
    """

    data_collator: Any
    current_gradient_accumulation_steps: int

    rows_per_example = 1
    """Rows of the model's output that belong to one primary example; DPO has two, the chosen and the rejected answer."""

    def __init__(
        self,
        *args: Any,
        auxiliary_datasets: Any,
        guide: Mapping[str, Any],
        auxiliary_collators: Mapping[str, Any] | None = None,
        auxiliary_batch_size: int | None = None,
        primary_losses: LossFunction | None = None,
        auxiliary_losses: Mapping[str, LossFunction] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        check_trainer(self)
        if any(base.__name__ == "DPOTrainer" for base in type(self).__mro__):
            self.rows_per_example = 2
        self.guide_settings = dict(guide)
        Guide(self.model, **self.guide_settings)  # wrong settings are told before any data is prepared
        named = auxiliary_datasets if isinstance(auxiliary_datasets, Mapping) else {SINGLE: auxiliary_datasets}
        self.auxiliary_collators = dict(auxiliary_collators or {})
        self.auxiliary_losses = dict(auxiliary_losses or {})
        for name in self.auxiliary_collators.keys() | self.auxiliary_losses.keys():
            if name not in named:
                raise ValueError(f"there is no auxiliary dataset {name!r}, only {', '.join(map(repr, named))}")
        self.auxiliary_datasets = {name: self._prepare_auxiliary(name, data) for name, data in named.items()}
        self.auxiliary_batch_size = auxiliary_batch_size
        self.primary_losses = primary_losses
        self.guide: Guide | None = None
        self._latest = Latest()
        self._streams: dict[str, Stream] = {}
        self._window: dict[str, tuple[list[Any], Any]] = {}
        self._sums: dict[str, Tensor] = {}
        self._steps = 0
        self._model_loss: ModelLoss | None = None

    @property
    def report(self) -> Report | None:
        """What the last step found."""
        return self._latest.report

    # ------------------------------------------------------------------------------------------- a step

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._window = {}
        for name, stream in self._streams.items():
            drawn = [stream.draw() for _ in batches]
            self._window[name] = drawn, self._get_num_items_in_batch(drawn, device)
        return batches, items

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        guide = self.guide
        assert guide is not None
        model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        with self.compute_loss_context_manager():
            losses = self._primary(model, self._prepare_inputs(inputs), num_items_in_batch)
        guide.primary(self._scaled(losses))
        total = guide.primary_weight * self._note("primary", losses.detach().mean())
        if not self.accelerator.sync_gradients:
            return total
        # The basis adds up over all primary micro-batches of a window and is fixed by the first auxiliary one.
        for name, (batches, items) in self._window.items():
            weights = guide.auxiliary_weight
            weight = weights[name] if isinstance(weights, dict) else weights
            for batch in batches:
                with self.compute_loss_context_manager():
                    loss = self._auxiliary(name, model, self._prepare_inputs(batch), items)
                guide.auxiliary({name: self._scaled(loss)})
                total = total + weight * self._note(name, loss.detach())
        self._latest.take(guide.combine())
        self._steps += 1
        return total

    def _primary(self, model: nn.Module, inputs: dict[str, Any], items: Any) -> Tensor:
        """Per-example losses; their mean is what this micro-batch adds to the loss of the window."""
        if self.primary_losses is not None:
            return self.primary_losses(model, inputs) / self.current_gradient_accumulation_steps
        check_batch(inputs)
        own = type(self).compute_loss is not Trainer.compute_loss
        if own or self.compute_loss_func is not None or self.label_smoother is not None:
            cut = Cut(model)
            loss: Tensor = self.compute_loss(cut, inputs, num_items_in_batch=items)
            losses = cut.share_out(loss, self.rows_per_example, f"{type(self).__name__}.compute_loss")
        else:
            if self._model_loss is None:
                self._model_loss = ModelLoss(self, model, inputs)
            losses = self._model_loss(model, inputs, items)
        return losses / self._divisor(items)

    def _auxiliary(self, name: str, model: nn.Module, inputs: dict[str, Any], items: Any) -> Tensor:
        """What an auxiliary micro-batch adds to the loss of the window."""
        if name in self.auxiliary_losses:
            return self.auxiliary_losses[name](model, inputs) / self.current_gradient_accumulation_steps
        loss: Tensor = self.compute_loss(model, inputs, num_items_in_batch=items)
        return loss / self._divisor(items)

    def _divisor(self, items: Any) -> int:
        """By what the Trainer divides a loss under accumulation: nothing, where it was already scaled."""
        scaled = getattr(self, "loss_is_scaled_for_ga", None)  # since transformers 5.19
        if scaled is None:
            scaled = (self.model_accepts_loss_kwargs and items is not None) or self.compute_loss_func is not None
        return 1 if scaled else self.current_gradient_accumulation_steps

    def _scaled(self, loss: Tensor) -> Tensor:
        scaler = self.accelerator.scaler
        return loss if scaler is None else scaler.scale(loss)

    def _note(self, name: str, loss: Tensor) -> Tensor:
        self._sums[name] = self._sums[name] + loss if name in self._sums else loss
        return loss

    # ------------------------------------------------------------------------------------------- data and state

    def _prepare_auxiliary(self, name: str, data: Any) -> Any:
        """TRL tokenizes inside its trainers; auxiliary datasets are treated the same."""
        prepare = getattr(self, "_prepare_dataset", None)
        if prepare is None or name in self.auxiliary_collators:
            return data
        more = {"packing": False, "formatting_func": self._formatting_func} if hasattr(self, "_formatting_func") else {}
        return prepare(data, processing_class=self.processing_class, args=self.args, dataset_name=name, **more)

    def _stream(self, name: str, drawn: int) -> Stream:
        data: Any = self.auxiliary_datasets[name]
        collator: Any = self.data_collator
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        shuffled = Shuffled(data, seed, name) if hasattr(data, "__len__") else None
        self.data_collator = self.auxiliary_collators.get(name, collator)
        try:
            loader = self._get_dataloader(
                data,
                description=f"auxiliary {name!r}",
                batch_size=self.auxiliary_batch_size or self._train_batch_size,
                sampler_fn=lambda _: shuffled,
                is_training=True,
            )
        finally:
            self.data_collator = collator
        return Stream(loader, name, shuffled, skip_first_batches, drawn)

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        self.guide = Guide(prepared[0], **self.guide_settings)
        # The guide adds up micro-batches itself and under FSDP2 needs each of them reduced.
        self.accelerator.gradient_state.plugin_kwargs["sync_each_batch"] = True
        drawn = dict.fromkeys(self.auxiliary_datasets, 0)
        if resume_from_checkpoint is not None:
            drawn |= self._load_guide(Path(resume_from_checkpoint) / STATE_FILE)
        self._streams = {name: self._stream(name, drawn[name]) for name in self.auxiliary_datasets}
        self._latest, self._sums, self._steps = Latest(), {}, 0
        return prepared

    def _load_guide(self, file: Path) -> dict[str, int]:
        if not file.is_file():
            logger.warning("%s is missing: the basis and the order of the auxiliary data start anew", file)
            return {}
        assert self.guide is not None
        state = torch.load(file, map_location="cpu", weights_only=True)
        if state["guide"] is None:
            checkpoint.load(self.guide, file.with_suffix(""))
        else:
            self.guide.load_state_dict(state["guide"])
        return dict(state["drawn"])

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        assert self.guide is not None
        file = Path(output_dir) / STATE_FILE
        if self.is_fsdp_enabled:
            # Each worker has a shard of the basis: a folder beside, which another number of workers can go on from.
            save({"guide": checkpoint.entries(self.guide)}, checkpoint_id=file.with_suffix(""))
        state = {
            "guide": None if self.is_fsdp_enabled else self.guide.state_dict(),
            "drawn": {name: stream.drawn for name, stream in self._streams.items()},
        }
        if self.args.should_save:
            torch.save(state, file)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs and self._latest.report is not None:
            logs |= {f"loss_{name}": float(total) / max(1, self._steps) for name, total in self._sums.items()}
            logs |= self._latest.numbers()
            self._sums, self._steps = {}, 0
        super().log(logs, *args, **kwargs)


class AttittudTrainer(AttittudMixin):
    """Hugging Face's `Trainer` with auxiliary datasets that the primary task judges."""
