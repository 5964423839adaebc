"""Run the pairs: `python -m experiments.portfolio` (see --help)."""

from __future__ import annotations

import argparse
import os
import sys
import time
from importlib import import_module
from pathlib import Path

from .page import SEEDS
from .prepare import DEVELOPMENT, FILES, HELD_OUT
from .record import RESULTS, header, start
from .rows import ABLATION, ABLATION_SEEDS, CORE, FINALS, PORTFOLIO, lines
from .unit import Unit, work

spread = import_module("experiments.never-regret.__main__").spread
CATS, CATS_FILE = "cat_vs_dog", "cat-vs-dog"
CAT_VS_DOG = Path(__file__).parent / "cat-vs-dog.yaml"
SHARED_MEMORY = Path("/dev/shm")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.portfolio",
        description="Train every row on every pair and seed with the product, one process for each core and one thread in "
        "each. A line is written for every finished row; lines that are there are skipped, so an interrupted run goes on. "
        "`python -m experiments.portfolio.page` makes docs/appendix/portfolio-never-regret.md from the results.",
    )
    parser.add_argument("--held-out", action="store_true", help="the held-out pairs: once, when everything is frozen")
    parser.add_argument(
        "--cat-vs-dog", action="store_true", help="the paper's Cat-vs-Dog, which wants a GPU (--workers 1)"
    )
    parser.add_argument("--pairs", nargs="+", metavar="PAIR", help="only these pairs")
    parser.add_argument("--rows", choices=(CORE, ABLATION, "all"), default="all", help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="paired seeds (default: %(default)s)")
    parser.add_argument("--ablation-seeds", type=int, default=ABLATION_SEEDS, help="default: %(default)s")
    parser.add_argument("--first-seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count(), help="processes (default: %(default)s, the cores)"
    )
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="begin no further row after so many seconds")
    parser.add_argument("--files", type=Path, default=FILES, help="what `prepare` wrote (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="default: %(default)s")
    parser.add_argument("--scratch", type=Path, help="folder for trials (default: shared memory where there is any)")
    parser.add_argument("--quick", action="store_true", help="a few steps of each: a check that all of it runs")
    given = parser.parse_args()
    if given.seeds < 1 or not given.workers or given.workers < 1:
        parser.error("--seeds and --workers must be at least 1")
    return given


def units(given: argparse.Namespace, jobs: dict[str, Path], out: Path, known: object) -> list[Unit]:
    """Seed by seed, so that finished seeds have all pairs when time runs out."""
    assert isinstance(known, dict)
    scratch = given.scratch or (SHARED_MEMORY if SHARED_MEMORY.is_dir() else None)
    deadline = None if given.budget is None else time.time() + given.budget
    found = []
    for number in range(given.seeds):
        seed = given.first_seed + number
        groups = [CORE] if given.rows in (CORE, "all") else []
        groups += [ABLATION] if given.rows in (ABLATION, "all") and number < given.ablation_seeds else []
        for pair, job in jobs.items():
            asked = lines(groups) if pair != CATS else [f"{PORTFOLIO}/{final}" for final in FINALS]
            wanted = tuple(name for name in asked if (pair, name, seed) not in known)
            if wanted:
                found.append(Unit(pair, job, seed, wanted, out, scratch, deadline, given.quick))
    return found


def main() -> None:
    given = arguments()
    half = CATS_FILE if given.cat_vs_dog else HELD_OUT if given.held_out else DEVELOPMENT
    every = {job.parent.name: job for job in sorted((given.files / half).glob("*/job.yaml"))}
    if given.cat_vs_dog:
        every = {CATS: CAT_VS_DOG}
    if not every:
        raise SystemExit(f"{given.files / half} has no jobs; run python -m experiments.portfolio.prepare FOLDER")
    names = given.pairs or list(every)
    for name in names:
        if name not in every:
            raise SystemExit(f"there is no {half} pair {name!r}; there are {', '.join(every)}")
    out = given.out / f"{half}.jsonl"
    known = start(out, header(half, every, quick=given.quick))
    todo = units(given, {name: every[name] for name in names}, out, known)
    began, done, rows = time.time(), 0, 0
    total = sum(len(unit.wanted) for unit in todo)

    def late() -> bool:
        return given.budget is not None and time.time() - began > given.budget

    for count in spread(((work, (unit,)) for unit in todo), min(given.workers, max(1, len(todo))), late):
        done, rows = done + 1, rows + count
        passed = time.time() - began
        if done % max(1, given.workers // 2) == 0 or done == len(todo):
            rest = passed / max(1, rows) * (total - rows)
            print(f"{rows} of {total} rows, {passed:.0f} s, about {rest:.0f} s left", file=sys.stderr, flush=True)
    left = f"; {total - rows} are left for another call" if total > rows else ""
    print(f"{out}: {rows} new rows{left}")


if __name__ == "__main__":
    main()
