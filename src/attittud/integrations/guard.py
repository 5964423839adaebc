"""A mixin for Hugging Face's and TRL's trainers: learn new data and protect what the model could do before.

class Guarded(GuardMixin, SFTTrainer): ...

trainer = Guarded(model, args, train_dataset=new, protect_dataset=few, guard="a_gem")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import Tensor, nn

from attittud._checks import check_choice
from attittud.autograd.average import SHARES, weights_of
from attittud.eta import choose, guards, preset
from attittud.guide import Guide
from attittud.integrations.auxiliary import JUDGES
from attittud.integrations.protected import HELD_OUT, PROTECTED, Forgetting, ProtectedLoss, pad, replies
from attittud.integrations.transformers import AttittudMixin

NEW = "new"
SUM = {"eta": (1, 1, 1), "basis": "mean"}
PLAIN: dict[str, dict[str, Any]] = {
    "none": {**SUM, "primary_weight": 0.0},
    "replay": {**SUM, "primary_weight": 1.0},
    "kl": {**SUM, "primary_weight": 1.0},
}
"""Methods that only add losses, without projection. Their steps are the Trainer's own; the guide only keeps the state."""


class GuardMixin(AttittudMixin):
    """Put this before a `Trainer` class: `train_dataset` is the new data, and protected data show what must not be forgotten.

    Epochs, packing, collators, accumulation and logging of the new data are the Trainer's own. Every step draws one batch of
    protected data, unless the method needs none in this step. At every evaluation the log has `eval_forgetting`: the change of
    the loss on held-out protected data. After training, `averages` has the same number for averages of the weights before and
    after training.

    Args:
        guard: "none", "replay" (add the protected loss), "kl" (add the divergence from the start model), or a name of
            `attittud.guards()`.
        protect_dataset: examples of what the model can do, prepared like `train_dataset`; or a dict of several sets.
        protect_prompts: instead of `protect_dataset`, prompts (texts, or lists of chat messages); the start model writes the
            replies.
        protect_loss: "nll", the Trainer's own loss, or "kl", the divergence KL(start ‖ now).
        protect_weight: weight of the protected gradient in the update; by default the weight that the method defines.
        protect_batch_size: protected examples per device and step; by default the batch size of the new data.
        protect_collator: for protected data that are not prepared like `train_dataset`; its batches must have labels.
        protect_eval_dataset: held-out protected data for `eval_forgetting`. Without it, `eval_forgetting_protected` is
            measured on the protected data themselves.
        guide: further arguments of `Guide`, such as `{"refresh_every": 5}`.
        reply_tokens: the largest number of tokens in a reply to a prompt.
        shares: shares of the trained weights in the averages at the end; an empty sequence leaves the averages out.
    """

    packs = True

    def __init__(
        self,
        *args: Any,
        guard: str = "a_gem",
        protect_dataset: Any = None,
        protect_prompts: Sequence[Any] | None = None,
        protect_loss: Literal["nll", "kl"] = "nll",
        protect_weight: float | None = None,
        protect_batch_size: int | None = None,
        protect_collator: Any = None,
        protect_eval_dataset: Any = None,
        guide: Mapping[str, Any] | None = None,
        reply_tokens: int = 128,
        shares: Sequence[float] = SHARES,
        **kwargs: Any,
    ) -> None:
        settings = choose("guard", guard, PLAIN | {name: preset(name) for name in guards()}) | dict(guide or {})
        if protect_weight is not None:
            settings["primary_weight"] = protect_weight
        check_choice("protect_loss", protect_loss, ("nll", "kl"))
        self.guard, self.shares = guard, tuple(shares)
        self._rank = settings["rank"] if "rank" in (guide or {}) else None
        sets = _sets(guard, protect_dataset, protect_prompts)
        held_out = {} if protect_eval_dataset is None else {HELD_OUT: protect_eval_dataset}
        own = protect_collator or (pad if protect_prompts is not None else None)
        # Replies to prompts have a collator of their own, but held-out data are still prepared like `train_dataset`.
        collated = [*sets, *(held_out if protect_collator is not None else ())] if own is not None else []
        super().__init__(
            *args,
            auxiliary_datasets=sets | held_out,
            guide=settings,
            auxiliary_collators=dict.fromkeys(collated, own),
            auxiliary_batch_size=protect_batch_size,
            **kwargs,
        )
        data = self.auxiliary.datasets
        if protect_prompts is not None:
            data[PROTECTED] = replies(self.model, self.processing_class, protect_prompts, reply_tokens)
        self.protected_loss = ProtectedLoss(self, "kl" if guard == "kl" else protect_loss)
        measured = {name: data[name] for name in held_out or sets}
        self.forgetting = Forgetting(self, measured) if measured else None
        data.pop(HELD_OUT, None)
        self.averages: dict[float, dict[str, float]] = {}
        self._again = self._opened = False

    def make_guide(self, model: nn.Module) -> Guide:
        made = super().make_guide(model)
        size, sets = (
            (self.auxiliary.batch_size, len(self.auxiliary.datasets)) if hasattr(self, "auxiliary") else (None, 1)
        )
        count = (size or self._train_batch_size) * self.accelerator.num_processes * sets
        if self._rank is None and made.basis.needs == "jacobian" and made.basis.single and made.rank < count:
            # By default, the gradients of all protected examples of a step span the subspace.
            self.guide_settings["rank"] = count
            made = super().make_guide(model)
        return made

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
            total: Tensor = super(AttittudMixin, self).training_step(model, inputs, num_items_in_batch)
            return total + self._add_protected(model, guide.primary_weight) if opened and self._window else total
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
        single = guide.basis.needs == "jacobian" and guide.basis.single
        with self.protected_loss.undisturbed(model):
            losses = self.protected_loss(model, self._window, single=single)
            guide.primary(self._scaled(losses), refresh=True if self._again else None)
        self._latest.add(PROTECTED, losses.detach().mean())

    def _add_protected(self, model: nn.Module, weight: float) -> Tensor:
        with self.protected_loss.undisturbed(model):
            loss = weight * self.protected_loss(model, self._window, single=False).mean()
            # Accelerate divides every loss by this number. The losses of micro-batches need that, but this loss does not.
            self.accelerator.backward(loss * self.accelerator.gradient_accumulation_steps)
        return loss.detach()

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
        start: dict[str, Tensor] = {}
        if self.forgetting is not None:
            self.forgetting.begin(self.model)
            start = {} if self.protected_loss.adapters or not self.shares else weights_of(self.model)
        output = super().train(*args, **kwargs)
        if self.forgetting is not None and self.shares:
            model = self.accelerator.unwrap_model(self.model_wrapped)
            self.averages = self.forgetting.curve(model, start, self.shares)
            logged = {
                f"average_{share:g}_{name}": x for share, found in self.averages.items() for name, x in found.items()
            }
            self.log(logged)
        return output

    def evaluate(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> dict[str, float]:
        metrics: dict[str, float] = super().evaluate(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        # With several evaluation datasets this is called for each of them, and once for all of them.
        if self.forgetting is not None and self.forgetting.start is not None and metric_key_prefix == "eval":
            name = "eval_forgetting" if HELD_OUT in self.forgetting.data else "eval_forgetting_protected"
            model = self.accelerator.unwrap_model(self.model_wrapped)
            metrics[name] = self.forgetting(model)
            self.log({name: metrics[name]})
        return metrics


def _sets(guard: str, dataset: Any, prompts: Sequence[Any] | None) -> dict[str, Any]:
    """Return the protected sets by name. The set of replies to prompts is filled later."""
    if dataset is not None and prompts is not None:
        raise ValueError("protect_dataset= and protect_prompts= are alternatives; pass one of them")
    if dataset is None and not prompts:
        if guard == "none":
            return {}
        raise ValueError(
            f"guard={guard!r} needs protected data: pass protect_dataset=, or protect_prompts=, to which the start model replies"
        )
    if prompts is not None:
        return {PROTECTED: []}
    sets = dict(dataset) if isinstance(dataset, Mapping) else {PROTECTED: dataset}
    if taken := sets.keys() & {HELD_OUT, JUDGES}:
        raise ValueError(f"protect_dataset=: the name {min(taken)!r} is reserved; give this set another name")
    return sets
