"""Results on disk: one JSON per job, with all that is needed to judge or repeat it; written after
every point.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.timing import CORES

HERE = Path(__file__).parent
RESULTS = HERE / "results"
RUN = ", run "  # between a point and the number of a further run
PACKAGES = ("attittud", "torch", "triton", "transformers", "peft", "torchjd", "opacus")


def provenance(device: str, seed: int, quick: bool) -> dict[str, Any]:
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    hardware: dict[str, Any] = {"device": device, "cores": os.cpu_count()}
    if device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(device)
        hardware |= {
            "name": properties.name,
            "memory": properties.total_memory,
            "cuda": torch.version.cuda,
        }
    return {
        "versions": versions,
        "hardware": hardware,
        "seed": seed,
        "quick": quick,
        "revision": revision(),
    }


def revision() -> str | None:
    """The revision of the code: ATTITTUD_REVISION where the sources travel without their
    history.
    """
    if "ATTITTUD_REVISION" in os.environ:
        return os.environ["ATTITTUD_REVISION"]
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(
            command, cwd=HERE, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


class Record:
    """The points of one job; existing points are kept and not measured again. Each names the
    revision that made it.
    """

    def __init__(self, folder: Path | None, job: str, about: dict[str, Any]) -> None:
        """Without a folder nothing is kept."""
        self.path = None if folder is None else folder / f"{job}.json"
        self.revision = about["revision"]
        self.data: dict[str, Any] = {"job": job, "provenance": about, "points": {}}
        if self.path is not None and self.path.exists():
            stored = json.loads(self.path.read_text())
            if (
                stored["provenance"]["hardware"] == about["hardware"]
                and stored["provenance"]["quick"] == about["quick"]
            ):
                self.data = stored
            else:
                print(
                    f"{job}: what {self.path} holds was measured on something else; the first point replaces it"
                )

    def __contains__(self, point: str) -> bool:
        return point in self.data["points"]

    def next_run(self, point: str) -> str:
        """The name of a further measurement of a point."""
        return next(
            name for n in count(1) if (name := f"{point}{RUN}{n}" if n > 1 else point) not in self
        )

    def measure(self, point: str, action: Callable[[], dict[str, Any]]) -> None:
        """Run one measurement, note how long it took and free its memory."""
        start = time.perf_counter()
        result = action()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        measured = {
            "measured_in_seconds": round(time.perf_counter() - start, 1),
            "slowest_core": round(CORES.spread, 2),
        }
        self.add(point, result | measured)

    def add(self, point: str, measured: dict[str, Any]) -> None:
        self.data["points"][point] = measured | {"revision": self.revision}
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".tmp")
        partial.write_text(json.dumps(self.data, indent=1) + "\n")
        partial.replace(self.path)


def load(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """All results of a folder, by job; eager times come from eager.json where it has a model."""
    results = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    if "eager" in results:
        results["eager"]["points"] = joined(results["eager"]["points"])
    if "judges" in results:
        several = by_point(results["judges"]["points"])
        results["judges"]["points"] = {
            name: runs[-1] | {"runs": runs} for name, runs in several.items()
        }
    for job, times in results.get("eager", {}).get("points", {}).items():
        point = results.get(job, {}).get("points", {}).get(f"k={times['k']} m={times['m']}")
        if point is None:
            continue
        for row in point["methods"].values():
            row.pop("eager", None)  # figures of two runs are not compared
        for name, row in times["methods"].items():
            figures = {key: row[key] for key in ("eager", "over_multitask") if key in row}
            if figures:
                point["methods"].setdefault(name, {}).update(figures)
    return results


def by_point(points: Mapping[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """All runs of each point at the revision of its last run."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for name, point in points.items():
        runs.setdefault(name.partition(RUN)[0], []).append(point)
    return {
        name: [run for run in same_point if run.get("revision") == same_point[-1].get("revision")]
        for name, same_point in runs.items()
    }


def joined(points: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Join several runs of a model at one revision: means of their figures, weighted by the number
    of pairs for ratios.
    """
    return {name: _join(runs) for name, runs in by_point(points).items()}


def _join(runs: list[dict[str, Any]]) -> dict[str, Any]:
    last = runs[-1]
    if len(runs) == 1:
        return last
    methods = {}
    for name, row in last["methods"].items():
        rows = [run["methods"][name] for run in runs if "eager" in run["methods"].get(name, {})]
        keys = [
            key
            for key in ("eager", "over_multitask")
            if rows and all(key in figures for figures in rows)
        ]
        methods[name] = row | {
            key: {kind: fmean(r[key][kind] for r in rows) for kind in rows[-1][key]} for key in keys
        }
    ratios = {
        key: {
            name: _mean_ratio([run[key][name] for run in runs if name in run.get(key, {})])
            for name in last[key]
        }
        for key in last
        if key.startswith("plain_over_two_passes")
    }
    return last | {"methods": methods, **ratios, "runs": len(runs)}


def _mean_ratio(ratios: list[dict[str, float]]) -> dict[str, float]:
    """The mean of median ratios and of their intervals, weighted by the number of pairs."""
    pairs = [ratio["n"] for ratio in ratios]
    mean = {
        key: fmean([ratio[key] for ratio in ratios], weights=pairs)
        for key in ("median", "low", "high")
    }
    return mean | {"n": sum(pairs)}
