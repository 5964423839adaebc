"""A mixin for Hugging Face's and TRL's trainers: learn new data and protect what the model could do before.

class Guarded(GuardMixin, SFTTrainer): ...

trainer = Guarded(model, args, train_dataset=new, protect_dataset=few)  # guard="kl", or another method
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from attittud.autograd.average import SHARES
from attittud.eta import choose, guards, preset
from attittud.guide import Guide
from attittud.integrations.guard_checks import (
    HELD_OUT,
    PROTECTED,
    CheckedCollator,
    check_best,
    check_divergence,
    check_guide,
    check_model,
    check_numbers,
    held_out_set,
    protected_kind,
    protected_sets,
)
from attittud.integrations.protected import Forgetting, ProtectedLoss, pad, replies, share_weights, shifts
from attittud.integrations.transformers import AttittudMixin, check_arguments

NEW = "new"
SUM = {"eta": (1, 1, 1), "basis": "mean"}
PLAIN: dict[str, dict[str, Any]] = {
    "none": {**SUM, "primary_weight": 0.0},
    "replay": {**SUM, "primary_weight": 1.0},
    "kl": {**SUM, "primary_weight": 1.0},
}
"""Methods that only add losses, without projection. Their steps are the Trainer's own; the guide only keeps the state."""


@dataclass(frozen=True)
class GuardArguments:
    """What a user gave, as far as it is needed after the start."""

    loss: Literal["nll", "kl"]  # the protected loss
    sets: int  # how many protected sets there are
    batch_size: int | None  # protected examples per device and step
    rank: bool  # whether the rank was given
    prompts: bool  # whether prompts were given instead of data
    prepared: tuple[str, ...]  # sets that are prepared and collated like `train_dataset`


