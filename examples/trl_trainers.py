"""TRL's SFTTrainer and DPOTrainer with a small primary dataset and a large auxiliary one.

    python examples/trl_trainers.py sft runs/sft            # train; or dpo
    python examples/trl_trainers.py sft runs/sft --resume   # go on after a kill, with the same losses

The task: with SFT, 16 sentences teach the model to count upwards; with DPO, 16 pairs teach it to
prefer that to counting downwards. The auxiliary data are 256 sentences, half of them downwards. The
model is tiny and starts at random, so nothing is downloaded.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    DataCollatorForLanguageModeling,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    set_seed,
)
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from attittud import preset
from attittud.integrations.transformers import AttittudMixin

NUMBERS = 30
GUIDE = {**preset("drop_harmful"), "rank": 5, "refresh_every": 3}


class GuidedSFT(AttittudMixin, SFTTrainer):
    pass


class GuidedDPO(AttittudMixin, DPOTrainer):
    pass


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A word for each number."""
    words = {word: i for i, word in enumerate(["<pad>", "<eos>", *map(str, range(NUMBERS))])}
    rule = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    rule.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=rule, pad_token="<pad>", eos_token="<eos>")


def make_model() -> LlamaForCausalLM:
    set_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=NUMBERS + 2,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
        )
    )


def counting(count: int, steps: Sequence[int], seed: int) -> list[str]:
    """Sentences of 4 to 9 numbers that go up or down."""
    random = torch.Generator().manual_seed(seed)
    starts = torch.randint(NUMBERS, (count,), generator=random).tolist()
    lengths = torch.randint(4, 10, (count,), generator=random).tolist()
    sentences = []
    for i in range(count):
        numbers = (starts[i] + steps[i % len(steps)] * torch.arange(lengths[i])) % NUMBERS
        sentences.append(" ".join(map(str, numbers.tolist())))
    return sentences


def text(count: int, steps: Sequence[int], seed: int) -> Dataset:
    return Dataset.from_dict({"text": counting(count, steps, seed)})


def pairs(count: int, seed: int) -> Dataset:
    """Two ways to go on: upwards is the better one."""
    rows = []
    for up, down in zip(counting(count, [1], seed), counting(count, [-1], seed), strict=True):
        start, _, chosen = up.partition(" ")
        rejected = down.partition(" ")[2]
        rows.append({"prompt": f"{start} ", "chosen": chosen, "rejected": rejected})
    return Dataset.from_list(rows)


DEFAULTS = {
    "per_device_train_batch_size": 8,
    "max_steps": 20,
    "save_steps": 5,
    "logging_steps": 1,
    "learning_rate": 5e-3,
    "max_length": 16,
    "report_to": "none",
    "use_cpu": not torch.cuda.is_available(),
    "bf16": torch.cuda.is_available(),
}


def make_sft(folder: str, guide: Any = GUIDE, **settings: Any) -> GuidedSFT:
    return GuidedSFT(
        model=make_model(),
        args=SFTConfig(folder, **(DEFAULTS | settings)),
        train_dataset=text(16, [1], seed=1),
        processing_class=make_tokenizer(),
        auxiliary_datasets={"updown": text(256, [1, -1], seed=2)},  # this
        guide=guide,  # and this
    )


def make_dpo(folder: str, guide: Any = GUIDE, **settings: Any) -> GuidedDPO:
    """The auxiliary data are no pairs but plain text, so they bring their own collator and loss."""
    tokenizer = make_tokenizer()
    tokens = text(256, [1, -1], seed=2).map(
        lambda row: tokenizer(row["text"]), remove_columns="text"
    )
    return GuidedDPO(
        model=make_model(),
        ref_model=make_model(),
        args=DPOConfig(folder, **(DEFAULTS | settings)),
        train_dataset=pairs(16, seed=1),
        processing_class=tokenizer,
        auxiliary_datasets={"updown": tokens},
        auxiliary_collators={"updown": DataCollatorForLanguageModeling(tokenizer, mlm=False)},
        auxiliary_losses={"updown": lambda model, inputs: model(**inputs).loss},
        guide=guide,
    )


MAKE = {"sft": make_sft, "dpo": make_dpo}


def main(arguments: Sequence[str] | None = None) -> Trainer:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("trainer", choices=MAKE, help="sft: SFTTrainer; dpo: DPOTrainer")
    parser.add_argument("folder", help="where checkpoints go")
    parser.add_argument(
        "--resume", action="store_true", help="go on from the last checkpoint in the folder"
    )
    options = parser.parse_args(arguments)
    trainer = MAKE[options.trainer](options.folder)
    trainer.train(resume_from_checkpoint=options.resume or None)
    return trainer


if __name__ == "__main__":
    main()
