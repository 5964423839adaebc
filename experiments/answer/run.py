"""Run methods on pairs and seeds: one small JSON file for each, which is not made again.

The product runs through its own entry points, as `attittud train` calls them, in a run folder whose
files are then read. `table.py` makes all statistics from the results. Revision d7e42bf8 has the
runners of decided questions too: rows that share work, the portfolio of revision 69126ad5, gold
loss correction, and how well wrong labels are found.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from attittud_lab.config.load import load
from attittud_lab.portfolio.run import run as run_portfolio
from attittud_lab.runs.result import provenance
from attittud_lab.training.train import load_data
from attittud_lab.training.train import run as run_single

from . import build, pairs, references
from .pair import Pair
from .references import METHODS as REFERENCES
from .references import Problem
from .write import ROOT

NO_CLOCK = "portfolio.budget=100000d"
"""A busy machine must change no result."""
SIMPLE = {"text": ["linear"], "image": ["linear"], "table": ["linear", "kernel", "boosting"]}
"""The simple learners that the product tries by default."""
PLAIN_FEATURES = {"text": ["tfidf"], "image": ["histogram"], "table": ["columns"]}
GUIDED = ("drop_harmful", "orthogonal", "auto")
"""The strategies of ATTITTUD that may be candidates."""
WEIGHTS = (0.03, 0.1, 0.2, 0.4, 0.7, 1.0, 2.0, 4.0)
"""Weights of the auxiliary losses among which the tuned multitask run is chosen."""
ROWS_OF_KIND: dict[str, dict[str, dict[str, Any]]] = {
    "table": {
        "only_linear": {"learners": ["linear"]},
        "without_kernel": {"learners": ["linear", "boosting"]},
        "without_boosting": {"learners": ["linear", "kernel"]},
        "with_extra_trees": {"learners": [*SIMPLE["table"], "extra trees"]},
    },
    "text": {"only_minilm": {"features": ["minilm"]}},
    "image": {"only_efficientnet": {"features": ["efficientnet"]}},
}
"""Rows for one kind of data alone."""


def portfolio_rows(kind: str, *, shares: bool) -> dict[str, dict[str, Any]]:
    """What each row changes in the portfolio's settings; protocol.md has them in words.

    `kind` is that of the data; with `shares` a source has the primary classes, so that networks can
    share their output layer.
    """
    with_networks = [*SIMPLE[kind], "network"]
    head = {"head": "shared"} if shares else {}
    plain = [{"name": name} | head for name in ("multitask", "pretrain")]
    guided = [{"name": name} | head for name in GUIDED]
    return {
        "default": {},
        "ensemble": {"final": "ensemble"},
        "single": {"final": "single"},
        "uses_alone": {"uses": ["alone"], "candidates": []},
        "without_pretrained": {"features": PLAIN_FEATURES[kind]},
        "without_simple": {"learners": ["network"]},
        "without_networks": {},  # on a CPU the default tries none
        "with_networks": {"learners": with_networks, "candidates": plain},
        "with_attittud": {"learners": with_networks, "candidates": plain + guided},
        "without_translated": {"uses": ["alone", "stacked"]},
        "without_stacked": {"uses": ["alone", "translated"]},
        "with_translated": {"uses": ["alone", "stacked", "translated"]},
        "with_pooled": {"uses": ["alone", "stacked", "pooled"]},
        **ROWS_OF_KIND[kind],
    }


PORTFOLIOS = (*portfolio_rows("text", shares=True), "only_efficientnet", *ROWS_OF_KIND["table"])
SINGLE_RUNS = ("primary_only", "channel", "own_head", "auto", "multitask")
METHODS = (*PORTFOLIOS, *REFERENCES, *SINGLE_RUNS)
PACKAGES = ("torch", "numpy", "scikit-learn", "scipy", "transformers")
"""Results record the versions of these."""


@dataclass(frozen=True)
class Place:
    """Where a run reads and writes, and what it needs from elsewhere."""

    out: Path
    data: Path | None = None
    """The folder of the public data sets, to build pairs that are not there."""
    autogluon: str | None = None
    """The interpreter of AutoGluon's environment."""
    quick: bool = False
    """Six steps for every network: a test of the runner, not a measurement."""

    def files(self, pair: str) -> Path:
        """The folder that `build` writes."""
        return self.out / "files" / pair

    def result(self, pair: str, seed: int, method: str) -> Path:
        return self.out / "results" / pair / f"{seed}-{method}.json"

    def cache(self, pair: str) -> Path:
        """Features that are computed once for a pair, for all seeds."""
        return self.out / "cache" / pair


