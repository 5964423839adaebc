"""The demo's runs: one configuration, with every way to use the auxiliary data and three qualities of its labels."""

from __future__ import annotations

import time
from concurrent.futures import as_completed
from itertools import product
from pathlib import Path
from typing import Any

from attittud_lab.compare.candidates import PRIMARY_ONLY, Candidate, Tuned, Variant
from attittud_lab.compare.decide import ComparedRuns, content, costs
from attittud_lab.compare.progress import Runs
from attittud_lab.config.load import load
from attittud_lab.config.schema import Config
from attittud_lab.files import without_nan
from attittud_lab.output.interrupts import deaf_to_interrupts, worker_processes
from attittud_lab.runs.result import RunResult

CONFIG = Path(__file__).with_name("digits.yaml")
QUALITIES = {
    "labels right": "null",
    "50 % random": "{kind: random}",
    "50 % shifted to the next class": "{kind: shifted}",
}
"""What a table calls them, and the `label_noise` of the auxiliary source."""
_HALVES = ["training.mode=two_phase", "training.guided.steps={half}", "training.finetune.steps={half}"]
ROWS: dict[str, tuple[str, list[str]]] = {
    PRIMARY_ONLY: ("ignores the auxiliary data", []),
    "pretrain": (
        "auxiliary data alone for half of the steps, then primary data alone",
        ["strategy=pretrain", *_HALVES],
    ),
    "multitask": ("the plain sum of both losses: Eta (1, 1, 1)", []),
    "pcgrad": ("one-sided PCGrad: (1, 1, 0) against the mean primary gradient", []),
    "drop_harmful": ("Eta (1, 1, 0)", []),
    "orthogonal": ("Eta (1, 0, 0)", []),
    "helpful_only": ("Eta (0, 1, 0)", []),
    "flip": ("Eta (1, 1, -1)", []),
    "orthogonal_flip": ("Eta (1, 0, -1)", []),
    "auto": ("validation examples decide how much weight each part gets", []),
    "own_head": (
        "control: multitask, the auxiliary task with an output layer of its own",
        ["strategy=multitask", "data.auxiliary.others.share_head=false"],
    ),
}
"""What a row does, and its settings, if they are more than the strategy of its name."""
Cell = tuple[str, str, int]  # row, quality, seed


def config(cell: Cell, steps: int) -> Config:
    """Return the configuration of a run."""
    row, quality, seed = cell
    own = [text.format(half=steps // 2) for text in ROWS[row][1]] or [f"strategy={row}"]
    noise = f"data.auxiliary.others.label_noise={QUALITIES[quality]}"
    return load(CONFIG, [f"seed={seed}", f"training.guided.steps={steps}", noise, *own])


def measure(cell: Cell, steps: int, folder: Path) -> tuple[RunResult, float]:
    """Train in a process of its own; returns the processor time that it took, too."""
    import torch

    from attittud_lab.training.train import run

    torch.set_num_threads(1)  # the matrices are too small to share: more threads only wait for each other
    began, (row, quality, seed) = time.process_time(), cell
    path = folder / "runs" / quality.replace(" ", "-") / row / f"seed-{seed}"
    return run(config(cell, steps), run_dir=path, fresh=True), time.process_time() - began


def run_all(seeds: int, steps: int, workers: int, folder: Path, progress: Runs) -> dict[str, Any]:
    """Run the demo and return a comparison with a table for every quality."""
    first, *others = QUALITIES
    todo = [cell for cell in product(ROWS, QUALITIES, range(seeds)) if cell[0] != PRIMARY_ONLY or cell[1] == first]
    began, processor, found = time.perf_counter(), 0.0, dict[Cell, RunResult]()
    progress.comparison(len(todo))
    with worker_processes(workers) as pool:
        with deaf_to_interrupts():
            waiting = {pool.submit(measure, cell, steps, folder): cell for cell in todo}
        for future in as_completed(waiting):
            found[waiting[future]], seconds = future.result()
            processor += seconds
            progress.begin(", ".join(map(str, waiting[future])))
            progress.end()
    # It ignores the auxiliary data, so one quality stands for all.
    found |= {
        (PRIMARY_ONLY, quality, seed): found[PRIMARY_ONLY, first, seed] for quality in others for seed in range(seeds)
    }
    parts = {quality: _comparison(quality, seeds, folder, found) for quality in QUALITIES}
    tables = []
    for quality, part in parts.items():
        (table,) = part["tables"]
        decision = table["decision"]["text"].removesuffix(".")
        tables.append(table | {"name": quality, "about": f"auxiliary labels: {quality}. {decision}"})
    whole = {
        **parts[first],
        "title": "Where auxiliary data helps, does nothing and destroys",
        "tables": tables,
        "decision": tables[0]["decision"] | {"table": first},
        "took": {"seconds": time.perf_counter() - began, "processor_seconds": processor, "workers": workers},
    }
    return without_nan(whole)  # type: ignore[no-any-return]  # a dict stays one


def _comparison(quality: str, seeds: int, folder: Path, found: dict[Cell, RunResult]) -> dict[str, Any]:
    """Return the comparison of all rows in one quality, as `attittud compare` writes it."""
    runs = {row: {seed: found[row, quality, seed] for seed in range(seeds)} for row in ROWS}
    settings = load(CONFIG, [f"compare.seeds={seeds}"])
    rows = []
    for row, by_seed in runs.items():
        candidate = Candidate(row, settings.strategy, row != PRIMARY_ONLY)
        rows.append(Tuned(candidate, Variant(), {Variant(): None}, *costs(list(by_seed.values()))))
    return content(ComparedRuns(settings, folder, rows, [], runs, None, 0.0, {}))
