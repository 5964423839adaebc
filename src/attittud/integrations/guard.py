"""A mixin for Hugging Face's and TRL's trainers: learn new data and keep what the model could do
before.

class Guarded(GuardMixin, SFTTrainer): ...

trainer = Guarded(model, args, train_dataset=new, protect_dataset=few)  # guard="kl"

With g the gradient of the new data and r the gradient of one protected batch, both new in every
step, the update is

    none    g
    kl      g + protect_weight * r, where r is the gradient of KL(start ‖ now)
    a_gem   g - (⟨g, r⟩/‖r‖²) r if ⟨g, r⟩ < 0, else g
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attittud._checks import check_choice, check_count
from attittud.autograd.average import interpolate, placed, reshard, weights_of
from attittud.eta import check_weight, preset
from attittud.integrations.objective import check_logits, shifts_labels
from attittud.integrations.transformers import AttittudMixin
from attittud.losses import per_sequence, per_sequence_kl

GUARDS = ("none", "kl", "a_gem")
# One-sided PCGrad with the protected loss as the primary one, whose gradient only removes and does
# not train.
A_GEM = preset("pcgrad") | {"primary_weight": 0.0}
# Names of the data in logs and among the auxiliary datasets.
NEW = "new"
PROTECTED = "protected"
HELD_OUT = "held_out"
NOISE = "neftune_noise_alpha"  # an attribute that transformers gives to the embeddings


class GuardMixin(AttittudMixin):
    """Put this before a `Trainer` class: `train_dataset` is the new data, and protected data show
    what must not be forgotten.

    Epochs, packing, collators, accumulation and logging of the new data are the Trainer's own. Each
    step draws one batch of protected data. The logged `loss` is the loss of the new data. Protected
    batches need `labels` with one entry for each token; their loss is the mean over sequences of
    each sequence's mean over tokens.

    Args:
        guard: "kl" adds the divergence from the start model to the loss, "a_gem" removes from the
            gradient what opposes the protected data, and "none" trains on the new data alone.
        protect_dataset: examples of what the model can do, prepared like `train_dataset`.
        protect_weight: the weight of the divergence in the loss, for guard="kl".
        protect_batch_size: protected examples per device and step; by default the batch size of the
            new data.
        protect_collator: for protected data that are not prepared like `train_dataset`.
        protect_eval_dataset: held-out protected data. With these, every evaluation logs
            `eval_forgetting`: how much their loss has grown since the start.
    """

    packs = True
    # in a shorter batch each example would count more, and several workers would repeat some
    full_batches = True

    def __init__(
        self,
        *args: Any,
        guard: str = "kl",
        protect_dataset: Any = None,
        protect_weight: float = 1.0,
        protect_batch_size: int | None = None,
        protect_collator: Any = None,
        protect_eval_dataset: Any = None,
        **kwargs: Any,
    ) -> None:
        check_choice("guard", guard, GUARDS)
        if check_weight("protect_weight", protect_weight) < 0:
            raise ValueError(f"protect_weight must not be negative, got {protect_weight!r}")
        if protect_batch_size is not None:
            check_count("protect_batch_size", protect_batch_size)
        self.guard = guard
        self.protect_weight = protect_weight
        datasets = {}
        if guard != "none":
            datasets[PROTECTED] = protect_dataset
        if protect_eval_dataset is not None:
            datasets[HELD_OUT] = protect_eval_dataset
        for name, data in datasets.items():
            if data is None or (hasattr(data, "__len__") and len(data) == 0):
                raise ValueError(f"{self.argument_of(name)} has no examples; pass a dataset")
        collators = {}
        if protect_collator is not None:
            collators = dict.fromkeys(datasets, protect_collator)
        super().__init__(
            *args,
            auxiliary_datasets=datasets,
            guide=A_GEM,
            auxiliary_collators=collators,
            auxiliary_batch_size=protect_batch_size,
            **kwargs,
        )
        check_model_and_settings(self)
        self._held_out = self.auxiliary.datasets.pop(HELD_OUT, None)
        self._start: dict[str, Tensor] = {}  # the start model's weights
        if guard == "kl":
            self._start = weights_of(self.model)
        self._start_loss: float | None = None  # on the held-out data
        self._window_begins = False  # whether the next micro-batch is the first one of its step

    def argument_of(self, name: str) -> str:
        if name == HELD_OUT:
            return "protect_eval_dataset="
        return "protect_dataset="

    def checked_collator(self, name: str, collator: Any) -> Any:
        return partial(collate, collator, self.argument_of(name), int(shifts_labels(self)))

    # --------------------------------------------------------------------------------------- a step

    def get_batch_samples(
        self, epoch_iterator: Any, num_batches: int, device: Any
    ) -> tuple[list[Any], Any]:
        """Fetch the micro-batches of a step as the Trainer does, and draw one protected batch for
        all of them.
        """
        batches, items = super(AttittudMixin, self).get_batch_samples(
            epoch_iterator, num_batches, device
        )
        self._window = {}
        if batches:
            self._window = self.auxiliary.draw(1, device)
        self._window_begins = True
        return batches, items

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> Tensor:
        """Train on a micro-batch of new data. The first micro-batch of a step also takes the step's
        protected batch.
        """
        begins = self._window_begins
        self._window_begins = False
        if self.guard == "a_gem":
            return self._a_gem_step(model, inputs, num_items_in_batch, begins=begins)
        loss: Tensor = super(AttittudMixin, self).training_step(model, inputs, num_items_in_batch)
        self._latest.add(NEW, loss)
        if begins and self.guard == "kl":
            self._add_divergence(model)
        if self.accelerator.sync_gradients:
            self._latest.end_step()
        return loss

    def _a_gem_step(
        self, model: nn.Module, inputs: dict[str, Any], items: Any, *, begins: bool
    ) -> Tensor:
        """Train on a micro-batch of new data through a guide: the protected loss is primary and the
        new loss auxiliary, as in one-sided PCGrad. The last micro-batch of a step writes the update.

        `begins`: this is the step's first micro-batch, which takes the protected batch too. Returns
        the new loss, for the log.
        """
        guide = self.guide
        assert guide is not None
        self._begin_micro_batch(model)
        if begins:
            batch, labels = self._protected_batch()
            with self.compute_loss_context_manager():
                losses = per_sequence(self._logits(model, batch), labels, shift=shifts_labels(self))
            guide.primary(self._scaled(losses))
            self._latest.add(PROTECTED, losses.detach().mean())
        with self.compute_loss_context_manager():
            loss = self.objective.auxiliary(NEW, model, self._prepare_inputs(inputs), items)
        guide.auxiliary({NEW: self._scaled(loss)})
        new_loss = self._latest.add(NEW, loss.detach())
        if self.accelerator.sync_gradients:
            self._latest.take(guide.combine())
        return new_loss

    def _add_divergence(self, model: nn.Module) -> None:
        """Add the gradient of protect_weight * KL(start ‖ now) on the step's protected batch to
        `.grad`. For the start model's logits, the start weights are put into the model for one
        forward pass.
        """
        batch, labels = self._protected_batch()
        bare = self.accelerator.unwrap_model(model)
        with undisturbed(model), self.compute_loss_context_manager():
            # The start comes first, because weights may not change while a graph refers to them.
            with torch.no_grad(), interpolate(bare, self._start, 0.0):
                start = self._logits(bare, batch)
            loss = per_sequence_kl(
                self._logits(model, batch), start, labels, shift=shifts_labels(self)
            ).mean()
            # Accelerate divides every loss by the number of micro-batches, but there is one
            # protected batch in a step.
            self.accelerator.backward(
                self.protect_weight * loss * self.accelerator.gradient_accumulation_steps
            )
        self._latest.add(PROTECTED, loss.detach())

    def _protected_batch(self) -> tuple[dict[str, Any], Tensor]:
        """Return the step's protected batch: the model's inputs, and the labels apart from them."""
        (batch,), _ = self._window[PROTECTED]
        inputs = dict(self._prepare_inputs(batch))
        return inputs, inputs.pop("labels")

    def _logits(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        return check_logits(model(**inputs), self.model)

    # ---------------------------------------------------------------------------------------- a run

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any
    ) -> Any:
        """Prepare as `super` does, and put the start weights where the prepared model needs them: on
        its device, and as shards under FSDP2.
        """
        prepared = super()._prepare_for_training(
            max_steps, train_dataloader, resume_from_checkpoint
        )
        if self.guard != "a_gem":
            # `super` has set this for its guide, but here no guide sums the micro-batches.
            self.accelerator.gradient_state.plugin_kwargs.pop("sync_each_batch", None)
        self._start = placed(self.accelerator.unwrap_model(prepared[0]), self._start)
        return prepared

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train, after the loss on held-out protected data has been measured once."""
        if self._held_out is not None and self._start_loss is None:
            self._start_loss = self._held_out_loss(self.model)
        return super().train(*args, **kwargs)

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """Measure forgetting too, in time for the callbacks that look at an evaluation: once in each
        evaluation, with the first evaluation dataset if there are several.
        """
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        first = "eval"
        if isinstance(self.eval_dataset, dict):
            first = f"eval_{next(iter(self.eval_dataset))}"
        if self._start_loss is not None and metric_key_prefix == first:
            output.metrics["eval_forgetting"] = self.forgetting()
        return output

    def forgetting(self) -> float:
        """How much the loss on `protect_eval_dataset` has grown since the start; every token counts
        the same.
        """
        if self._start_loss is None:
            raise RuntimeError(
                "forgetting is not known: pass protect_eval_dataset=, and call train() first"
            )
        model = self.accelerator.unwrap_model(self.model_wrapped)
        return self._held_out_loss(model) - self._start_loss

    @torch.no_grad()
    def _held_out_loss(self, model: nn.Module) -> float:
        """Return the mean loss of `model` on the held-out data, over all tokens that count and all
        workers' examples.
        """
        was_training = model.training
        device = next(model.parameters()).device
        with self.auxiliary.using_collator(HELD_OUT):
            loader = self._get_dataloader(
                self._held_out,
                description="held-out protected data",
                batch_size=self.args.eval_batch_size,
            )
        # The sum of the losses, and the number of tokens.
        total = torch.zeros(2, dtype=torch.float64, device=self.accelerator.device)
        model.eval()
        for batch in loader:
            prepared = self._prepare_inputs(batch)
            inputs = {name: x.to(device) for name, x in prepared.items() if isinstance(x, Tensor)}
            labels = inputs.pop("labels")
            # Before and after training the precision must be the same, so autocast is entered here.
            with self.compute_loss_context_manager(), self.accelerator.autocast():
                losses = per_sequence(
                    self._logits(model, inputs), labels, shift=shifts_labels(self), reduction="sum"
                )
            counts = (labels[:, int(shifts_labels(self)) :] != -100).sum(1)
            # Leaves out the examples that Accelerate repeats to fill the last batch of all workers.
            losses, counts = self.accelerator.gather_for_metrics(
                (losses.to(total.device), counts.to(total.device))
            )
            total += torch.stack([losses.sum(), counts.sum()])
        model.train(was_training)
        reshard(model)  # the whole parameters that FSDP2 may still hold have no gradient
        return float(total[0] / total[1])


