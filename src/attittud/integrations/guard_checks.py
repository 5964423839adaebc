"""Is what a user hands to `GuardMixin` usable? Each message names the argument and the cure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, Literal

from torch import Tensor, nn

from attittud._checks import check_choice, check_count, check_weight
from attittud.integrations.auxiliary import JUDGES

PROTECTED, HELD_OUT = "protected", "held_out"
WHOLE = ("Sequence", "Image", "Video", "Audio")
"""Kinds of classifiers in transformers (For...Classification) with one prediction for each example, not for each token."""


def check_numbers(weight: Any, batch_size: Any, reply_tokens: Any, shares: Any) -> tuple[float, ...]:
    """Check the numbers of a guard, and return the shares."""
    if weight is not None and check_weight("protect_weight", weight) < 0:
        raise ValueError(
            f"protect_weight must not be negative, got {weight!r}: the model would be trained to forget the protected data; give "
            "a positive number"
        )
    if batch_size is not None:
        check_count("protect_batch_size", batch_size)
    check_count("reply_tokens", reply_tokens)
    if isinstance(shares, (str, int, float)):
        raise TypeError(f"shares= takes several numbers, such as (0, 0.5, 1), got {shares!r}; write ({shares},)")
    return tuple(check_weight("shares", share) for share in shares)


def protected_kind(guard: str, loss: Any, weight: Any) -> Literal["nll", "kl"]:
    """Return the kind of the protected loss. Refuse a loss or a weight that the method does not use."""
    given = {f"protect_loss={loss!r}": loss, "protect_weight=": weight}
    unused = next((name for name, value in given.items() if value is not None), None)
    if loss is not None:
        check_choice("protect_loss", loss, ("nll", "kl"))
    if guard == "none" and unused is not None:
        raise ValueError(
            f"{unused} has no effect with guard='none', which trains on the new data alone. Leave it out, or choose another guard"
        )
    if guard == "kl" and loss == "nll":
        raise ValueError(
            "protect_loss='nll' has no effect with guard='kl', whose protected loss is the divergence from the start model. "
            "Leave it out, or choose guard='replay', which adds the trainer's own loss"
        )
    return "kl" if "kl" in (guard, loss) else "nll"


def check_guide(guard: str, guide: Mapping[str, Any]) -> None:
    """Refuse arguments of a guide that a method without projection does not use."""
    if unused := sorted(guide.keys() - ({"primary_weight"} if guard != "none" else set())):
        raise ValueError(
            f"guide= has {unused[0]!r}, which has no effect with guard={guard!r}: this method only adds losses and projects "
            "nothing. Leave it out, or choose a name of attittud.guards()"
        )


def protected_sets(guard: str, needed: bool, dataset: Any, prompts: Any) -> dict[str, Any]:
    """Return the protected sets by name. The set of replies to prompts is filled later."""
    if dataset is not None and prompts is not None:
        raise ValueError("protect_dataset= and protect_prompts= are alternatives; pass one of them")
    if prompts is not None:
        _check_prompts(prompts)
        return {PROTECTED: []}
    if dataset is None:
        if not needed:
            return {}
        raise ValueError(
            f"guard={guard!r} needs protected data: pass protect_dataset=, or protect_prompts=, to which the start model replies"
        )
    if isinstance(dataset, Mapping) and not dataset:
        raise ValueError("protect_dataset= is an empty dict; name at least one set of protected examples")
    sets = dict(dataset) if isinstance(dataset, Mapping) else {PROTECTED: dataset}
    if taken := sets.keys() & {HELD_OUT, JUDGES}:
        raise ValueError(f"protect_dataset=: the name {min(taken)!r} is reserved; give this set another name")
    for name, data in sets.items():
        _check_some("protect_dataset=" if name == PROTECTED else f"protect_dataset= {name!r}", data)
    return sets


def held_out_set(dataset: Any) -> dict[str, Any]:
    """Return the held-out set by name."""
    if dataset is None:
        return {}
    if isinstance(dataset, Mapping):
        raise TypeError(
            "protect_eval_dataset= takes one dataset; join several with datasets.concatenate_datasets([...])"
        )
    _check_some("protect_eval_dataset=", dataset)
    return {HELD_OUT: dataset}


def _check_some(what: str, data: Any) -> None:
    if hasattr(data, "__len__") and len(data) == 0:
        raise ValueError(f"{what} is empty; give at least one example")


def _check_prompts(prompts: Any) -> None:
    if isinstance(prompts, str) or not isinstance(prompts, Sequence):
        raise TypeError(
            f"protect_prompts= takes a list of texts or of chats, got a {type(prompts).__name__}; write [prompt] for a single "
            "prompt, and list(table['prompt']) for a column of a table"
        )
    if not prompts:
        raise ValueError("protect_prompts= is empty; give at least one prompt")
    for number, prompt in enumerate(prompts):
        chat = isinstance(prompt, Sequence) and all(
            isinstance(message, Mapping) and {"role", "content"} <= message.keys() for message in prompt
        )
        if not prompt or not (isinstance(prompt, str) or chat):
            raise ValueError(
                f"protect_prompts[{number}] is {prompt!r}; a prompt is a text that is not empty, or a list of messages such as "
                '[{"role": "user", "content": "..."}]'
            )


def check_model(trainer: Any, prepared: Collection[str]) -> None:
    """Refuse models and settings whose outputs do not belong to the tokens of a protected batch.

    `prepared` are the sets that are prepared and collated like `train_dataset`.
    """
    model = trainer.model
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise ValueError(
            f"{type(model).__name__} is an encoder-decoder model, which GuardMixin does not support: its losses need labels as "
            "input. Use a model without an encoder, or a plain loop (docs/guard.md)"
        )
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise ValueError(
            "prompt learning (PEFT) is not supported: its virtual tokens make the outputs longer than the labels. Train LoRA "
            "adapters instead: peft_config=LoraConfig(...)"
        )
    if prepared and getattr(trainer.args, "precompute_ref_log_probs", False):
        raise ValueError(
            "precompute_ref_log_probs=True computes the reference for train_dataset and eval_dataset alone, not for protected "
            "pairs. Set it to False, or protect texts with a protect_collator="
        )
    if (other := _foreign(model)) is not None:
        raise ValueError(
            f"model: this copy of a {type(other).__name__} that TRL trained still runs the forward pass of the original, so "
            "protected losses and forgetting would be measured on the original; load the model again with from_pretrained, or "
            "call load_state_dict on a new one"
        )


def _foreign(model: Any) -> nn.Module | None:
    """Find another model whose forward pass a model calls.

    TRL replaces `forward` by a function that keeps the old bound method in a closure. `copy.deepcopy` copies no closure, so a
    copy of such a model calls the first model wherever it needs logits. Only modules of the same class count as another model:
    wrappers and teachers that a closure refers to are no copies.
    """
    if not isinstance(model, nn.Module):
        return None
    own = {id(module) for module in model.modules()}
    for module in model.modules():
        if "forward" in vars(module):
            for found in _bound_to(vars(module)["forward"]):
                if type(found) is type(module) and id(found) not in own:
                    return found
    return None


def _bound_to(function: Any) -> Iterator[nn.Module]:
    """Yield the modules to which a function, or a function that it wraps, is bound."""
    left, seen = [function], set[int]()
    while left:
        item = left.pop()
        # Modules are callable too, but what they call is their own; a class is no wrapped function.
        if id(item) in seen or not callable(item) or isinstance(item, (nn.Module, type)):
            continue
        seen.add(id(item))
        bound: list[Any] = []
        if isinstance(item, MethodType):
            bound, inner = [item.__self__], [item.__func__, item.__self__]
        elif isinstance(item, partial):
            bound, inner = [*item.args], [item.func]
        elif isinstance(item, FunctionType):
            cells = [cell for cell in item.__closure__ or () if cell != CellType()]  # an empty cell has no contents
            inner = [cell.cell_contents for cell in cells]
        else:  # Accelerate's wrappers are objects that hold the function
            inner = list(getattr(item, "__dict__", {}).values())
        yield from (x for x in bound if isinstance(x, nn.Module))
        left += [*inner, getattr(item, "__wrapped__", None)]


def check_best(args: Any) -> None:
    """Refuse settings under which transformers would keep the checkpoint that forgot most, as it does by default."""
    name = getattr(args, "metric_for_best_model", None) or ""
    if "forgetting" in name and args.greater_is_better:
        raise ValueError(
            f"metric_for_best_model={name!r} needs greater_is_better=False: less forgetting is better, but transformers prefers "
            "the greater value of every metric whose name does not end with 'loss'"
        )


def check_divergence(guard: str, trainer: Any, prepared: Collection[str]) -> None:
    """Refuse the divergence from the start model where there are no tokens that could be compared."""
    what, others = _divergence(guard)
    if set(prepared) - {HELD_OUT} and any(base.__name__ == "DPOTrainer" for base in type(trainer).__mro__):
        raise ValueError(
            f"{what} compares predictions of tokens with labels, which DPO's pairs do not have. Protect texts with a "
            f"protect_collator=, such as transformers' DataCollatorForLanguageModeling(tokenizer, mlm=False), or {others}"
        )
    if getattr(trainer.model, "loss_type", None) in {f"For{kind}Classification" for kind in WHOLE}:
        check_tokens(guard, trainer.model, "one prediction for each example")


def check_tokens(guard: str, model: Any, found: str | Tensor) -> None:
    """Refuse a model whose logits are not m x T x C; `found` are its logits, or says what is known of them."""
    if isinstance(found, Tensor):
        if found.ndim == 3:
            return
        found = f"logits of shape {tuple(found.shape)}"
    what, others = _divergence(guard)
    raise ValueError(
        f"{what} needs a language model, because it compares predictions of tokens, but {type(model).__name__} has {found}; "
        f"{others}"
    )


def _divergence(guard: str) -> tuple[str, str]:
    """Return which argument asked for the divergence, and what to choose instead."""
    if guard == "kl":
        return "guard='kl'", "choose guard='replay', 'a_gem' or another name of attittud.guards()"
    return "protect_loss='kl'", f"leave it out: guard={guard!r} then uses the trainer's own loss"


def check_single(guard: str, trainer: Any, prepared: Collection[str]) -> None:
    """Refuse protected batches in which rows are not examples, for a method that needs single examples.

    Held-out data are only measured, so their rows may hold several examples.
    """
    prepared = set(prepared) - {HELD_OUT}
    if prepared and getattr(trainer, "padding_free", False):
        name = "packing" if getattr(trainer.args, "packing", False) else "padding_free"
        raise ValueError(
            f"guard={guard!r} needs the losses of single protected examples, but with {name}=True they share a row. Set "
            f"{name}=False, or pass a protect_collator= that pads"
        )


class CheckedCollator:
    """Makes protected batches; errors name the argument. It checks labels here, where they are still in the CPU's memory.

    `first` is the first position whose label counts; None does not check labels.
    """

    def __init__(self, collator: Any, what: str, first: int | None) -> None:
        self.collator, self.what, self.first = collator, what, first

    def __call__(self, rows: Any) -> Any:
        try:
            batch = self.collator(rows)
        except Exception as error:  # a collator looks at rows without a check, so any error may come
            raise ValueError(
                f"{self.what}: the collator cannot make a batch of its examples ({type(error).__name__}: {error}); give them "
                "the columns of train_dataset, or pass a protect_collator="
            ) from error
        labels = batch.get("labels") if isinstance(batch, Mapping) and self.first is not None else None
        if isinstance(labels, Tensor) and labels.ndim == 2 and not (labels[:, self.first :] != -100).any():
            raise ValueError(
                f"{self.what}: a batch has no token that counts, because all its labels are -100; leave out examples whose reply "
                "begins beyond the maximum length, or raise protect_batch_size="
            )
        return batch
