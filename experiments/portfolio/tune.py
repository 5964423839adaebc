"""Choose a learning rate for each pair: `python -m experiments.portfolio.tune` writes rates.json.

The rates are also put into the jobs. Every row of a pair uses the same rate: the one at which the better of `primary_only`
and plain multitask is best on validation. So the rate suits the references, and nothing of the portfolio is looked at. The
seeds are not those of the suite, and no test figure is read. Pairs that have a rate are skipped unless they are named.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from importlib import import_module
from pathlib import Path
from statistics import fmean

from attittud_lab.config.load import load
from attittud_lab.training.train import load_data, run

from .prepare import DEVELOPMENT, FILES, HELD_OUT, RATES, rates, with_rate

spread = import_module("experiments.never-regret.__main__").spread
GRID = (1e-3, 3e-3, 1e-2)
SEEDS = range(1000, 1003)
REFERENCES = ("primary_only", "multitask")


def validation(folder: Path, seed: int) -> dict[tuple[float, str], float]:
    """Validation accuracy in per cent of both references, by rate; ties are broken by a little of the loss."""
    config = load(folder / "job.yaml", [f"seed={seed}"])
    data, found = load_data(config), {}
    for rate in GRID:
        for name in REFERENCES:
            with tempfile.TemporaryDirectory() as place:
                tried = load(folder / "job.yaml", [f"seed={seed}", f"training.guided.lr={rate}", f"strategy={name}"])
                figures = run(tried, run_dir=place, data=data).validation
            found[rate, name] = 100 * figures["accuracy"] - 0.1 * min(figures["loss"], 10)
    return found


def one(folder: Path, seed: int) -> tuple[str, dict[tuple[float, str], float]]:
    return folder.name, validation(folder, seed)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.portfolio.tune", description=__doc__)
    parser.add_argument("--development", action="store_true", help="the earlier pairs instead of the held-out ones")
    parser.add_argument("--pairs", nargs="+", metavar="PAIR", help="only these pairs")
    parser.add_argument("--workers", type=int, default=1, help="processes (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RATES, help="default: %(default)s")
    given = parser.parse_args()
    half = FILES / (DEVELOPMENT if given.development else HELD_OUT)
    known = rates(given.out)
    names = given.pairs or sorted(folder.name for folder in half.iterdir() if folder.name not in known)
    found: dict[str, list[dict[tuple[float, str], float]]] = {name: [] for name in names}
    for name, values in spread(((one, (half / name, seed)) for name in names for seed in SEEDS), given.workers):
        found[name].append(values)
        if len(found[name]) < len(SEEDS):
            continue
        means = {
            rate: {row: round(fmean(tried[rate, row] for tried in found[name]), 2) for row in REFERENCES}
            for rate in GRID
        }
        chosen = max(means, key=lambda rate: max(means[rate].values()))
        line = {"rate": chosen, "validation": {str(rate): row for rate, row in means.items()}}
        given.out.write_text(
            json.dumps(rates(given.out) | {name: line}, indent=1, sort_keys=True) + "\n", encoding="utf-8"
        )
        job = half / name / "job.yaml"
        job.write_text(with_rate(job.read_text(encoding="utf-8"), chosen), encoding="utf-8")
        print(name, chosen, means, flush=True)


if __name__ == "__main__":
    main()
