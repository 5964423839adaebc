"""Results of runs in files of one line each, small enough to be committed; a run whose line is
there is not repeated.

The line of a run that diverged has the reason under `diverged`, and null for its result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from filelock import FileLock, Timeout

from attittud_lab.config.schema import Config
from attittud_lab.errors import InputError
from attittud_lab.files import cannot_write, read_json
from attittud_lab.runs.result import RunResult
from experiments.reproduce.fingerprint import fingerprint

Line = dict[str, Any]
CURVES = (
    *("captured_auxiliary", "captured_primary", "helpful", "harmful", "neutral"),
    "effective_rank",
)
EARNED = ("weight_neutral", "weight_helpful", "weight_harmful")
"""What `auto` logs in addition."""
POINTS = 16
"""Points of a curve; each is the mean of a stretch of training."""


@dataclass(frozen=True)
class Job:
    """One run of an experiment."""

    experiment: str
    """The name of the file that its line belongs to."""
    part: str
    run: str
    """Strategy, searched settings, steps and seed, as the path of its folder has them."""
    config: Config

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.config)


def read_lines(path: Path) -> list[Line]:
    """Read all results in a file; there are none where there is no file."""
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: is not a file of results, one JSON object to a line ({error}); restore or move it"
        ) from None


@dataclass
class Results:
    """All results in a folder, one file for each experiment. A run counts for every experiment that
    has the same one.
    """

    folder: Path
    locks: Path
    """Folder with a lock for every run that a process is training; the lock is gone with the
    process, however it ends.
    """
    side_by_side: int = 1
    """Processes that share the device; a line records the number, since its seconds depend on
    it.
    """
    # Lines by fingerprint; fingerprints by experiment, part and run; bytes of the files when they
    # were read; locks that this process holds, by fingerprint.
    _lines: dict[str, Line] = field(default_factory=dict, repr=False)
    _fingerprints: dict[tuple[str, str, str], str] = field(default_factory=dict, repr=False)
    _sizes: dict[Path, int] = field(default_factory=dict, repr=False)
    _locks: dict[str, FileLock] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.read()

    def read(self) -> None:
        """Read what has come since the last time, from other processes too."""
        for path in sorted(self.folder.glob("*.jsonl")):
            size = path.stat().st_size
            if size != self._sizes.get(path):
                self._sizes[path] = size
                for line in read_lines(path):
                    self._lines[line["fingerprint"]] = line
                    self._fingerprints[path.stem, line["part"], line["run"]] = line["fingerprint"]

    def path(self, experiment: str) -> Path:
        return self.folder / f"{experiment}.jsonl"

    def find(self, job: Job) -> Line | None:
        """Return the line of a run, or None. A line of another part is copied into this part."""
        line = self._lines.get(job.fingerprint)
        if line is not None and not self._has(job) and self.claim(job):
            self.read()
            if not self._has(job):
                self._write(job, line)
            self.release(job)
        return line

    def _has(self, job: Job) -> bool:
        return self._fingerprints.get((job.experiment, job.part, job.run)) == job.fingerprint

    def claim(self, job: Job) -> bool:
        """Take a run for this process, unless another one is training it."""
        lock = FileLock(self.locks / job.fingerprint)
        try:
            self.locks.mkdir(parents=True, exist_ok=True)
            lock.acquire(blocking=False)
        except Timeout:
            return False
        except OSError as error:
            raise cannot_write(self.locks, error) from None
        self._locks[job.fingerprint] = lock
        return True

    def release(self, job: Job) -> None:
        self._locks.pop(job.fingerprint).release()

    def keep(self, job: Job, folder: Path, result: RunResult | str, seconds: float) -> None:
        """Write the line of a run that has ended; a text as `result` says how it diverged."""
        about = read_json(folder / "run.json")
        del about["config"], about["version"]
        if self.side_by_side > 1:
            about["side_by_side"] = self.side_by_side
        line: Line = {
            "fingerprint": job.fingerprint,
            "split": read_json(folder / "data.json").get("seed"),
            "seconds": round(seconds, 2),
            "result": None,
            "curves": {},
            "made_with": {name: value for name, value in about.items() if value is not None},
        }
        if isinstance(result, RunResult):
            line["result"] = result.plain()
            line["curves"] = curves(folder / "metrics.jsonl")
        else:
            line["diverged"] = result
        self._write(job, line)

    def _write(self, job: Job, line: Mapping[str, Any]) -> None:
        """Add a line to the file of the run's experiment, and note that it is there."""
        about = {"part": job.part, "run": job.run}
        whole = {**about, **line, **about}  # a copied line names another part
        self._lines[job.fingerprint] = whole
        self._fingerprints[job.experiment, job.part, job.run] = job.fingerprint
        path = self.path(job.experiment)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # A line at once: other processes may read and write here.
            with path.open("ab", buffering=0) as file:
                file.write((json.dumps(whole) + "\n").encode())
        except OSError as error:
            raise cannot_write(path, error) from None


def merit(lines: Iterable[Line]) -> tuple[float, float]:
    """Return what a search chooses by: the mean of the metric on validation and, for ties, the
    negative mean loss.
    """
    metrics = []
    losses = []
    for line in lines:
        result = line["result"]
        metrics.append(result["validation"][result["metric"]])
        losses.append(result["validation"]["loss"])
    return fmean(metrics), -fmean(losses)


def curves(path: Path) -> dict[str, list[float]]:
    """Read what a guided phase logged about its basis and weights, in at most `POINTS` means; empty
    where it has no basis.
    """
    logged = []
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if line["phase"] == "guided" and "attittud/captured_primary" in line:
            logged.append(line)
    if not logged:
        return {}
    keys = {"step": "step"} | {name: f"attittud/{name}" for name in CURVES + EARNED}
    size = -(-len(logged) // POINTS)
    means: dict[str, list[float]] = {}
    for name, key in keys.items():
        if key in logged[0]:
            values = [line[key] for line in logged]
            chunks = [values[start : start + size] for start in range(0, len(values), size)]
            means[name] = [float(f"{fmean(chunk):.5g}") for chunk in chunks]
    return means
