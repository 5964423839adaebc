"""Protected data for a Trainer that learns new data: replies to prompts, the protected losses, and a measure of forgetting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from attittud.autograd.average import averages, interpolate, placed, reshard, weights_of
from attittud.integrations.auxiliary import Window
from attittud.integrations.guard_checks import check_tokens
from attittud.integrations.objective import check_logits
from attittud.losses import per_sequence, per_sequence_kl

Inputs = dict[str, Any]
Sums = Callable[[nn.Module, Inputs, int | None], Tensor]
NOISE = "neftune_noise_alpha"  # an attribute that transformers gives to the embeddings


class ProtectedLoss:
    """The loss of protected batches: the Trainer's own ("nll"), or the divergence from the start model ("kl").

    If only new LoRA adapters (PEFT) are trained, the start model is the model without them. Otherwise the weights to be trained
    are copied now. (A copy of the whole model does not work, because trainers bind `forward` to the original model.)
    """

    def __init__(self, trainer: Any, kind: Literal["nll", "kl"]) -> None:
        self.trainer, self.kind = trainer, kind
        self.adapters = callable(getattr(trainer.model, "disable_adapter", None)) and _without_effect(trainer.model)
        self._start = weights_of(trainer.model) if kind == "kl" and not self.adapters else {}
        self._bare: nn.Module = trainer.model

    def begin(self, model: nn.Module) -> None:
        """Move the start weights to the model's device, and shard them like the model."""
        self._bare = self.trainer.accelerator.unwrap_model(model)
        self._start = placed(self._bare, self._start)

    def __call__(self, model: nn.Module, window: Window, *, single: bool) -> Tensor:
        """Losses of the batches of a step: one for each example (`single`), or the mean loss of each set."""
        batches = {name: self.trainer._prepare_inputs(batch) for name, ((batch,), _) in window.items()}
        # All start outputs are computed first, because weights may not change while a graph refers to them.
        start = self._start_logits(list(batches.values())) if self.kind == "kl" else [None] * len(batches)
        found = []
        for (name, inputs), before in zip(batches.items(), start, strict=True):
            with self.trainer.compute_loss_context_manager(), unlogged(self.trainer):
                if before is not None:
                    check_tokens(self.trainer.guard, self.trainer.model, before)
                    labels = inputs["labels"]
                    losses = per_sequence_kl(_logits(model, inputs), before, labels, shift=shifts(self.trainer))
                else:
                    losses = self._own(name, model, inputs, window[name][1], single=single)
            found.append(losses if single else losses.mean()[None])
        return torch.cat(found)

    def _own(self, name: str, model: nn.Module, inputs: Inputs, items: Any, *, single: bool) -> Tensor:
        trainer = self.trainer
        if name in trainer.auxiliary.collators:
            return per_sequence(_logits(model, inputs), inputs["labels"], shift=shifts(trainer))
        if single:
            # A step has one protected batch, however many micro-batches of new data it has.
            losses: Tensor = trainer.objective.primary(model, inputs, items) * trainer.objective.divisor(items)
            return losses
        loss: Tensor = trainer.compute_loss(model, inputs, num_items_in_batch=items)
        return loss

    @torch.no_grad()
    def _start_logits(self, batches: Sequence[Inputs]) -> list[Tensor]:
        bare: Any = self._bare
        started = bare.disable_adapter() if self.adapters else interpolate(bare, self._start, 0.0)
        with started, self.trainer.compute_loss_context_manager():
            return [_logits(bare, inputs) for inputs in batches]

    @contextmanager
    def undisturbed(self, model: nn.Module) -> Iterator[None]:
        """Turn off dropout and NEFTune's noise if outputs are compared with the start model; they alone would make a difference.

        Other modules stay in training mode, which gradient checkpointing needs. Keep the block open until the graph is used.
        """
        changed: list[tuple[dict[str, Any], str, Any]] = []
        for module in model.modules() if self.kind == "kl" else ():
            own = vars(module)
            if "Dropout" in type(module).__name__:
                changed.append((own, "training", own["training"]))
            # Attributes with numbers for functional dropout (attention_dropout, dropout, layerdrop), and for noise.
            disturbing = [key for key, x in own.items() if ("drop" in key and isinstance(x, float)) or key == NOISE]
            changed += [(own, key, own[key]) for key in disturbing]
        for own, key, value in changed:
            own[key] = type(value)(0)
        try:
            yield
        finally:
            for own, key, value in changed:
                own[key] = value


