"""TRL's SFTTrainer that learns something new and protects what the model could do before.

    python examples/guard_trainer.py runs/guard                  # KL to the model before training
    python examples/guard_trainer.py runs/guard --guard a_gem    # or none

The model, tiny and from random weights, first learns to count upwards. Then it learns to count by
threes, while 16 sentences that count upwards are protected. The last lines show what it forgot
(share 1), and what averages of the weights before and after would have forgotten. This says nothing
about which method is better: see docs/guard.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from trl import SFTConfig, SFTTrainer
from trl_trainers import DEFAULTS, make_model, make_tokenizer, text

from attittud import averages, weights_of
from attittud.integrations.guard import GUARDS, GuardMixin


class Guarded(GuardMixin, SFTTrainer):
    pass


def make_start(folder: str, **settings: Any) -> Any:
    """A model that counts upwards."""
    args = SFTConfig(
        folder,
        **(DEFAULTS | {"max_steps": 60, "learning_rate": 2e-2, "save_strategy": "no"} | settings),
    )
    trainer = SFTTrainer(
        make_model(), args, train_dataset=text(256, [1], seed=1), processing_class=make_tokenizer()
    )
    trainer.train()
    return trainer.model


def make_trainer(folder: str, model: Any, guard: str = "kl", **settings: Any) -> Guarded:
    more = {"max_steps": 30, "eval_strategy": "steps", "eval_steps": 10, "save_strategy": "no"}
    return Guarded(
        model,
        SFTConfig(folder, **(DEFAULTS | more | settings)),
        train_dataset=text(256, [3], seed=2),
        eval_dataset=text(32, [3], seed=3),
        processing_class=make_tokenizer(),
        guard=guard,
        protect_dataset=text(16, [1], seed=4),
        protect_eval_dataset=text(64, [1], seed=5),
    )


def main(arguments: Sequence[str] | None = None) -> Guarded:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", help="where the trainer writes")
    parser.add_argument("--guard", choices=GUARDS, default="kl")
    options = parser.parse_args(arguments)
    trainer = make_trainer(options.folder, make_start(options.folder), options.guard)
    start = weights_of(trainer.model)
    trainer.train()
    print("share of the trained weights   forgetting")
    for share, forgotten in averages(trainer.model, start, trainer.forgetting).items():
        print(f"{share:28.2f} {forgotten:12.3f}")
    return trainer


if __name__ == "__main__":
    main()
