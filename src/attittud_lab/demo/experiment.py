"""All rows, qualities and seeds, on a few processes; the outcome is a plain dict that goes to JSON as it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import as_completed
from contextlib import contextmanager
from dataclasses import asdict
from itertools import product
from typing import Any

import torch

from attittud_lab.demo.data import QUALITIES, digits
from attittud_lab.demo.rows import BASELINE, ROWS
from attittud_lab.demo.train import Settings, accuracy, train
from attittud_lab.output.interrupts import deaf_to_interrupts, worker_processes
from attittud_lab.runs.result import provenance

Cell = tuple[int, str, int]  # index of the row, quality, seed


def cells(seeds: int) -> list[Cell]:
    """Every run that is needed; the baseline ignores the auxiliary data, so one quality stands for all."""
    return [
        (index, quality, seed)
        for seed, (index, row), quality in product(range(seeds), enumerate(ROWS), QUALITIES)
        if row.name != BASELINE or quality == "right"
    ]


def measure(cell: Cell, settings: Settings) -> tuple[float, float]:
    """Test accuracy of one run in per cent, and the processor time it took."""
    index, quality, seed = cell
    start = time.process_time()
    data = digits(quality, seed)
    with one_thread():
        found = accuracy(train(ROWS[index], data, seed, settings), *data.test)
    return found, time.process_time() - start


@contextmanager
def one_thread() -> Iterator[None]:
    """The matrices are too small to share: more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def outcomes(todo: list[Cell], settings: Settings, workers: int) -> Iterable[tuple[Cell, tuple[float, float]]]:
    """Runs in the order in which they finish."""
    if workers == 1:
        yield from ((cell, measure(cell, settings)) for cell in todo)
        return
    with worker_processes(workers) as pool:
        with deaf_to_interrupts():
            waiting = {pool.submit(measure, cell, settings): cell for cell in todo}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


def run(seeds: int, settings: Settings, workers: int, done: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """The experiment: `accuracy[row][quality]` is a list over seeds. Calls `done` after each of its `cells(seeds)`."""
    made_with = provenance(["numpy", "scikit-learn"])  # before: a checkout may change under a run
    start, processor = time.perf_counter(), 0.0
    found: dict[Cell, float] = {}
    for cell, (value, took) in outcomes(cells(seeds), settings, workers):
        found[cell] = value
        processor += took
        done()
    return {
        "experiment": "digits",
        "settings": asdict(settings) | {"seeds": list(range(seeds))},
        "qualities": QUALITIES,
        "rows": {row.name: row.what for row in ROWS},
        "accuracy": {
            row.name: {
                quality: [found.get((index, quality, seed), found[index, "right", seed]) for seed in range(seeds)]
                for quality in QUALITIES
            }
            for index, row in enumerate(ROWS)
        },
        "seconds": round(time.perf_counter() - start, 1),
        "processor_seconds": round(processor, 1),
        "workers": workers,
        "made_with": made_with,
    }
