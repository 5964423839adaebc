"""Is what a user hands to `GuardMixin` usable? Each message names the argument and the cure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor

from attittud._checks import check_count, check_weight
from attittud.integrations.auxiliary import JUDGES

PROTECTED, HELD_OUT = "protected", "held_out"


def check_numbers(weight: Any, batch_size: Any, reply_tokens: Any, shares: Any) -> tuple[float, ...]:
    """Check the numbers of a guard, and return the shares."""
    if weight is not None:
        check_weight("protect_weight", weight)
    if batch_size is not None:
        check_count("protect_batch_size", batch_size)
    check_count("reply_tokens", reply_tokens)
    if isinstance(shares, (str, int, float)):
        raise TypeError(f"shares= takes several numbers, such as (0, 0.5, 1), got {shares!r}; write ({shares},)")
    return tuple(check_weight("shares", share) for share in shares)


def check_guide(guard: str, guide: Mapping[str, Any]) -> None:
    """Refuse arguments of a guide that a method without projection does not use."""
    if unused := sorted(guide.keys() - {"primary_weight"}):
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


def check_single(guard: str, trainer: Any, prepared: Collection[str]) -> None:
    """Refuse protected batches in which rows are not examples, for a method that needs single examples."""
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
                f"{self.what}: a batch has no token that counts, because all its labels are -100; leave out examples without a "
                "reply within the largest length, or raise protect_batch_size="
            )
        return batch