class GuardMixin(AttittudMixin):
    """Put this before a `Trainer` class: `train_dataset` is the new data, and protected data show what must not be forgotten.

    Epochs, packing, collators, accumulation and logging of the new data are the Trainer's own. Every step draws one batch of
    protected data, unless the method needs none in this step. The logged `loss` is the loss of the new data, whatever the
    method. At every evaluation the log has `eval_forgetting`: the change of the loss on held-out protected data. After
    training, `averages` has the same number for averages of the weights before and after training.

    Args:
        guard: "kl" (add the divergence from the start model), "none", "replay" (add the protected loss), or a name of
            `attittud.guards()`.
        protect_dataset: examples of what the model can do, prepared like `train_dataset`; or a dict of several sets.
        protect_prompts: instead of `protect_dataset`, prompts (texts, or lists of chat messages); the start model writes the
            replies.
        protect_loss: "nll", the Trainer's own loss, or "kl", the divergence KL(start ‖ now); by default "kl" for guard="kl" and
            "nll" for all others.
        protect_weight: weight of the protected gradient in the update; by default the weight that the method defines.
        protect_batch_size: protected examples per device and step; by default the batch size of the new data.
        protect_collator: for protected data that are not prepared like `train_dataset`; its batches must have labels.
        protect_eval_dataset: held-out protected data for `eval_forgetting`. Without it, `eval_forgetting_protected` is
            measured on the protected data themselves.
        guide: for a name of `attittud.guards()`, further arguments of `Guide`, such as `{"refresh_every": 5}`.
        reply_tokens: the largest number of tokens in a reply to a prompt; the model's context length limits it too.
        shares: shares of the trained weights in the averages at the end; an empty sequence leaves the averages out.
    """

    packs = True
    full_batches = True  # in a shorter batch each example would count more, and several workers would repeat some

    def __init__(
        self,
        *args: Any,
        guard: str = "kl",
        protect_dataset: Any = None,
        protect_prompts: Sequence[Any] | None = None,
        protect_loss: Literal["nll", "kl"] | None = None,
        protect_weight: float | None = None,
        protect_batch_size: int | None = None,
        protect_collator: Any = None,
        protect_eval_dataset: Any = None,
        guide: Mapping[str, Any] | None = None,
        reply_tokens: int = 128,
        shares: Sequence[float] = SHARES,
        **kwargs: Any,
    ) -> None:
        check_arguments(type(self), kwargs)
        settings = choose("guard", guard, PLAIN | {name: preset(name) for name in guards()}) | dict(guide or {})
        if guard in PLAIN:
            check_guide(guard, guide or {})
        self.guard, loss = guard, protected_kind(guard, protect_loss, protect_weight)
        self.shares = check_numbers(protect_weight, protect_batch_size, reply_tokens, shares)
        if protect_weight is not None:
            settings["primary_weight"] = protect_weight
        sets = protected_sets(guard, guard != "none", protect_dataset, protect_prompts)
        held_out = held_out_set(protect_eval_dataset)
        own = protect_collator or (pad if protect_prompts is not None else None)
        # Replies to prompts have a collator of their own, but held-out data are still prepared like `train_dataset`.
        collated = [*sets, *(held_out if protect_collator is not None else ())] if own is not None else []
        self._given = GuardArguments(
            loss=loss,
            sets=len(sets),
            batch_size=protect_batch_size,
            rank="rank" in (guide or {}),
            prompts=protect_prompts is not None,
            prepared=tuple(name for name in sets | held_out if name not in collated),
        )
        super().__init__(
            *args,
            auxiliary_datasets=sets | held_out,
            guide=settings,
            auxiliary_collators=dict.fromkeys(collated, own),
            auxiliary_batch_size=protect_batch_size,
            **kwargs,
        )
        data = self.auxiliary.datasets
        share_weights(self)
        if protect_prompts is not None:
            data[PROTECTED] = replies(self.model, self.processing_class, protect_prompts, reply_tokens)
        self.protected_loss = ProtectedLoss(self, loss)
        measured = {name: data[name] for name in held_out or sets}
        self.forgetting = Forgetting(self, measured) if measured else None
        data.pop(HELD_OUT, None)
        self.averages: dict[float, dict[str, float]] = {}
        self._again = self._opened = False

    def check(self) -> None:
        super().check()
        check_best(self.args)
        check_model(self, self._given.prepared)
        if self._given.loss == "kl":
            check_divergence(self.guard, self, self._given.prepared)

    def argument_of(self, name: str) -> str:
        if name == HELD_OUT:
            return "protect_eval_dataset="
        known = "protect_prompts=" if self._given.prompts else "protect_dataset="
        return known if name == PROTECTED else f"{known} {name!r}"

    def collator_of(self, name: str, collator: Any, *, trains: bool) -> Any:
        return CheckedCollator(collator, self.argument_of(name), int(shifts(self)) if trains else None)

    # ------------------------------------------------------------------------------------------------ a step

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        batches, items = super(AttittudMixin, self).get_batch_samples(epoch_iterator, num_batches, device)
        assert self.guide is not None
        due = self.guard != "none" if self.guard in PLAIN else self.guide.primary_due or self._again
        self._window, self._opened = self.auxiliary.draw(1, device) if due and batches else {}, True
        return batches, items

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        guide, opened, self._opened = self.guide, self._opened, False
        assert guide is not None
        if self.guard in PLAIN:
            total = self._latest.add(NEW, super(AttittudMixin, self).training_step(model, inputs, num_items_in_batch))
            if opened and self._window:
                self._add_protected(model, guide.primary_weight)
            if self.accelerator.sync_gradients:
                self._latest.end_step()
            return total
        model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        if opened:
            self._take_protected(model, guide)
        with self.compute_loss_context_manager():
            loss = self.objective.auxiliary(NEW, model, self._prepare_inputs(inputs), num_items_in_batch)
        guide.auxiliary({NEW: self._scaled(loss)})
        total = self._latest.add(NEW, loss.detach())
        if self.accelerator.sync_gradients:
            self._latest.take(guide.combine())
            self._look_again()
        return total

    def _take_protected(self, model: nn.Module, guide: Guide) -> None:
        if not self._window:
            guide.primary(None)
            return
        single = guide.basis.needs == "jacobian"
        with self.protected_loss.undisturbed(model):
            losses = self.protected_loss(model, self._window, single=single)
            guide.primary(self._scaled(losses), refresh=True if self._again else None)
        self._latest.add(PROTECTED, losses.detach().mean())

    def _add_protected(self, model: nn.Module, weight: float) -> None:
        with self.protected_loss.undisturbed(model):
            loss = self.protected_loss(model, self._window, single=False).mean()
            # Accelerate divides every loss by this number. The losses of micro-batches need that, but this loss does not.
            self.accelerator.backward(weight * loss * self.accelerator.gradient_accumulation_steps)
        self._latest.add(PROTECTED, loss.detach())

    def _look_again(self) -> None:
        """Refresh in the next step too if the basis has no direction, because the divergence has no gradient at the start."""
        space = None if self.guide is None else self.guide.subspace
        stale = self.guide is not None and self.guide.refresh_every > 1
        self._again = self.protected_loss.kind == "kl" and stale and space is not None and not int(space.effective_rank)

    # ------------------------------------------------------------------------------------------------ a run

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        if self.guard in PLAIN:
            self.accelerator.gradient_state.plugin_kwargs.pop("sync_each_batch", None)
        self.protected_loss.begin(prepared[0])
        self._look_again()
        return prepared

    def train(self, *args: Any, **kwargs: Any) -> Any:
        if self.forgetting is not None:
            self.forgetting.begin(self.model, weights=bool(self.shares) and not self.protected_loss.adapters)
        output = super().train(*args, **kwargs)
        if self.forgetting is not None and self.shares:
            model = self.accelerator.unwrap_model(self.model_wrapped)
            self.averages = self.forgetting.curve(model, self.shares)
            logged = {
                f"average_{share:g}_{name}": x for share, found in self.averages.items() for name, x in found.items()
            }
            self.log(logged)
        return output

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """Measure forgetting too, in time for the callbacks that look at an evaluation."""
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        if metric_key_prefix == "eval":
            output.metrics.update(self._forgotten())
        return output

    def evaluate(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> dict[str, float]:
        metrics: dict[str, float] = super().evaluate(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        # Several evaluation datasets have prefixes of their own. Forgetting is measured once, after all of them.
        if metric_key_prefix == "eval" and "eval_runtime" not in metrics and (lost := self._forgotten()):
            metrics |= lost
            self.log(lost)
        return metrics

    def _forgotten(self) -> dict[str, float]:
        if self.forgetting is None or self.forgetting.start is None:
            return {}
        name = "eval_forgetting" if HELD_OUT in self.forgetting.data else "eval_forgetting_protected"
        return {name: self.forgetting(self.accelerator.unwrap_model(self.model_wrapped))}