def _logits(model: Any, inputs: Inputs) -> Tensor:
    if "labels" not in inputs:
        raise ValueError(
            f"a protected batch has no 'labels' (it has {', '.join(sorted(inputs))}), which say which tokens count; pass a "
            "protect_collator= that makes them, such as transformers' DataCollatorForLanguageModeling(tokenizer, mlm=False); "
            "for pairs of DPO, choose another guard than 'kl', with protect_loss='nll'"
        )
    return check_logits(model(**{key: value for key, value in inputs.items() if key != "labels"}), model)


def shifts(trainer: Any) -> bool:
    """Whether token t is predicted at position t - 1, as in causal language models."""
    return bool(trainer._loss_shifts_labels or getattr(trainer.model, "loss_type", None) is None)


@contextmanager
def unlogged(trainer: Any) -> Iterator[None]:
    """Keep protected batches out of the figures that TRL's `compute_loss` collects and logs for the new data."""
    kept = {name: x for name, x in vars(trainer).items() if name in ("_metrics", "_total_train_tokens")}
    if "_metrics" in kept:
        vars(trainer)["_metrics"] = {mode: defaultdict(list) for mode in kept["_metrics"]}
    try:
        yield
    finally:
        vars(trainer).update(kept)


def share_weights(trainer: Any) -> None:
    """Give all workers the weights of the first one, where FSDP loads them on the first worker alone.

    The others have zeros until the model is sharded, but the start model is needed before that.
    """
    accelerator = trainer.accelerator
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if accelerator.num_processes == 1 or not getattr(plugin, "cpu_ram_efficient_loading", False):
        return
    for tensor in chain(trainer.model.parameters(), trainer.model.buffers()):
        sent = tensor.detach().to(accelerator.device, copy=True).contiguous()
        dist.broadcast(sent, src=0)
        tensor.data.copy_(sent)


def _without_effect(model: nn.Module) -> bool:
    """Whether only LoRA adapters are trained, and they do not change the model yet.

    Otherwise the model without adapters is not the start model: the adapters may have been trained before or may start from a
    part of the weights (PiSSA), or other parameters are trained too.
    """
    for name, parameter in model.named_parameters():
        zero = "lora_B." in name or "lora_embedding_A." in name
        if parameter.requires_grad and not (zero or "lora_A." in name or "lora_embedding_B." in name):
            return False
        if zero and bool(parameter.detach().any()):
            return False
    return True


# ------------------------------------------------------------------------------------------------ what was forgotten