def check_model_and_settings(trainer: Any) -> None:
    """Refuse models whose outputs do not belong to the tokens of a protected batch, and settings
    under which the start model or the best model would be a wrong one.
    """
    model = trainer.model
    config = getattr(model, "config", None)
    peft = getattr(model, "active_peft_config", None)
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    metric = trainer.args.metric_for_best_model or ""
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(
            f"{type(model).__name__} is an encoder-decoder model, whose losses need labels as input; "
            "use a model without an encoder"
        )
    if getattr(peft, "is_prompt_learning", False):
        raise ValueError(
            "prompt learning (PEFT) adds virtual tokens, so outputs are longer than labels; use LoRA"
        )
    if "forgetting" in metric and trainer.args.greater_is_better:
        raise ValueError(f"metric_for_best_model={metric!r} needs greater_is_better=False")
    several = trainer.accelerator.num_processes > 1
    if several and getattr(plugin, "cpu_ram_efficient_loading", False):
        raise ValueError(
            "fsdp_cpu_ram_efficient_loading gives the start model to the first worker alone; set it "
            "to false"
        )


def collate(collator: Callable[[Any], Any], argument: str, first: int, rows: Any) -> Any:
    """Make a batch by `collator`, and refuse it if it has no label that counts.

    Labels are examples x tokens, with -100 where a token does not count. `argument`: the name of
    the dataset, for the error. `first`: the position of the first label that can count.
    """
    batch = collator(rows)
    labels = batch.get("labels")
    if labels is None or labels.ndim != 2 or not bool((labels[:, first:] != -100).any()):
        raise ValueError(
            f"{argument}: a batch has no labels of tokens that count; pass a protect_collator= "
            "that makes them, such as DataCollatorForLanguageModeling(tokenizer, mlm=False)"
        )
    return batch


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Turn off dropout and NEFTune's noise, which would make the model differ from the start model
    without any training.

    Other modules stay in training mode, which gradient checkpointing needs. Keep the block open
    until the graph is used.
    """
    # The attributes of a module, the name of the attribute to change, and its value before.
    changed: list[tuple[dict[str, Any], str, Any]] = []
    for module in model.modules():
        attributes = vars(module)
        for name, value in attributes.items():
            is_mode = name == "training" and "Dropout" in type(module).__name__
            # Functional dropout takes its probability from attributes such as attention_dropout and
            # layerdrop.
            is_probability = name == NOISE or (isinstance(value, float) and "drop" in name)
            if is_mode or is_probability:
                changed.append((attributes, name, value))
    for attributes, name, value in changed:
        attributes[name] = type(value)(0)  # False for a mode, 0.0 for a probability
    try:
        yield
    finally:
        for attributes, name, value in changed:
            attributes[name] = value
