"""Run methods on pairs and seeds: one small JSON file for each, which is not made again."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from . import build, pairs, references
from .pair import Pair
from .references import METHODS as REFERENCES
from .references import Problem
from .write import ROOT, truth_file

COMMON = ["training.threads=1", "strategy=portfolio"]
NO_CLOCK = "portfolio.budget=100000d"
"""A busy machine must change no result."""
SIMPLE = {"text": ["linear"], "image": ["linear"], "table": ["linear", "kernel", "boosting"]}
"""The simple learners that the product tries by default."""
PLAIN_FEATURES = {"text": ["tfidf"], "image": ["histogram"], "table": ["columns"]}
GUIDED = ("drop_harmful", "orthogonal", "auto")
"""The strategies of ATTITTUD that may be candidates."""
WEIGHTS = (0.03, 0.1, 0.2, 0.4, 0.7, 1.0, 2.0, 4.0)
"""Weights of the auxiliary losses among which the tuned multitask run is chosen."""
PORTFOLIOS = (
    "default",
    "ensemble",
    "single",
    "uses_alone",
    "without_pretrained",
    "without_simple",
    "without_networks",
    "with_networks",
    "with_attittud",
    "without_translated",
    "without_stacked",
)
TRANSLATED = ("channel", "gold_loss_correction")
SINGLE_RUNS = ("primary_only", *TRANSLATED, "own_head", "auto", "multitask")
SUSPICIOUS = "suspicious"
"""Not a model, but how well wrong labels are found; see suspects.py."""
METHODS = ("before", *PORTFOLIOS, SUSPICIOUS, *REFERENCES, *SINGLE_RUNS)


@dataclass(frozen=True)
class Place:
    """Where a run reads and writes, and what it needs from elsewhere."""

    out: Path
    data: Path | None
    before: Path | None
    """A worktree of revision 69126ad5."""
    autogluon: str | None
    """The interpreter of AutoGluon's environment."""
    quick: bool
    """Six steps for every network: a test of the runner, not a measurement."""
    shares: bool = True
    """Whether methods on the same pair and seed share work; see shared.py."""

    def result(self, pair: str, seed: int, method: str) -> Path:
        return self.out / "results" / pair / f"{seed}-{method}.json"

    def cache(self, pair: str) -> Path:
        """Everything that is computed once for a pair, for all seeds."""
        return self.out / "cache" / pair


def run_all(
    names: Sequence[str],
    seeds: Sequence[int],
    methods: Sequence[str],
    place: Place,
    workers: int = 1,
) -> list[Path]:
    """Make all results that are not there, all pairs of a seed before the next seed. Returns their
    files.
    """
    os.chdir(ROOT)  # jobs below the checkout have relative paths
    for name in names:
        build_once(name, place)
    tasks = [(name, seed) for seed in seeds for name in names]
    files: list[Path] = []
    if workers == 1:
        for name, seed in tasks:
            files += run_seed(name, seed, methods, place)
        return files
    os.environ["OMP_NUM_THREADS"] = "1"  # read by the processes that are started now
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(run_seed, name, seed, methods, place) for name, seed in tasks]
        for done in as_completed(waiting):
            files += done.result()
    return files


def build_once(name: str, place: Place) -> Path:
    """The folder of a pair, which appears under its name when all its files are there."""
    folder = place.out / "files" / name
    if not (folder / "job.yaml").exists():
        if place.data is None and pairs()[name].kind != "table":
            raise SystemExit(f"{folder} is not there; build it, or give the data as --data")
        build(name, place.data or Path("no-data"), place.out / "files", 0)
    return folder


def run_seed(name: str, seed: int, methods: Sequence[str], place: Place) -> list[Path]:
    """Make the results of a pair and a seed that are not there; returns their files."""
    os.chdir(ROOT)
    pair = pairs()[name]
    folder = place.out / "files" / name
    missing = []
    for method in methods:
        if exists(method, pair, folder) and not place.result(name, seed, method).exists():
            missing.append(method)
    if not missing:
        return []
    task = Task(pair, folder, seed, place)
    for method in missing:
        result = task.one(method)
        path = place.result(name, seed, method)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(result, indent=1), encoding="utf-8")
        unfinished.rename(path)
        accuracy = result["accuracy"]
        shown = result.get("error", "") if accuracy is None else f"{100 * accuracy:.1f}"
        same = f", same as {result['same_as']}" if "same_as" in result else ""
        print(f"{name} {seed} {method}: {shown} ({result['cpu_seconds']:.1f} s{same})", flush=True)
    return [place.result(name, seed, method) for method in missing]


