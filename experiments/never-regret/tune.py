"""Choose a learning rate for each pair: `python -m experiments.never-regret.tune` writes rates.json.

Every strategy of a pair uses the same rate: the one at which the better of `primary_only` and plain multitask is best on
validation. So the rate is tuned for the two that `auto` is measured against, and nothing of `auto` is looked at. The seeds
are not those of the suite, the test examples are not used.
"""

from __future__ import annotations

import argparse
import json
from statistics import fmean

import torch

from .pairs import PAIRS
from .strategies import entries
from .train import RATES, best, run

# At twice the largest rate SGD diverges on the digits.
GRID = {"sgd": (0.02, 0.05, 0.15), "adam": (0.001, 0.003, 0.01)}
SEEDS = range(100, 104)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.never-regret.tune", description=__doc__)
    parser.add_argument("pairs", nargs="*", default=list(PAIRS), metavar="PAIR", help="default: all of them")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.pairs:
        pair = PAIRS[name]
        rows = [
            entries(pair.sources)[row]
            for row in ("primary_only", "multitask 1" if pair.sources == 1 else "multitask 1 1")
        ]
        found = {}
        for rate in GRID[pair.optimizer]:
            found[rate] = {
                entry.row: round(
                    fmean(best(run(pair, entry.make, s, rate=rate), pair.steps).validation for s in SEEDS), 2
                )
                for entry in rows
            }
        chosen = max(found, key=lambda rate: max(found[rate].values()))
        known = json.loads(RATES.read_text(encoding="utf-8")) if RATES.is_file() else {}
        known[name] = {"rate": chosen, "validation": {str(rate): values for rate, values in found.items()}}
        RATES.write_text(json.dumps({p: known[p] for p in PAIRS if p in known}, indent=1) + "\n", encoding="utf-8")
        print(name, chosen, found, flush=True)


if __name__ == "__main__":
    main()
