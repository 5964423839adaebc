"""Hugging Face's `Trainer` with a primary dataset and named auxiliary datasets; also a mixin for
TRL's trainers.

trainer = AttittudTrainer(
    model=model, args=args, train_dataset=primary, auxiliary_datasets={"web": web},
    guide=preset("drop_harmful")
)

class GuidedSFTTrainer(AttittudMixin, SFTTrainer): ...
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from attittud import checkpoint
from attittud.guide import Guide
from attittud.integrations import Latest, check_settings, meant
from attittud.integrations.auxiliary import JUDGES, AuxiliaryData, CheckedLabels, Window
from attittud.integrations.objective import LossFunction, TrainerLoss
from attittud.report import Report

try:
    from transformers import Trainer
except ImportError as error:
    raise ImportError(
        f"attittud.integrations.transformers needs the extra 'transformers': pip install 'attittud[transformers]', or in a "
        f"checkout pip install '.[transformers]' ({error})"
    ) from error

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
    # whether several examples of `train_dataset` may share a row, since none needs a loss of its
    # own
    packs = False
    full_batches = (
        False  # whether the last batch of the other datasets is filled up from their next epoch
    )

    def __init__(
        self,
        *args: Any,
        auxiliary_datasets: Any = None,
        guide: Mapping[str, Any] | None = None,
        auxiliary_collators: Mapping[str, Any] | None = None,
        auxiliary_batch_size: int | None = None,
        primary_losses: LossFunction | None = None,
        auxiliary_losses: Mapping[str, LossFunction] | None = None,
        judge_dataset: Any = None,
        **kwargs: Any,
    ) -> None:
        check_arguments(type(self), kwargs)
        if auxiliary_datasets is None:
            raise TypeError(
                f"{type(self).__name__} needs auxiliary_datasets=, one dataset or a dict of named datasets"
            )
        settings = check_settings(guide, "guide")
        super().__init__(*args, **kwargs)
        self.guide_settings = settings
        self.check()
        self.guide: Guide | None = None
        # Wrong settings are refused before any data is prepared.
        check_judges(self.make_guide(self.model), judge_dataset)
        collators = auxiliary_collators or {}
        own_losses = dict(auxiliary_losses or {})
        self.auxiliary = AuxiliaryData(
            self,
            auxiliary_datasets,
            collators,
            auxiliary_batch_size,
            judge_dataset,
            others=own_losses,
        )
        overridden = type(self).compute_loss is not Trainer.compute_loss
        self.objective = TrainerLoss(self, primary_losses, own_losses, overrides_loss=overridden)
        self._latest = Latest()
        self._window: Window = {}

    def check(self) -> None:
        """Refuse settings of the Trainer that do not work, before any data is prepared."""
        check_trainer(self)

    def argument_of(self, name: str) -> str:
        """How messages call a dataset."""
        return f"{JUDGES}=" if name == JUDGES else f"the auxiliary dataset {name!r}"

    def collator_of(self, name: str, collator: Any, *, trains: bool) -> Any:
        """Return the collator of a dataset, in place of the one that it would have."""
        classes = self.objective.classes(name)
        if classes is None:
            return collator
        return CheckedLabels(collator, self.argument_of(name), classes)

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
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._window = self.auxiliary.draw(len(batches), device)
        return batches, items

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> Tensor:
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
        # All primary micro-batches of a step contribute to the basis, which the first auxiliary
        # micro-batch fixes.
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

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any
    ) -> Any:
        prepared = super()._prepare_for_training(
            max_steps, train_dataloader, resume_from_checkpoint
        )
        self.guide = self.make_guide(prepared[0])
        # The guide sums micro-batches itself, and under FSDP2 every micro-batch must be reduced.
        self.accelerator.gradient_state.plugin_kwargs["sync_each_batch"] = True
        resumed = resume_from_checkpoint is not None
        self.auxiliary.begin(
            load_guide(self.guide, Path(resume_from_checkpoint)) if resumed else {}
        )
        self._latest = Latest()
        return prepared

    def train(self, *args: Any, **kwargs: Any) -> Any:
        output = super().train(*args, **kwargs)
        if self.is_world_process_zero():
            self._latest.warn_if_dropped()
        return output

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        assert self.guide is not None
        drawn = {AUXILIARY: {"drawn": self.auxiliary.drawn}}
        checkpoint.save(
            self.guide, Path(output_dir, FOLDER), writes=self.args.should_save, files=drawn
        )

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            # The mean over the workers, as the Trainer logs its own loss.
            logs |= {
                name: float(self.accelerator.reduce(mean, "mean"))
                for name, mean in self._latest.losses().items()
            }
            logs |= self._latest.numbers()
        super().log(logs, *args, **kwargs)


class AttittudTrainer(AttittudMixin):
    """Hugging Face's `Trainer` with auxiliary datasets that the primary task guides."""