def embed_all(names: Sequence[str], seeds: Sequence[int], place: Place, workers: int) -> None:
    """Compute everything that a run needs of frozen encoders, without labels and without any
    method.
    """
    os.chdir(ROOT)
    for name in names:
        build_once(name, place)
    os.environ["OMP_NUM_THREADS"] = "1"  # read by the processes that are started now
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for line in pool.map(embed_pair, names, [seeds] * len(names), [place] * len(names)):
            print(line, flush=True)


def embed_pair(name: str, seeds: Sequence[int], place: Place) -> str:
    """Compute the rows of the frozen encoder, and the features of the references; returns a line
    about them.
    """
    from attittud_lab.config.load import load
    from attittud_lab.training.train import load_data

    from .shared import embed

    os.chdir(ROOT)
    folder = place.out / "files" / name
    for seed in seeds:
        data = load_data(load(folder / "job.yaml", [f"seed={seed}"]), pooled=True)
        rows = embed(data, place.cache(name))
    kind = pairs()[name].kind
    sources = {source: np.arange(1) for source in same_classes(folder)}
    problem = Problem(kind, folder, np.arange(1), sources)
    references.embed(problem, place.cache(name) / "references")
    size = sum(path.stat().st_size for path in place.cache(name).rglob("*") if path.is_file())
    return f"{name}: {rows} examples, {size / 1e6:.1f} MB"


def job_of(folder: Path) -> dict[str, Any]:
    import yaml

    job: dict[str, Any] = yaml.safe_load((folder / "job.yaml").read_text(encoding="utf-8"))
    return job


def same_classes(folder: Path) -> list[str]:
    """The sources that have the primary classes."""
    sources = job_of(folder)["data"]["auxiliary"].items()
    return [name for name, source in sources if source["share_head"]]


def exists(method: str, pair: Pair, folder: Path) -> bool:
    """Whether a method exists for a pair."""
    shares = bool(same_classes(folder))
    if method in REFERENCES:
        return references.applies(method, pair.kind, shares_classes=shares)
    if method == SUSPICIOUS:
        return any(truth_file(folder, source).exists() for source in same_classes(folder))
    return method not in SINGLE_RUNS or shares


