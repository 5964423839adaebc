"""Which runs a stage has, and processes that train them side by side."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from .data import TASKS
from .methods import METHODS
from .score import TUNED_M, TUNING, Results
from .train import RATES, Bench, Run, Sizes

SEEDS, MANY = (0, 1, 2, 3), (32, 128)
LINES, TIMES = "runs.jsonl", "times.json"

_bench: Bench | None = None  # of a worker process


def slowest_first(run: Run) -> tuple[bool, bool]:
    return not METHODS[run.method].single, not METHODS[run.method].guide


def stage_1() -> list[Run]:
    """The longest runs first, so that no process works alone at the end."""
    runs = [Run("a", method, rate, TUNED_M, TUNING) for method in METHODS for rate in RATES]
    return sorted(runs, key=slowest_first)


def stage_2(chosen: dict[str, Any], seeds: Sequence[int] = SEEDS) -> list[Run]:
    """Seed by seed, so that whole seeds are there when time runs out."""
    found = []
    methods = [chosen["replay"], "kl", *chosen["projections"]]
    for seed in seeds:
        for task in TASKS:
            found += [Run(task, "plain", rate, 0, seed) for rate in RATES]
            found += [Run(task, method, chosen["rates"][method], m, seed) for method in methods for m in MANY]
    for seed in seeds:
        found += [Run("a", name, chosen["rates"][name], m, seed, lora=True)
                  for name, m in (("plain", 0), ("kl", TUNED_M), (chosen["projections"][0], TUNED_M))]  # fmt: skip
    return found


def load(folder: Path) -> Results:
    path, times = folder / LINES, folder / TIMES
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    return Results(lines, json.loads(times.read_text("utf-8")) if times.exists() else {})


def _open(files: Path, folder: Path, device: str, sizes: Sizes, compiled: bool) -> None:
    global _bench  # noqa: PLW0603 - a process loads its model once
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 8) if device != "cpu" else 1)
    _bench = Bench(files, folder, device, sizes, compiled=compiled)


def _work(run: Run, deadline: float | None) -> dict[str, Any] | None:
    assert _bench is not None
    return None if deadline is not None and time.time() > deadline else _bench.run(run)


def finished(
    todo: Sequence[Run], settings: tuple[Path, Path, str, Sizes, bool], workers: int, budget: float | None
) -> Iterator[dict[str, Any]]:
    """Lines as they come; runs that would begin too late are left out. `settings` are the arguments of a `Bench`.

    A run that ends with an error is said and left for the next call: the others have cost minutes of a GPU.
    """
    deadline = None if budget is None else time.time() + budget
    if workers == 1:
        _open(*settings)
        for run in todo:
            line = _work(run, deadline)
            if line is not None:
                yield line
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), _open, settings) as pool:
        futures: dict[Future[dict[str, Any] | None], Run] = {pool.submit(_work, run, deadline): run for run in todo}
        for future in as_completed(futures):
            error = future.exception()
            if error is not None:
                print(f"{futures[future].key}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            elif (line := future.result()) is not None:
                yield line