def run_all(
    names: Sequence[str], seeds: Sequence[int], methods: Sequence[str], place: Place, workers: int
) -> list[Path]:
    """Make all results that are not there, all pairs of a seed before the next seed. Returns their
    files.
    """
    os.chdir(ROOT)  # jobs below the checkout have relative paths
    for name in names:
        build_once(name, place)
    files: list[Path] = []
    if workers == 1:
        for seed in seeds:
            for name in names:
                files += run_seed(name, seed, methods, place)
        return files
    os.environ["OMP_NUM_THREADS"] = "1"  # read by the processes that are started now
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        waiting = []
        for seed in seeds:
            for name in names:
                waiting.append(pool.submit(run_seed, name, seed, methods, place))
        for done in as_completed(waiting):
            files += done.result()
    return files


def build_once(name: str, place: Place) -> None:
    """Build the folder of a pair. `build` writes the job last, when all other files are there."""
    folder = place.files(name)
    if not (folder / "job.yaml").exists():
        if place.data is None and pairs()[name].kind != "table":
            raise SystemExit(f"{folder} is not there; build it, or give the data as --data")
        build(name, place.data or Path("no-data"), folder.parent, 0)


def run_seed(name: str, seed: int, methods: Sequence[str], place: Place) -> list[Path]:
    """Make the results of a pair and a seed that are not there; returns their files."""
    os.chdir(ROOT)
    task = None
    files = []
    for method in methods:
        path = place.result(name, seed, method)
        if path.exists():
            continue
        task = task or Task(pairs()[name], seed, place)
        if not task.has(method):
            continue
        result = task.one(method)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(result, indent=1), encoding="utf-8")
        unfinished.rename(path)
        files.append(path)
        shown = result.get("error", result["accuracy"])
        print(f"{name} {seed} {method}: {shown} ({result['cpu_seconds']:.1f} s)", flush=True)
    return files


