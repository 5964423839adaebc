"""Hugging Face's Trainer with a small primary dataset and a large auxiliary one.

    python examples/transformers_trainer.py runs/trainer            # train
    python examples/transformers_trainer.py runs/trainer --resume   # go on after a kill, with the same losses

The task: continue a sequence of numbers that goes up by one. There are 16 such sequences; the
auxiliary data have 256, half of them going down instead. The model is tiny and starts at random, so
nothing is downloaded.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments, set_seed

from attittud import preset
from attittud.integrations.transformers import AttittudTrainer

NUMBERS = 32
LENGTH = 10


def sequences(count: int, steps: Sequence[int], seed: int) -> list[dict[str, torch.Tensor]]:
    """Sequences of 4 to 10 numbers, padded; labels of -100 do not count."""
    random = torch.Generator().manual_seed(seed)
    data = []
    for i in range(count):
        start = int(torch.randint(NUMBERS, (1,), generator=random))
        length = int(torch.randint(4, LENGTH + 1, (1,), generator=random))
        inputs = (start + steps[i % len(steps)] * torch.arange(LENGTH)) % NUMBERS
        counts = torch.arange(LENGTH) < length
        labels = torch.where(counts, inputs, -100)
        data.append({"input_ids": inputs, "attention_mask": counts.long(), "labels": labels})
    return data


def make_trainer(
    folder: str, callbacks: Sequence[TrainerCallback] = (), **settings: object
) -> AttittudTrainer:
    """Everything here but the two marked lines is what a stock Trainer takes."""
    set_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=NUMBERS,
            n_positions=LENGTH,
            n_embd=32,
            n_layer=2,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    defaults = {
        "per_device_train_batch_size": 8,
        "max_steps": 20,
        "save_steps": 5,
        "logging_steps": 1,
        "learning_rate": 5e-3,
        "report_to": "none",
        "use_cpu": not torch.cuda.is_available(),
    }
    arguments = TrainingArguments(folder, **(defaults | settings))
    return AttittudTrainer(
        model=model,
        args=arguments,
        train_dataset=sequences(16, steps=[1], seed=1),
        callbacks=list(callbacks),
        auxiliary_datasets={"updown": sequences(256, steps=[1, -1], seed=2)},  # this
        guide={**preset("drop_harmful"), "rank": 5, "refresh_every": 3},  # and this
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", help="where checkpoints go")
    parser.add_argument(
        "--resume", action="store_true", help="go on from the last checkpoint in the folder"
    )
    options = parser.parse_args(arguments)
    make_trainer(options.folder).train(resume_from_checkpoint=options.resume or None)


if __name__ == "__main__":
    main()
