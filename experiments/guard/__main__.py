"""Run the experiment stage by stage: `python -m experiments.guard` (see --help and README.md)."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from .data import MEMORISED, REPLIES, TASKS
from .methods import METHODS
from .pool import LINES, SEEDS, TIMES, finished, load, slowest_first, stage_1, stage_2
from .prepare import FILES
from .score import TUNED_M, TUNING
from .train import QUICK, RATES, Bench, Run, Sizes

ABOUT = "about.json"
TIMED_STEPS = 30
"""A whole period of the methods that refresh their basis every 30 steps."""


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.guard", description=__doc__)
    parser.add_argument("--stage", choices=["0", "time", "1", "2"], required=True)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="results, replies and memorised weights"
    )
    parser.add_argument("--files", type=Path, default=FILES, help="what `prepare` wrote (default: %(default)s)")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="begin no further run after so many seconds")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the device (default: %(default)s)")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS, help="only these (default: all)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--compile", action="store_true", help="compile the layers of the model: fewer and larger kernels"
    )
    parser.add_argument("--quick", action="store_true", help="a few steps, one seed: a check that all of it runs")
    return parser.parse_args(given)


def begin(given: argparse.Namespace, sizes: Sizes) -> None:
    """Stage 0: the start model's replies, and the weights after TOFU was memorised."""
    bench = Bench(given.files, given.out, given.device, sizes, compiled=given.compile)
    if not (given.out / REPLIES).exists():
        (given.out / REPLIES).write_text(json.dumps(bench.replies()), encoding="utf-8")
    if not (given.out / MEMORISED).exists():
        print(json.dumps({"loss on TOFU's pairs": bench.memorise()}))
    about = {"torch": torch.__version__, "device": given.device, "quick": given.quick}
    about |= {"revision": os.environ.get("ATTITTUD_REVISION")}
    if given.device.startswith("cuda"):
        about["name"] = torch.cuda.get_device_name(given.device)
    (given.out / ABOUT).write_text(json.dumps(about), encoding="utf-8")


def measure_times(given: argparse.Namespace, sizes: Sizes) -> None:
    """Mean step times with one process alone; those that are there are kept.

    Only times of one process can be compared: give all methods of a task at once.
    """
    results = load(given.out)
    found, chosen = results.times, results.chosen()
    bench = Bench(given.files, given.out, given.device, sizes, compiled=given.compile)
    later = ["plain", "kl", chosen["replay"], *chosen["projections"]] if chosen else []
    start = time.time()
    # Those of stage 2 first: the rest can wait for minutes that are left.
    every = [("a", name) for name in METHODS] if "a" in given.tasks else []
    for task, method in [(task, name) for task in given.tasks for name in later] + every:
        key = f"{task}/{method}"
        if key in found or (given.budget is not None and time.time() - start > given.budget):
            continue
        found[key] = bench.timed(Run(task, method, RATES[0], TUNED_M, TUNING), TIMED_STEPS)
        (given.out / TIMES).write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(f"{key}: {1e3 * found[key]:.1f} ms", file=sys.stderr, flush=True)


def main(words: Sequence[str] | None = None) -> None:
    given = arguments(words)
    given.out.mkdir(parents=True, exist_ok=True)
    sizes = QUICK if given.quick else Sizes()
    if given.stage == "0":
        begin(given, sizes)
        return
    for name in (REPLIES, MEMORISED) if "b" in given.tasks else (REPLIES,):
        if not (given.out / name).exists():
            raise SystemExit(f"{given.out / name} is missing; run --stage 0 first")
    if given.stage == "time":
        measure_times(given, sizes)
        return
    results = load(given.out)
    if given.stage == "1":
        runs = stage_1()
    else:
        chosen = results.chosen()
        if not chosen:
            raise SystemExit(f"{given.out / LINES}: stage 1 is not finished; run --stage 1 first")
        runs = stage_2(chosen, SEEDS[:2] if given.quick else SEEDS)
    known = {line["key"] for line in results.lines}
    todo = [run for run in runs if run.key not in known and run.task in given.tasks]
    if given.budget is None:
        todo.sort(key=slowest_first)  # all of them will be run, so no process should work alone at the end
    began, done = time.time(), 0
    with (given.out / LINES).open("a", encoding="utf-8") as file:
        for line in finished(
            todo, (given.files, given.out, given.device, sizes, given.compile), given.workers, given.budget
        ):
            file.write(
                json.dumps(line | {"compiled": given.compile, "revision": os.environ.get("ATTITTUD_REVISION")}) + "\n"
            )
            file.flush()
            done += 1
            passed = time.time() - began
            rest = f"{done} of {len(todo)} runs, {passed:.0f} s, about {passed / done * (len(todo) - done):.0f} s left"
            print(f"{line['key']}: {line['whole_seconds']:.1f} s; {rest}", file=sys.stderr, flush=True)
    print(f"{given.out / LINES}: {done} new runs, {len(todo) - done} are left")


if __name__ == "__main__":
    main()
