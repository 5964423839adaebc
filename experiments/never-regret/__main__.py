"""Run the suite: `python -m experiments.never-regret` (see --help)."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from attittud_lab.output import progress as shown
from attittud_lab.placing.job import Here, Job
from attittud_lab.placing.processes import in_processes

from .jobs import QUICK_STEPS, TIMED_STEPS, alone, clock, jobs, train
from .pairs import SPLIT, choose
from .record import RESULTS, Record, header
from .strategies import ROWS


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.never-regret",
        description="Train every strategy on every pair and seed, one process for each core. Every run is written at "
        "once; runs that are already there are skipped, so an interrupted suite goes on where it was. "
        "`python -m experiments.never-regret.page` makes docs/appendix/never-regret.md from the results.",
    )
    parser.add_argument("--held-out", action="store_true", help="the held-out half: once, when the rule is frozen")
    parser.add_argument("--pairs", nargs="+", metavar="PAIR", help="only these pairs (default: the whole half)")
    parser.add_argument(
        "--rows", nargs="+", choices=ROWS, default=ROWS, metavar="ROW", help=f"only these of {', '.join(ROWS)}"
    )
    parser.add_argument("--seeds", type=int, default=10, help="paired seeds (default: %(default)s)")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count(), help="processes (default: %(default)s, the cores)"
    )
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="start no further run after so many seconds")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="a few steps of each: a check that all of it runs")
    given = parser.parse_args()
    if given.seeds < 1 or not given.workers or given.workers < 1:
        parser.error("--seeds and --workers must be at least 1")
    return given


Work = tuple[Callable[..., Any], tuple[Any, ...]]


def spread(work: Iterable[Work], workers: int, late: Callable[[], bool] = lambda: False) -> Iterator[Any]:
    """Results as they come; once time is up no new job is begun. A single worker is this process."""
    todo = takewhile(lambda _: not late(), work)
    if workers == 1:
        yield from (alone(*piece) for piece in todo)
        return
    with in_processes(workers) as place:
        jobs = (Job(f"{piece[1]}", _alone, piece) for piece in todo)
        yield from (result for _, result in place.run(jobs, shown.Progress()))


def _alone(_: Here, *piece: Any) -> Any:
    return alone(*piece)


class Progress:
    """One line, rewritten on a terminal, now and then elsewhere. By hand: rich is not everywhere where this runs."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.start, self.shown = total, 0, time.perf_counter(), -60.0

    def advance(self) -> None:
        self.done += 1
        passed = time.perf_counter() - self.start
        terminal = sys.stderr.isatty()
        if terminal or passed - self.shown > 20 or self.done == self.total:
            self.shown = passed
            rest = passed / self.done * (self.total - self.done)
            end = "\r" if terminal and self.done < self.total else "\n"
            print(
                f"{self.done}/{self.total} runs, {passed:.0f} s, {rest:.0f} s left  ",
                end=end,
                file=sys.stderr,
                flush=True,
            )


def main() -> None:
    given = arguments()
    half = "held_out" if given.held_out else "development"
    names = given.pairs or SPLIT[half]
    pairs = choose(names, held_out=given.held_out)
    everything = choose(SPLIT[half], held_out=given.held_out)
    steps = QUICK_STEPS if given.quick else None
    # The header names the whole half, so that pairs can come in several calls.
    about = header(half, pairs if given.quick else everything, given.quick)
    record = Record(given.out / f"{half}.jsonl", about)
    start = time.perf_counter()

    def late() -> bool:
        return given.budget is not None and time.perf_counter() - start > given.budget

    untimed = [name for name in names if name not in record.clocks]
    for name, seconds in spread(((clock, (name, steps or TIMED_STEPS)) for name in untimed), given.workers):
        record.add_clock(name, seconds)
    wanted = jobs(names, given.rows, given.seeds, record.clocks, steps)
    todo = [one for one in wanted if one.key not in record.runs]
    progress = Progress(len(todo))
    for line in spread(((train, (one,)) for one in todo), min(given.workers, max(1, len(todo))), late):
        record.add(line)
        progress.advance()
    left = len(todo) - progress.done
    rest = f"; {left} are left for another call, the budget is spent" if left else ""
    print(f"{record.path}: {len(record.runs)} runs{rest}")


if __name__ == "__main__":
    main()
