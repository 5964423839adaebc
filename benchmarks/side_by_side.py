"""The mean step of two revisions of the library, beside multitask and TorchJD's sketch.

    git worktree add ../before 69126ad5
    python -m benchmarks.side_by_side --before ../before/src --out results

Everything runs in one process, on one model and the same data. The package of the other revision is
copied and renamed to `attittud_before`, so that both can be imported.

A block is an untimed step, because it follows a step of another method, and then a refresh and nine
plain steps, timed as a whole. Each round has the blocks now, before, before, now, multitask and
TorchJD's: the speed of a machine changes within seconds. Ratios are medians over the rounds, with a
95 % interval. `side_by_side.json` is written after every model.
"""

from __future__ import annotations

import argparse
import importlib
import math
import re
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.methods import Guided, Method, Multitask, TorchJD, TorchJDLoop
from benchmarks.results import provenance, write
from benchmarks.steps import CYCLE, note, warm_up
from benchmarks.timing import CORES, DEVICE, seconds
from benchmarks.workloads import SPECS, Workload

MODELS = ("wrn22", "roberta128", "roberta512")
RENAMED = "attittud_before"
FEWEST_ROUNDS = 2


def renamed_copy(source: Path, folder: Path) -> None:
    """Copy the package `source/attittud` into a folder under another name.

    The name changes in every file, because it is also part of the names of torch's operators.
    """
    target = folder / RENAMED
    shutil.copytree(source / "attittud", target, ignore=shutil.ignore_patterns("__pycache__"))
    for file in target.rglob("*.py"):
        file.write_text(re.sub(r"\battittud\b", RENAMED, file.read_text()))


def methods_of(work: Workload, k: int) -> tuple[dict[str, Method], dict[str, str]]:
    """All methods after their warm-up, and the reasons for which others are left out, by name."""
    makers = {
        "now": lambda: Guided(work, k, "auto"),
        "before": lambda: Guided(work, k, "auto", library=importlib.import_module(RENAMED)),
        "multitask": lambda: Multitask(work, k),
        TorchJDLoop.name: lambda: TorchJDLoop(work, k),
        TorchJD.name: lambda: TorchJD(work, k),
    }
    methods: dict[str, Method] = {}
    notes: dict[str, str] = {}
    for name, make in makers.items():
        try:
            method = make()
            warm_up(method)
        except Exception as error:  # a peer that is missing or refuses this model is a result
            notes[name] = note(error)
            print(f"    {name}: {notes[name]}", flush=True)
        else:
            methods[name] = method
    return methods, notes


def block(method: Method, device: torch.device) -> float:
    """Mean seconds of a step, over a refresh and nine plain steps."""

    def cycle() -> None:
        for number in range(CYCLE):
            method.step(number == 0 and method.has_refresh)

    method.step(False)  # not timed
    return seconds(cycle, device) / CYCLE


def measure(name: str, *, device: str, quick: bool, limit: float) -> dict[str, Any]:
    """One model. After `limit` seconds no further round begins, the warm-up included."""
    start = time.perf_counter()
    work = Workload(SPECS[name], device=device, tiny=quick)
    spec = work.spec
    methods, notes = methods_of(work, spec.k)
    revisions = [label for label in ("now", "before") if label in methods]
    peers = [label for label in methods if label not in revisions]
    order = [*revisions, *reversed(revisions), *peers]
    rounds: list[dict[str, float]] = []
    while len(rounds) < FEWEST_ROUNDS or time.perf_counter() - start < limit:
        CORES.choose(work.device)
        blocks: dict[str, list[float]] = defaultdict(list)
        for label in order:
            blocks[label].append(block(methods[label], work.device))
        rounds.append({label: statistics.fmean(times) for label, times in blocks.items()})
    engines = {}
    for label in revisions:
        engines[label] = str(getattr(methods[label].guide.engine, "chosen", None))
    seconds_of = {}
    now_over = {}
    over_multitask = {}
    for label in methods:
        seconds_of[label] = statistics.median(times[label] for times in rounds)
        over_multitask[label] = median([times[label] / times["multitask"] for times in rounds])
        if label != "now":
            now_over[label] = median([times["now"] / times[label] for times in rounds])
    return {
        "k": spec.k,
        "m": spec.m,
        "period": CYCLE,
        "engines": engines,
        "seconds": seconds_of,
        "now_over": now_over,
        "over_multitask": over_multitask,
        "rounds": rounds,
        "notes": notes,
    }


def median(values: list[float]) -> dict[str, float]:
    """The median with a 95 % interval by order statistics."""
    ordered = sorted(values)
    n = len(values)
    reach = 0.98 * math.sqrt(n)  # 1.96 standard deviations √n / 2 of a rank
    return {
        "median": statistics.median(ordered),
        "low": ordered[max(0, math.floor(n / 2 - reach))],
        "high": ordered[min(n - 1, math.ceil(n / 2 + reach))],
        "n": n,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.side_by_side", description=__doc__)
    parser.add_argument(
        "--before", type=Path, required=True, help="folder with the other `attittud`, such as src"
    )
    parser.add_argument("--only", nargs="+", choices=MODELS, default=MODELS, metavar="MODEL")
    parser.add_argument("--device", default=DEVICE)
    parser.add_argument(
        "--seconds", type=float, default=90.0, help="per model, with its warm-up (default: 90)"
    )
    parser.add_argument("--out", type=Path, help="folder for side_by_side.json")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*batching rule.*")
    quick = options.device == "cpu"
    limit = 2.0 if quick else options.seconds
    models: dict[str, Any] = {}
    record = {"provenance": provenance(options.device, quick), "models": models}
    with tempfile.TemporaryDirectory() as folder:
        renamed_copy(options.before, Path(folder))
        sys.path.insert(0, folder)
        for name in options.only:
            point = measure(name, device=options.device, quick=quick, limit=limit)
            models[name] = point
            if options.out is not None:
                write(options.out / "side_by_side.json", record)
            print(name, "seconds", point["seconds"], flush=True)
            for label, ratio in point["now_over"].items():
                print(f"    now over {label}: {ratio}", flush=True)


if __name__ == "__main__":
    main()