class Task:
    """A pair with a seed, on which several methods are run."""

    def __init__(self, pair: Pair, folder: Path, seed: int, place: Place) -> None:
        from .shared import Shared

        self.pair = pair
        self.folder = folder
        self.seed = seed
        self.place = place
        self.rows = labelled_rows(folder, seed)
        self.checksum = checksum(self.rows["primary"])
        key = f"{seed}-{provenance()['provenance']['revision']}"
        self.shared = Shared(place.cache(pair.name), pair.kind, key)

    def one(self, method: str) -> dict[str, Any]:
        """The result of a method, with everything that one needs to repeat it. A failure is a
        result.
        """
        started = time.perf_counter(), cpu_seconds()
        try:
            result = self.run(method)
        except (RuntimeError, ValueError, OSError) as error:
            result = {"accuracy": None, "error": f"{type(error).__name__}: {error}"}
        about: dict[str, Any] = {"pair": self.pair.name, "seed": self.seed, "method": method}
        about |= {"labels": self.checksum, "quick": self.place.quick}
        about["seconds"] = time.perf_counter() - started[0]
        about["cpu_seconds"] = cpu_seconds() - started[1]
        return about | provenance() | result

    def run(self, method: str) -> dict[str, Any]:
        if method in REFERENCES:
            cache = self.place.cache(self.pair.name) / "references"
            return references.reference(
                method, self.problem(), self.seed, cache, self.place.autogluon
            )
        if method == "before":
            return before(self.folder, self.seed, self.place)
        if method == SUSPICIOUS:
            return self.suspicious()
        if method == "multitask":
            runs = [self.product(method, weight) for weight in WEIGHTS]
            return max(runs, key=lambda run: run["fold_accuracy"])
        with self.sharing(method):
            if method in PORTFOLIOS and method != "default" and self.same_as_default(method):
                return self.repeated(method)
            return self.product(method)

    def problem(self) -> Problem:
        """What references read."""
        sources = {name: np.array(self.rows[name]) for name in same_classes(self.folder)}
        return Problem(self.pair.kind, self.folder, np.array(self.rows["primary"]), sources)

    def suspicious(self) -> dict[str, Any]:
        """How well wrong labels are found with the candidates of `default`."""
        from attittud_lab.portfolio import run as portfolio

        from .suspects import measured

        figures: dict[str, Any] = {}

        def measure(simple: Any, data: Any, _: Path) -> list[Any]:
            figures.update(measured(simple, data, self.folder))
            return []

        with self.shared.used(report=True), patch.object(portfolio, "suspicious", measure):
            result = self.product("default")
        return {"accuracy": result["accuracy"], "sources": figures}

    @contextmanager
    def sharing(self, method: str) -> Iterator[None]:
        """What runs with features share their work; what only a person reads is made by the first
        portfolio alone.
        """
        from .shared import without_shrinkage

        if method not in (*PORTFOLIOS, *TRANSLATED) or not self.place.shares:
            yield
            return
        with ExitStack() as opened:
            opened.enter_context(self.shared.used(report=method == "default"))
            if method == "gold_loss_correction":
                opened.enter_context(without_shrinkage())
            yield

    # ---------------------------------------------------------------------------------- the product

    def settings(self, method: str, weight: float | None = None) -> list[str]:
        settings = [f"seed={self.seed}", f"output={self.place.cache(self.pair.name)}"]
        settings += overrides(method, self.pair, self.folder)
        if weight is not None:
            sources = job_of(self.folder)["data"]["auxiliary"]
            settings += [f"data.auxiliary.{source}.weight={weight}" for source in sources]
        if self.place.quick:
            settings.append("training.guided.steps=6")
        return settings

    def product(self, method: str, weight: float | None = None) -> dict[str, Any]:
        """One run of the product in this process."""
        from attittud_lab.config.load import load
        from attittud_lab.portfolio.run import run as run_portfolio
        from attittud_lab.training.train import run as run_single

        settings = self.settings(method, weight)
        config = load(self.folder / "job.yaml", settings)
        run_dir = self.place.out / "runs" / f"{self.pair.name}-{self.seed}-{method}"
        shutil.rmtree(run_dir, ignore_errors=True)
        train = run_single if method in SINGLE_RUNS else run_portfolio
        train(config, run_dir=run_dir)
        result = finished(run_dir)
        shutil.rmtree(run_dir)
        return result | {"settings": settings}

    def same_as_default(self, method: str) -> bool:
        """Whether a method would try the same candidates as `default` and choose in the same
        way.
        """
        from attittud_lab.config.load import load
        from attittud_lab.training.train import load_data

        from .shared import plan

        plans = []
        for name in (method, "default"):
            config = load(self.folder / "job.yaml", self.settings(name))
            plans.append(plan(config, load_data(config, pooled=True)))
        return plans[0] == plans[1]

    def repeated(self, method: str) -> dict[str, Any]:
        """The result of `default` for a method that is the same run."""
        path = self.place.result(self.pair.name, self.seed, "default")
        if not path.exists():
            return self.product(method)
        default = json.loads(path.read_text(encoding="utf-8"))
        if default["provenance"]["revision"] != provenance()["provenance"]["revision"]:
            return self.product(method)
        measured = (
            "labels",
            "accuracy",
            "fold_accuracy",
            "chosen",
            "chance",
            "candidates",
            "error",
        )
        result = {name: default[name] for name in measured if name in default}
        return result | {"same_as": "default", "settings": self.settings(method)}


