"""A mixin for a `LightningModule` with manual optimisation; `guided_backward` takes the place of
`manual_backward`.

class Mine(AttittudMixin, LightningModule):
    guide_settings = {"eta": Eta(neutral=1, helpful=1, harmful=-1)}

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.guided_backward(primary=losses, auxiliary=loss)
        optimizer.step()
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from attittud import checkpoint as files
from attittud.guide import SINGLE, Guide
from attittud.integrations import Latest, missing_extra
from attittud.report import Report

try:
    from lightning.pytorch import LightningModule
except ImportError as error:
    raise missing_extra("lightning", error) from error

STATE_KEY = "attittud"  # in Lightning's checkpoint


class AttittudMixin(LightningModule):  # type: ignore[misc] # mypy skips lightning, see pyproject.toml
    """Put this before `LightningModule`. Precision and strategy plugins, clipping, schedulers and
    checkpoints stay Lightning's.

    `guide_settings`, a class attribute or set in `__init__`, holds the keyword arguments of a
    `Guide`. If a module overrides `on_save_checkpoint` or `on_load_checkpoint`, it must call
    `super()` there.
    """

    guide_settings: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.automatic_optimization = False
        self._guide: Guide | None = None
        self._latest = Latest()
        self._saved: Mapping[str, Any] | None = None

    @property
    def guide(self) -> Guide:
        """The guide. It is made at its first use, after the strategy has moved and sharded the
        parameters, and then takes over the state of a loaded checkpoint.
        """
        if self._guide is None:
            for base in type(self.trainer.strategy).__mro__:
                if base.__name__ in ("DeepSpeedStrategy", "FSDPStrategy"):
                    raise ValueError(
                        f"{base.__name__} hides gradients in its own buffers; use "
                        "ModelParallelStrategy (FSDP2) and call fully_shard in configure_model"
                    )
            group = None
            if self.trainer.world_size > 1:
                group = torch.distributed.group.WORLD
            guide = Guide(self, process_group=group, **self.guide_settings)
            if self._saved is not None:
                entry = f"the entry {STATE_KEY!r} of Lightning's checkpoint"
                files.restore(guide, self._saved, entry)
            self._guide = guide
            self._saved = None
        return self._guide

    def guided_backward(
        self,
        primary: Tensor | None,
        auxiliary: Tensor | Mapping[str, Tensor],
        *,
        log: bool = True,
        **more: Any,
    ) -> Report:
        """Fill `.grad` as `Guide.backward` does, under the Trainer's precision and strategy
        plugins.

        Args:
            primary: per-example losses; as in `Guide.backward`, also their mean, or None if
                `guide.primary_due` is False.
            auxiliary: a loss, or a dict of named losses.
            log: log the neutral, helpful and harmful share of the auxiliary gradient at the
                Trainer's logging steps.
            more: other arguments of `Guide.backward`; a `judge` returns unscaled losses.
        """
        if not isinstance(auxiliary, Mapping):
            auxiliary = {SINGLE: auxiliary}
        tasks = {name: self.scaled(loss) for name, loss in auxiliary.items()}
        judge = more.get("judge")
        if judge is not None:
            more["judge"] = lambda: self.scaled(judge())
        losses = None
        mean = None
        if primary is not None:
            losses = self.scaled(primary)
            mean = primary.detach().mean()
        report = self._latest.take(self.guide.backward(losses, tasks, **more))
        self.finish_backward(mean)
        steps = self.trainer.fit_loop.epoch_loop.total_batch_idx + 1
        if log and steps % self.trainer.log_every_n_steps == 0:
            self.log_dict(self._latest.numbers())
        return report

    def scaled(self, loss: Tensor) -> Tensor:
        """Do what `manual_backward` does before a backward pass: let strategy and precision prepare
        and scale the loss.

        To accumulate over micro-batches, call `self.guide.primary(self.scaled(losses / n))` and
        likewise `auxiliary`, then `self.guide.combine()` and `self.finish_backward()`.
        """
        strategy = self.trainer.strategy
        strategy.pre_backward(loss)
        prepared: Tensor = strategy.precision_plugin.pre_backward(loss, self)
        return prepared

    def finish_backward(self, loss: Tensor | None = None) -> None:
        """Do what `manual_backward` does after a backward pass: call the hooks
        `on_after_backward`.
        """
        if loss is None:
            loss = torch.zeros(())
        strategy = self.trainer.strategy
        strategy.post_backward(strategy.precision_plugin.post_backward(loss, self))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the guide's state to Lightning's checkpoint; without a guide so far, the state that was
        loaded.
        """
        super().on_save_checkpoint(checkpoint)
        if self._guide is None and self._saved is not None:
            checkpoint[STATE_KEY] = self._saved  # no step was made since a checkpoint was loaded
        elif self._guide is not None:
            # The state holds only plain data and tensors, so torch.load(..., weights_only=True)
            # accepts it. Lightning saves what hooks add on one worker only, which under FSDP2 has
            # only a shard of the basis. So under FSDP2 the basis is left out, and the first step
            # after a resume refreshes.
            checkpoint[STATE_KEY] = self._guide.state_dict(include_basis=not self._guide.sharded)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the guide's state for `guide`, which makes a new guide at its next use."""
        super().on_load_checkpoint(checkpoint)
        self._saved = checkpoint.get(STATE_KEY)
        self._guide = None
