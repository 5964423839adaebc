"""Run methods on pairs and seeds: one small JSON file for each, which is not made again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from . import build, pairs, references
from .pair import Pair
from .references import METHODS as REFERENCES
from .references import Problem
from .write import ROOT

COMMON = ["training.threads=1", "strategy=portfolio"]
NO_CLOCK = "portfolio.budget=100000 runs"
"""A busy machine must change no result."""
SIMPLE = {"text": ["linear"], "image": ["linear", "kernel"]}
SIMPLE["table"] = ["linear", "kernel", "extra_trees", "boosting"]
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
SINGLE_RUNS = ("primary_only", "channel", "own_head", "auto", "multitask")
METHODS = ("before", *PORTFOLIOS, *REFERENCES, *SINGLE_RUNS)


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

    def result(self, pair: str, seed: int, method: str) -> Path:
        return self.out / "results" / pair / f"{seed}-{method}.json"


def run_all(
    names: Sequence[str], seeds: Sequence[int], methods: Sequence[str], place: Place
) -> list[Path]:
    """Make all results that are not there. Returns their files."""
    os.chdir(ROOT)  # jobs below the checkout have relative paths
    declared = pairs()
    made = []
    for name in names:
        folder = place.out / "files" / name
        if not (folder / "job.yaml").exists():
            if place.data is None and declared[name].kind != "table":
                raise SystemExit(f"{folder} is not there; build it, or give the data as --data")
            build(name, place.data or Path("no-data"), place.out / "files", 0)
        for seed in seeds:
            for method in methods:
                path = place.result(name, seed, method)
                if path.exists() or not exists(method, declared[name], folder):
                    continue
                result = one(declared[name], folder, seed, method, place)
                path.parent.mkdir(parents=True, exist_ok=True)
                unfinished = path.with_suffix(".unfinished")
                unfinished.write_text(json.dumps(result, indent=1), encoding="utf-8")
                unfinished.rename(path)
                made.append(path)
                accuracy = result["accuracy"]
                shown = "failed" if accuracy is None else f"{100 * accuracy:.1f}"
                print(f"{name} {seed} {method}: {shown} ({result['seconds']:.0f} s)", flush=True)
    return made


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
    return method not in SINGLE_RUNS or shares


def one(pair: Pair, folder: Path, seed: int, method: str, place: Place) -> dict[str, Any]:
    """The result of a method, with everything that one needs to repeat it. A failure is a
    result.
    """
    started = time.perf_counter()
    rows = labelled_rows(folder, seed)
    try:
        if method in REFERENCES:
            sources = {name: np.array(rows[name]) for name in same_classes(folder)}
            problem = Problem(pair.kind, folder, np.array(rows["primary"]), sources)
            result = references.reference(
                method, problem, seed, place.out / "cache" / "references", place.autogluon
            )
        elif method == "before":
            result = before(folder, seed, place)
        elif method == "multitask":
            runs = [product(pair, folder, seed, method, place, weight) for weight in WEIGHTS]
            result = max(runs, key=lambda run: run["fold_accuracy"])
        else:
            result = product(pair, folder, seed, method, place)
    except (RuntimeError, ValueError, OSError) as error:
        result = {"accuracy": None, "error": f"{type(error).__name__}: {error}"}
    about: dict[str, Any] = {"pair": pair.name, "seed": seed, "method": method}
    about["labels"] = checksum(rows["primary"])
    about |= {"quick": place.quick, "seconds": time.perf_counter() - started}
    return about | provenance() | result


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
        "without_networks": {"learners": SIMPLE[pair.kind]},
        "with_networks": {"learners": with_networks, "candidates": plain},
        "with_attittud": {"learners": with_networks, "candidates": [*plain, *guided]},
        "without_translated": {"uses": ["alone", "pooled", "stacked"]},
        "without_stacked": {"uses": ["alone", "pooled", "translated"]},
    }
    chosen = settings.get(method, {})
    lines = [f"portfolio.{key}={json.dumps(value)}" for key, value in chosen.items()]
    return [*COMMON, NO_CLOCK, *lines]


def single_run(method: str, folder: Path) -> list[str]:
    strategy = "multitask" if method == "own_head" else method
    lines = [f"strategy={strategy}", "training.threads=1"]
    if method == "own_head":
        lines += [f"data.auxiliary.{name}.share_head=false" for name in same_classes(folder)]
    return lines


def product(
    pair: Pair, folder: Path, seed: int, method: str, place: Place, weight: float | None = None
) -> dict[str, Any]:
    """One run of the product in this process."""
    from attittud_lab.config.load import load
    from attittud_lab.portfolio.run import run as run_portfolio
    from attittud_lab.training.train import run as run_single

    settings = [f"seed={seed}", f"output={place.out / 'cache'}", *overrides(method, pair, folder)]
    if weight is not None:
        sources = job_of(folder)["data"]["auxiliary"]
        settings += [f"data.auxiliary.{source}.weight={weight}" for source in sources]
    if place.quick:
        settings.append("training.guided.steps=6")
    config = load(folder / "job.yaml", settings)
    run_dir = place.out / "runs" / f"{pair.name}-{seed}-{method}"
    shutil.rmtree(run_dir, ignore_errors=True)
    train = run_single if method in SINGLE_RUNS else run_portfolio
    train(config, run_dir=run_dir)
    result = finished(run_dir)
    shutil.rmtree(run_dir)
    return result | {"settings": settings}


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