def cpu_seconds() -> float:
    """Seconds of all cores that this process and its finished children have used."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def provenance() -> dict[str, Any]:
    """Versions, machine and revision."""
    from attittud_lab.runs.result import provenance as of_product

    packages = ("torch", "numpy", "scikit-learn", "scipy", "transformers")
    facts: dict[str, Any] = of_product(packages)
    return {"provenance": facts | {"python": sys.version.split()[0]}}


def labelled_rows(folder: Path, seed: int) -> dict[str, list[int]]:
    """The rows whose labels the product draws for a seed, and the rows that it uses of sources."""
    from attittud_lab.config.load import load
    from attittud_lab.training.train import load_data

    return rows_of(load_data(load(folder / "job.yaml", [f"seed={seed}"]), pooled=True).record)


def rows_of(record: dict[str, Any]) -> dict[str, list[int]]:
    """The rows in a record of data: of all labels, as `primary`, and of every source."""

    def numbers(part: dict[str, Any]) -> list[int]:
        return [*range(part["count"])] if part["rows"] == "all" else part["rows"]

    drawn = [numbers(record["primary"][part]) for part in ("train", "validation")]
    rows = {name: numbers(part) for name, part in record["auxiliary"].items()}
    return rows | {"primary": sorted({*drawn[0], *drawn[1]})}


def checksum(rows: Sequence[int]) -> str:
    return sha256(json.dumps(rows).encode()).hexdigest()[:16]


# -------------------------------------------------------------------------------------- the product


def overrides(method: str, pair: Pair, folder: Path) -> list[str]:
    """The settings of a method of the product, as on the command line."""
    if method in SINGLE_RUNS:
        return single_run(method, folder)
    with_networks = [*SIMPLE[pair.kind], "network"]
    shares = {"head": "shared"} if same_classes(folder) else {}
    guided = [{"name": name, **shares} for name in GUIDED]
    plain: list[dict[str, Any]] = [{"name": "multitask", **shares}, {"name": "pretrain", **shares}]
    settings: dict[str, dict[str, Any]] = {
        "ensemble": {"final": "ensemble"},
        "single": {"final": "single"},
        "uses_alone": {"uses": ["alone"], "candidates": []},
        "without_pretrained": {"features": PLAIN_FEATURES[pair.kind]},
        "without_simple": {"learners": ["network"]},
        "without_networks": {},  # on a CPU the default tries none
        "with_networks": {"learners": with_networks, "candidates": plain},
        "with_attittud": {"learners": with_networks, "candidates": [*plain, *guided]},
        "without_translated": {"uses": ["alone", "stacked"]},
        "without_stacked": {"uses": ["alone", "translated"]},
    }
    chosen = settings.get(method, {})
    lines = [f"portfolio.{key}={json.dumps(value)}" for key, value in chosen.items()]
    return [*COMMON, NO_CLOCK, *lines]


def single_run(method: str, folder: Path) -> list[str]:
    strategy = {"own_head": "multitask", "gold_loss_correction": "channel"}.get(method, method)
    lines = [f"strategy={strategy}", "training.threads=1"]
    if method == "own_head":
        lines += [f"data.auxiliary.{name}.share_head=false" for name in same_classes(folder)]
    return lines


BEFORE = """
import sys
from attittud_lab.config.load import load
from attittud_lab.portfolio.run import run
run(load(sys.argv[1], sys.argv[3:]), sys.argv[2])
"""


def before(folder: Path, seed: int, place: Place) -> dict[str, Any]:
    """The portfolio of an earlier revision, in a process that has its sources."""
    if place.before is None:
        raise SystemExit(
            "method before needs a worktree: git worktree add ../before 69126ad5; "
            "then --before ../before"
        )
    run_dir = place.out / "runs" / f"{folder.name}-{seed}-before"
    shutil.rmtree(run_dir, ignore_errors=True)
    settings = [f"seed={seed}", *COMMON, NO_CLOCK]
    if place.quick:
        settings.append("training.guided.steps=6")
    command = [sys.executable, "-c", BEFORE, str(folder / "job.yaml"), str(run_dir), *settings]
    environment = os.environ | {"PYTHONPATH": str(place.before / "src")}
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    result = finished(run_dir)
    shutil.rmtree(run_dir)
    return result | {"settings": settings}


def finished(run_dir: Path) -> dict[str, Any]:
    """What is kept of a run folder."""
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
        facts["chance"] = None if board["chance"] is None else board["chance"]["value"]
        facts["candidates"] = {row["label"]: row.get("score") for row in board["candidates"]}
    return facts
