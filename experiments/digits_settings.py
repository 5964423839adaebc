"""How the settings of `attittud demo` were chosen: on images taken from the auxiliary pool, never on the test images.

Prints the accuracy on 300 such images for several learning rates and numbers of steps. Two minutes on two cores.
"""

import itertools

import torch

from attittud.recipes.digits.data import Digits, digits, generator, images, split
from attittud.recipes.digits.rows import ROWS
from attittud.recipes.digits.train import Settings, accuracy, train

SEEDS = range(100, 104)  # not among the seeds of the demo
HELD_OUT = 300


def development(quality: str, seed: int) -> Digits:
    """The data of a run with the test images replaced by images of the auxiliary pool."""
    data, (pixels, labels) = digits(quality, seed), images()
    pool = split(seed).auxiliary
    order = torch.randperm(len(pool), generator=generator("development", seed))
    held_out, kept = order[:HELD_OUT], order[HELD_OUT:]
    auxiliary = (data.auxiliary[0][kept], data.auxiliary[1][kept])
    return Digits(data.primary, auxiliary, (pixels[pool[held_out]], labels[pool[held_out]]))


def mean_accuracy(name: str, quality: str, settings: Settings) -> float:
    row = next(row for row in ROWS if row.name == name)
    results = []
    for seed in SEEDS:
        data = development(quality, seed)
        results.append(accuracy(train(row, data, seed, settings), *data.test))
    return sum(results) / len(results)


def main() -> None:
    torch.set_num_threads(1)
    cells = [("primary_only", "right"), *(("multitask", quality) for quality in ("right", "random", "shifted"))]
    print("learning rate, steps:", *("/".join(cell) for cell in cells))
    for rate, steps in itertools.product((0.02, 0.05, 0.1), (100, 200, 400)):
        settings = Settings(learning_rate=rate, steps=steps)
        print(f"{rate:.2f} {steps}", *(f"{mean_accuracy(*cell, settings):.1f}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