class Forgetting:
    """The change of the loss on datasets since the start of training; every token counts the same."""

    def __init__(self, trainer: Any, data: Mapping[str, Any]) -> None:
        self.trainer, self.data = trainer, dict(data)
        self.start: float | None = None
        self.weights: dict[str, Tensor] = {}  # the weights to which `start` belongs

    def begin(self, model: nn.Module, *, weights: bool = False) -> None:
        """Measure the start model, if this has not been done; with `weights`, also keep its weights for averages."""
        if self.start is None:
            self.start = self._loss(model)
            self.weights = weights_of(model) if weights else {}

    def __call__(self, model: nn.Module) -> float:
        assert self.start is not None
        return self._loss(model) - self.start

    def _loss(self, model: nn.Module) -> float:
        return self._mean(model, self._loaders(), " and ".join(map(self.trainer.argument_of, self.data)), self._sums)

    def curve(self, model: nn.Module, shares: Sequence[float]) -> dict[float, dict[str, float]]:
        """Forgetting, and the loss on a single `eval_dataset`, for averages of the start and the end weights.

        With adapters, the averages scale the effect of the adapters on the weights.
        """
        data = self.trainer.eval_dataset
        evaluated = data is not None and not isinstance(data, dict)

        def evaluate() -> dict[str, float]:
            found = {"forgetting": self(model)}
            return found | ({"eval_loss": self.evaluated(model)} if evaluated else {})

        if self.weights:
            return averages(model, self.weights, evaluate, shares)
        from peft.helpers import rescale_adapter_scale

        found = {}
        for share in shares:
            with rescale_adapter_scale(model, share):
                found[share] = evaluate()
        return found

    def _loaders(self) -> Iterator[Any]:
        trainer = self.trainer
        for name, data in self.data.items():
            with trainer.auxiliary.own_collator(name):
                size = trainer.args.eval_batch_size
                loader = trainer._get_dataloader(data, description="protected data", batch_size=size)
            yield loader

    def evaluated(self, model: nn.Module) -> float:
        """The Trainer's own loss on its `eval_dataset`, with label smoothing if it has any; every token counts the same."""
        return self._mean(model, [self.trainer.get_eval_dataloader()], "eval_dataset=", self._own_sums)

    @torch.no_grad()
    def _mean(self, model: nn.Module, loaders: Iterable[Any], what: str, sums_of: Sums) -> float:
        """The mean loss over the tokens that count, or over the examples if the loss does not belong to tokens (DPO)."""
        trainer, was_training = self.trainer, model.training
        sums = torch.zeros(2, dtype=torch.float64, device=trainer.accelerator.device)
        model.eval()
        for loader in loaders:
            for batch in loader:
                # Autocast is needed here, because the Trainer adds its own autocast only when training begins, and the
                # losses before and after training must be computed in the same way.
                with unlogged(trainer), trainer.compute_loss_context_manager(), trainer.accelerator.autocast():
                    inputs, own = self._inputs(model, batch), _own_examples(loader, trainer.accelerator)
                    sums += sums_of(model, inputs, own).to(sums)
        model.train(was_training)
        reshard(model)  # the whole parameters that FSDP2 may still hold have no gradient
        whole, tokens = trainer.accelerator.reduce(sums, "sum").tolist()
        if not tokens:
            raise ValueError(
                f"{what} has no token that counts: all its labels are -100, or dataloader_drop_last=True drops its only batch; "
                "give more data"
            )
        return float(whole / tokens)

    def _inputs(self, model: nn.Module, batch: Any) -> Inputs:
        device = next(model.parameters()).device
        prepared = self.trainer._prepare_inputs(batch)
        return {key: x.to(device) if isinstance(x, Tensor) else x for key, x in prepared.items()}

    def _sums(self, model: nn.Module, inputs: Inputs, own: int | None) -> Tensor:
        """The sum of the losses of a batch and their number. If `own` is given, only its first examples count."""
        if not _has_tokens(inputs):
            return self._own_sums(model, inputs, own)
        labels, shift = _first_examples(inputs, own), shifts(self.trainer)
        total = per_sequence(_logits(model, inputs), labels, shift=shift, reduction="sum").sum()
        return torch.stack([total, self._count(labels)])

    def _own_sums(self, model: nn.Module, inputs: Inputs, own: int | None) -> Tensor:
        """The same for the Trainer's own loss, which is a mean over tokens or examples."""
        if _has_tokens(inputs):
            inputs = inputs | {"labels": _first_examples(inputs, own)}
            count = self._count(inputs["labels"])
        else:
            rows = len(next(x for x in inputs.values() if isinstance(x, Tensor)))
            given = rows // self.trainer.objective.rows_per_example if own is None else own
            count = torch.tensor(given, device=next(model.parameters()).device)
        loss = self.trainer.compute_loss(model, inputs)
        return torch.stack([torch.where(count > 0, loss * count, 0.0), count])  # a mean over no token is not a number

    def _count(self, labels: Tensor) -> Tensor:
        return ((labels[:, 1:] if shifts(self.trainer) else labels) != -100).sum()