class Task:
    """A pair with a seed, on which several methods are run."""

    def __init__(self, pair: Pair, seed: int, place: Place) -> None:
        self.pair = pair
        self.folder = place.files(pair.name)
        self.seed = seed
        self.place = place
        job = yaml.safe_load((self.folder / "job.yaml").read_text(encoding="utf-8"))
        self.sources: dict[str, Any] = job["data"]["auxiliary"]
        self.same_classes = [name for name, x in self.sources.items() if x["share_head"]]
        """The sources that have the primary classes."""
        data = load_data(load(self.folder / "job.yaml", [f"seed={seed}"]), pooled=True)
        self.rows = rows_of(data.record)
        """The rows whose labels the product draws for the seed, and the rows that it uses of
        sources.
        """

    def has(self, method: str) -> bool:
        """Whether a method exists for the pair."""
        shares = bool(self.same_classes)
        if method in REFERENCES:
            return references.applies(method, self.pair.kind, shares_classes=shares)
        if method in PORTFOLIOS and method != "with_pooled":
            return method in portfolio_rows(self.pair.kind, shares=shares)
        return shares

    def one(self, method: str) -> dict[str, Any]:
        """The result of a method, with everything that one needs to repeat it. A failure is a
        result.
        """
        started = time.perf_counter()
        started_cpu = cpu_seconds()
        try:
            result = self.run(method)
        except (RuntimeError, ValueError, OSError) as error:
            result = {"accuracy": None, "error": f"{type(error).__name__}: {error}"}
        versions = provenance(PACKAGES) | {"python": sys.version.split()[0]}
        about = {
            "pair": self.pair.name,
            "seed": self.seed,
            "method": method,
            "labels": checksum(self.rows["primary"]),
            "quick": self.place.quick,
            "seconds": time.perf_counter() - started,
            "cpu_seconds": cpu_seconds() - started_cpu,
            "provenance": versions,
        }
        return about | result

    def run(self, method: str) -> dict[str, Any]:
        """Accuracy on the test examples and on the folds, and what was chosen."""
        if method in REFERENCES:
            cache = self.place.cache(self.pair.name) / "references"
            autogluon = self.place.autogluon
            return references.reference(method, self.problem(), self.seed, cache, autogluon)
        if method != "multitask":
            return self.product(method)
        runs = [self.product(method, weight) for weight in WEIGHTS]
        return max(runs, key=lambda run: run["fold_accuracy"])

    def problem(self) -> Problem:
        """What references read."""
        sources = {name: np.array(self.rows[name]) for name in self.same_classes}
        return Problem(self.pair.kind, self.folder, np.array(self.rows["primary"]), sources)

    def product(self, method: str, weight: float | None = None) -> dict[str, Any]:
        """One run of the product in this process."""
        train = run_single if method in SINGLE_RUNS else run_portfolio
        settings = self.settings(method, weight)
        run_dir = self.place.out / "runs" / f"{self.pair.name}-{self.seed}-{method}"
        shutil.rmtree(run_dir, ignore_errors=True)
        train(load(self.folder / "job.yaml", settings), run_dir=run_dir)
        result = read_run(run_dir)
        shutil.rmtree(run_dir)
        return result | {"settings": settings}

    def settings(self, method: str, weight: float | None) -> list[str]:
        """The settings of a method of the product, as on the command line."""
        settings = [f"seed={self.seed}", f"output={self.place.cache(self.pair.name)}"]
        settings.append("training.threads=1")
        if method in PORTFOLIOS:
            settings += ["strategy=portfolio", NO_CLOCK]
            rows = portfolio_rows(self.pair.kind, shares=bool(self.same_classes))
            for name, value in rows[method].items():
                settings.append(f"portfolio.{name}={json.dumps(value)}")
        elif method == "own_head":
            settings.append("strategy=multitask")
            for source in self.same_classes:
                settings.append(f"data.auxiliary.{source}.share_head=false")
        else:
            settings.append(f"strategy={method}")
        if weight is not None:
            for source in self.sources:
                settings.append(f"data.auxiliary.{source}.weight={weight}")
        if self.place.quick:
            settings.append("training.guided.steps=6")
        return settings


def cpu_seconds() -> float:
    """Seconds of all cores that this process and its finished children have used."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def rows_of(record: dict[str, Any]) -> dict[str, list[int]]:
    """The rows in a record of data: of all labels, as `primary`, and of every source."""
    rows = {name: part_rows(part) for name, part in record["auxiliary"].items()}
    labelled = {*part_rows(record["primary"]["train"])}
    labelled.update(part_rows(record["primary"]["validation"]))
    return rows | {"primary": sorted(labelled)}


def part_rows(part: dict[str, Any]) -> list[int]:
    """The rows that a record lists for one part; a part of all rows has only their number."""
    if part["rows"] == "all":
        return [*range(part["count"])]
    rows: list[int] = part["rows"]
    return rows


def checksum(rows: Sequence[int]) -> str:
    """By which the table notices that a method had other labels."""
    return sha256(json.dumps(rows).encode()).hexdigest()[:16]


def read_run(run_dir: Path) -> dict[str, Any]:
    """What results keep of a run folder."""
    result = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))
    record = json.loads((run_dir / "data.json").read_text(encoding="utf-8"))
    facts: dict[str, Any] = {
        "labels": checksum(rows_of(record)["primary"]),
        "accuracy": result["test"]["accuracy"],
        "fold_accuracy": result["validation"]["accuracy"],
    }
    board_path = run_dir / "leaderboard.json"
    if board_path.exists():
        board = json.loads(board_path.read_text(encoding="utf-8"))
        facts["chosen"] = board["final"]["winner"]
        facts["candidates"] = {row["label"]: row.get("score") for row in board["candidates"]}
        if board["chance"] is not None:
            facts["chance"] = board["chance"]["value"]
    return facts