def load_guide(guide: Guide, folder: Path) -> dict[str, int]:
    """Load a guide; returns how many batches were drawn. A checkpoint of a plain Trainer lacks
    these files.
    """
    saved = folder / FOLDER
    with checkpoint.together(guide):
        if len(set(checkpoint.gather(guide, str(saved.exists())))) > 1:
            raise FileNotFoundError(
                f"{saved}: not all workers find this folder; copy the checkpoint to all of them"
            )
        if not saved.exists():
            logger.warning(
                "%s is missing: the guide and the auxiliary data start from the beginning", saved
            )
            return {}
        content = checkpoint.read_json(saved / AUXILIARY)
        with checkpoint.reading(saved / AUXILIARY):
            drawn = _check_drawn(content["drawn"])
    checkpoint.load(guide, saved)
    return drawn


def _check_drawn(drawn: Any) -> dict[str, int]:
    if not isinstance(drawn, dict) or not all(
        type(count) is int and count >= 0 for count in drawn.values()
    ):
        raise TypeError(
            "'drawn' must hold the number of batches that were drawn from each auxiliary dataset"
        )
    return drawn


# ----------------------------------------------------------------------------------------- refusals

FSDP2 = """\
distributed_type: FSDP
mixed_precision: bf16
num_machines: 1
num_processes: 8  # GPUs
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_cpu_ram_efficient_loading: false
"""


def check_trainer(trainer: Any) -> None:
    """Refuse settings of a Trainer under which there are no per-example primary gradients."""
    args = trainer.args
    accelerator = trainer.accelerator
    launch = f"with `accelerate launch --config_file fsdp2.yaml`, where fsdp2.yaml is:\n{FSDP2}"
    if trainer.is_deepspeed_enabled:
        raise ValueError(
            "DeepSpeed is not supported: its engine keeps gradients in its own buffers, hides .grad and allows one backward "
            "pass per forward pass, so nothing can be decomposed. FSDP2 shards parameters, gradients and optimizer state as "
            f"ZeRO-3 does. Drop deepspeed= and launch {launch}"
        )
    if trainer.is_fsdp_enabled and getattr(accelerator.state.fsdp_plugin, "fsdp_version", 1) != 2:
        raise ValueError(
            "FSDP of version 1 keeps parameters in its own flat buffers, which cannot be decomposed; FSDP2 works. Launch "
            f"{launch}"
        )
    if not trainer.packs:
        for name, holder in {"packing": args, "padding_free": trainer}.items():
            if getattr(holder, name, False):
                raise ValueError(
                    f"{name}=True does not work for the primary data: primary examples that share a row have no losses of "
                    f"their own. Set {name}=False; auxiliary datasets may be packed (trl.pack_dataset, with "
                    "DataCollatorForLanguageModeling(padding_free=True) in auxiliary_collators)"
                )
    if args.n_gpu > 1:
        raise ValueError(
            "several GPUs are visible to one process, so the Trainer would use nn.DataParallel, which is not supported; launch "
            "one process per GPU (`accelerate launch` or `torchrun`), or set CUDA_VISIBLE_DEVICES"
        )
    if getattr(args, "activation_offloading", False):
        raise ValueError(
            "activation_offloading=True frees activations after one backward pass, but a refresh needs several; use "
            "gradient_checkpointing=True instead"
        )
    if "lomo" in str(args.optim).lower():
        raise ValueError(
            f"optim={args.optim!r} updates parameters during the backward pass, before gradients can be decomposed; use "
            "optim='adamw_torch'"
        )
    mesh = getattr(accelerator, "parallelism_config", None)
    for name in ("tp_size", "cp_size", "sp_size"):
        size = getattr(mesh, name, None) or 1
        if size > 1:
            raise ValueError(
                f"{name}={size}: tensor, context and sequence parallelism are not supported; use FSDP2"
            )


def check_arguments(trainer: type[AttittudMixin], others: Iterable[str]) -> None:
    """Refuse a misspelt argument of the mixin; `others` are the arguments that would go to the
    Trainer.
    """
    mixed = [base for base in trainer.__mro__ if issubclass(base, AttittudMixin)]
    of_mixin = {name for base in mixed for name in _arguments(base)}
    possible = of_mixin.union(*(_arguments(base) for base in trainer.__mro__ if base not in mixed))
    for name in others:
        if name not in possible and (hint := meant(name, of_mixin)):
            raise TypeError(
                f"{trainer.__name__} has no argument {name!r}{hint}; correct its spelling"
            )


def _arguments(base: type) -> Iterator[str]:
    """The names of the arguments that the constructor of this class itself has."""
    if base is not object and "__init__" in vars(base):
        for name, argument in inspect.signature(base.__init__).parameters.items():  # type: ignore[misc]  # of this very class
            if (
                argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)
                and name != "self"
            ):
                yield name


def check_judges(guide: Guide, judge_dataset: Any) -> None:
    """Refuse eta="auto" without judges, and judges without eta="auto"."""
    if guide.judge_due and judge_dataset is None:
        raise ValueError(
            "eta='auto' needs judges: pass judge_dataset=, primary examples that are not in train_dataset"
        )
    if not guide.judge_due and judge_dataset is not None:
        raise ValueError(
            "judge_dataset= is only used with eta='auto', but every eta of this guide is fixed; leave it out"
        )