def _has_tokens(inputs: Inputs) -> bool:
    return "labels" in inputs and inputs["labels"].ndim == 2


def _own_examples(loader: Any, accelerator: Any) -> int | None:
    """How many examples of the batch count. Accelerate repeats examples to fill the last batch of all workers.

    None: all of them.
    """
    left = getattr(loader, "remainder", 0)  # examples of all workers in the last batch
    if accelerator.num_processes == 1 or left <= 0 or not loader.end_of_dataloader:
        return None
    size = loader.total_batch_size // accelerator.num_processes
    return int(min(max(left - accelerator.process_index * size, 0), size))


def _first_examples(inputs: Inputs, own: int | None) -> Tensor:
    """Labels that count in the first examples alone."""
    labels: Tensor = inputs["labels"]
    if own is None:
        return labels
    number = torch.arange(len(labels), device=labels.device)[:, None]
    if "position_ids" in inputs and "attention_mask" not in inputs:  # examples without padding, one after the other
        number = (inputs["position_ids"] == 0).cumsum(1) - 1
    return labels.masked_fill(number >= own, -100)


# ------------------------------------------------------------------------------------------------ replies to prompts


def context_length(model: Any) -> int | None:
    """The largest number of tokens that a model reads at once, if its configuration names one."""
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    most = getattr(config, "max_position_embeddings", None)
    return most if isinstance(most, int) and most > 0 else None  # XLNet has -1, which means no limit


@torch.no_grad()
def replies(
    model: Any, tokenizer: Any, prompts: Sequence[Any], tokens: int, longest: int | None = None
) -> list[dict[str, list[int]]]:
    """Let a model reply to prompts (texts, or lists of chat messages); only the tokens of the replies count as labels.

    A reply has `tokens` tokens at most, and fewer where prompt and reply would have more than `longest`, by default the context
    length of the model. Decoding is greedy, so that all workers have the same replies.
    """
    if tokenizer is None:
        raise ValueError("protect_prompts= needs the tokenizer: pass it to the Trainer as processing_class=")
    device, was_training, found = next(model.parameters()).device, model.training, []
    longest = context_length(model) if longest is None else longest
    end = getattr(tokenizer, "eos_token_id", None)
    model.eval()
    for number, prompt in enumerate(prompts):
        plain = isinstance(prompt, str)
        text = tokenizer(prompt, return_tensors="pt")["input_ids"] if plain else _chat(tokenizer, prompt)
        # Some tokenizers add their end-of-text token, after which nothing is left to say.
        if plain and text.shape[1] > 1 and int(text[0, -1]) == end:
            text = text[:, :-1]
        text, asked = text.to(device), text.shape[1]
        if longest is not None and asked >= longest:
            raise ValueError(
                f"protect_prompts[{number}] has {asked} tokens and leaves no room for a reply, because the model reads {longest} "
                "tokens at most; shorten the prompt, or leave it out"
            )
        most = tokens if longest is None else min(tokens, longest - asked)
        whole = model.generate(
            text, attention_mask=torch.ones_like(text), do_sample=False, max_new_tokens=most, use_cache=True
        )[0].tolist()
        found.append({"input_ids": whole, "labels": [-100] * asked + whole[asked:]})
    model.train(was_training)
    return found


def _chat(tokenizer: Any, messages: Any) -> Any:
    settings = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
    try:
        return tokenizer.apply_chat_template(messages, **settings)["input_ids"]
    except Exception as error:  # templates raise errors of their own, about roles for example
        raise ValueError(
            f"protect_prompts=: the tokenizer cannot write a chat ({error}); pass texts, or a tokenizer with a chat template"
        ) from error


def pad(rows: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, Tensor]:
    """Collate replies with padding on the right, which does not count."""
    ids, labels = ([torch.tensor(row[key]) for row in rows] for key in ("input_ids", "labels"))
    return {
        "input_ids": pad_sequence(ids, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=-100),
    }
