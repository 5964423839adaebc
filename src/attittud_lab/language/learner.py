"""Hugging Face's Trainer with a guard: its settings, its checkpoints, and a log with seconds."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from attittud.integrations.guard import GuardMixin
from attittud.integrations.protected import Forgetting, pad
from attittud_lab.config.schema import Config
from attittud_lab.errors import InputError
from attittud_lab.files import read_json
from attittud_lab.output.progress import Progress

_STATE = "trainer_state.json"  # the last file that the Trainer writes into a checkpoint


class Learner(GuardMixin, Trainer):  # type: ignore[misc]  # transformers has no types
    """Measures before the first step and after the last one too, and calls `record` with every entry of its log.

    `before` are the seconds of training in an earlier process.
    """

    def __init__(self, *args: Any, record: Callable[[Mapping[str, Any]], None], before: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._record, self._seconds, self._since = record, before, time.monotonic()
        self._meter = self.forgetting or Forgetting(self, {})
        self.add_callback(_MeasureEnds(self))
        self.remove_callback(PrinterCallback)

    def seconds(self) -> float:
        """The time of training alone."""
        now = time.monotonic()
        self._seconds, self._since = self._seconds + now - self._since, now
        return self._seconds

    def start_clock(self) -> None:
        self._since = time.monotonic()

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Stop a run that was killed after its last step; the Trainer checks only after a step, and would do one more."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
        else:
            super()._run_epoch(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Measure loss and forgetting like the averages at the end: means over the tokens of texts and replies."""
        self.seconds()
        model = self.accelerator.unwrap_model(self.model_wrapped)
        found = {"eval_loss": self._meter.evaluated(model)}
        if self.forgetting is not None:
            found["eval_forgetting"] = self.forgetting(model)
        self.start_clock()  # measuring is not training
        if self.state.global_step == 0 and not math.isfinite(found["eval_loss"]):
            raise InputError(
                "model: its loss is not a finite number before training; its weights may be damaged, so give another folder"
            )
        self.log(found)
        self.control: Any = self.callback_handler.on_evaluate(self.args, self.state, self.control, found)
        return found

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        super().log(logs | {"seconds": self.seconds()}, *args, **kwargs)
        entry = self.state.log_history[-1]
        if not all(math.isfinite(x) for name, x in entry.items() if name in ("loss", "eval_loss", "eval_forgetting")):
            step = self.state.global_step
            raise InputError(f"language.lr: the loss is no longer a finite number at step {step}; lower language.lr")
        self._record(entry)


class _MeasureEnds(TrainerCallback):  # type: ignore[misc]  # the same
    def __init__(self, trainer: Learner) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.start_clock()
        if state.global_step == 0:
            self.trainer.evaluate()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not any("eval_loss" in entry and entry["step"] == state.global_step for entry in state.log_history):
            self.trainer.evaluate()


class Advancing(TrainerCallback):  # type: ignore[misc]  # the same
    """Moves the progress bar."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        last: Mapping[str, Any] = next((entry for entry in reversed(state.log_history) if "loss" in entry), {})
        self.progress.advance(1, {"loss/primary": last["loss"]} if last else {})


def last_checkpoint(folder: Path) -> tuple[dict[str, Any], str | None]:
    """Return the state and the path of the last complete checkpoint; a killed process may have left an incomplete one."""
    names = ((path.name.removeprefix("checkpoint-"), path) for path in folder.glob("checkpoint-*"))
    numbered = {int(number): path for number, path in names if number.isdecimal()}  # not a copy that somebody made
    for _, path in sorted(numbered.items(), reverse=True):
        try:
            return read_json(path / _STATE), str(path)
        except (InputError, OSError):
            shutil.rmtree(path, ignore_errors=True)
    return {}, None


def make_trainer(
    config: Config,
    model: Any,
    tokenizer: Any,
    rows: Mapping[str, Any],
    device: torch.device,
    folder: Path,
    record: Callable[[Mapping[str, Any]], None],
    state: Mapping[str, Any],
) -> Learner:
    """Make a trainer for rows of tokens; `state` comes from the checkpoint from which it continues."""
    wanted = config.language
    # A file of settings is used for several guards; those that a guard does not use are left out.
    used = {"protect_loss": wanted.guard not in ("none", "kl"), "protect_weight": wanted.guard != "none"}
    names = {"protect_dataset": "protected", "protect_eval_dataset": "protected_validation"}
    return Learner(
        model,
        arguments(config, folder, len(rows["train"]), device),
        train_dataset=rows["train"],
        eval_dataset=rows["validation"],
        data_collator=pad,
        processing_class=tokenizer,
        guard=wanted.guard,
        protect_batch_size=wanted.protect_batch or wanted.batch_size,
        guide={} if wanted.refresh_every is None else {"refresh_every": wanted.refresh_every},
        record=record,
        before=max((float(entry["seconds"]) for entry in state.get("log_history", ())), default=0.0),
        **{name: getattr(wanted, name) for name, uses in used.items() if uses},
        **{name: rows[key] for name, key in names.items() if key in rows},
    )


def arguments(config: Config, folder: Path, examples: int, device: torch.device) -> TrainingArguments:
    """The settings of the Trainer."""
    wanted = config.language
    each = math.ceil(examples / wanted.batch_size)
    steps = wanted.steps if wanted.epochs is None else max(1, round(wanted.epochs * each))
    made = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=wanted.batch_size // wanted.accumulate,
        per_device_eval_batch_size=wanted.batch_size,
        gradient_accumulation_steps=wanted.accumulate,
        learning_rate=(1e-5 if wanted.lora is None else 1e-4) if wanted.lr is None else wanted.lr,
        lr_scheduler_type="constant_with_warmup" if wanted.schedule == "constant" else wanted.schedule,
        warmup_steps=wanted.warmup,
        weight_decay=wanted.weight_decay,
        max_grad_norm=wanted.clip or 0.0,
        bf16=wanted.precision == "bf16",
        gradient_checkpointing=wanted.gradient_checkpointing,
        eval_strategy="steps",
        eval_steps=max(1, steps // wanted.evaluations),
        save_strategy="no" if config.checkpoint_every is None else "steps",
        save_steps=config.checkpoint_every or steps,
        save_total_limit=2,  # while one is written, the one before it is whole
        logging_steps=config.log_every,
        logging_nan_inf_filter=False,
        seed=config.seed % 2**32,
        use_cpu=device.type == "cpu",
        disable_tqdm=True,
        report_to=[],
        remove_unused_columns=False,
        dataloader_pin_memory=device.type == "cuda",
    )
    if made.n_gpu > 1:
        made._n_gpu = 1  # the Trainer would otherwise spread every batch over all GPUs of the machine
    return made
