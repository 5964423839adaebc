"""Results of runs in files of one line each, small enough to be committed; a run whose line is there is not repeated.

The line of a run that diverged has the reason under `diverged`, and null for its result.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from attittud_lab.compare.run import BusyError
from attittud_lab.config.schema import Config
from attittud_lab.errors import InputError
from attittud_lab.files import cannot_write, read_json
from attittud_lab.runs.result import Diverged, RunResult
from experiments.reproduce.claims import Claims
from experiments.reproduce.fingerprint import fingerprint

CURVES = ("captured_auxiliary", "captured_primary", "helpful", "harmful", "neutral", "effective_rank")
EARNED = ("weight_neutral", "weight_helpful", "weight_harmful")
"""Of `auto` alone."""
POINTS = 16
"""Of a curve; each is the mean of a stretch of training."""


class OutOfTimeError(Exception):
    """The next run would not end in time; what is finished is kept."""


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All results in a file; empty where there is none."""
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: is not a file of results, one JSON object to a line ({error}); restore or move it"
        ) from None


class Clock:
    """How much time there is, in seconds from now on; `seconds` None for as much as it takes."""

    def __init__(self, seconds: float | None = None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self._longest = 0.0

    def over(self) -> bool:
        """Whether a run that takes as long as the longest one so far would not end in time."""
        return self._end is not None and time.monotonic() + self._longest > self._end

    def took(self, seconds: float) -> None:
        self._longest = max(self._longest, seconds)


@dataclass
class Results:
    """The archive of one experiment. Runs of other experiments in the same folder count too, where they are the same."""

    folder: Path
    experiment: str
    part: str = ""
    clock: Clock = field(default_factory=Clock)
    claims: Claims | None = None
    """Which of the missing runs other processes are at."""
    side_by_side: int = 1
    """So many processes share the device, which is said beside seconds that depend on it."""
    quota: int | None = None
    """Runs that may still be trained; None for as many as there are."""
    before: Callable[[int], None] | None = None
    """Called with the seed of a run that is about to be trained; may refuse as `find` does."""
    _known: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._sizes: dict[Path, int] = {}
        self._own: dict[tuple[str, str], str] = {}
        self._read()

    def _read(self) -> None:
        """What has come since the last time, from other processes too."""
        for path in sorted(self.folder.glob("*.jsonl")):
            size = path.stat().st_size
            if size == self._sizes.get(path):
                continue
            self._sizes[path] = size
            lines = read_lines(path)
            self._known |= {line["fingerprint"]: line for line in lines}
            if path == self.path:
                self._own |= {(line["part"], line["run"]): line["fingerprint"] for line in lines}

    @property
    def path(self) -> Path:
        return self.folder / f"{self.experiment}.jsonl"

    def find(self, path: Path, config: Config) -> RunResult | Diverged | None:
        name = fingerprint(config)
        if name not in self._known and self.claims is not None:
            if self.quota == 0 or not self.claims.take(name):
                raise BusyError
            self._read()  # another process may have ended it a moment ago
            if name in self._known:
                self.claims.leave(name)
        known = self._known.get(name)
        if known is None:
            try:
                if self.clock.over():
                    raise OutOfTimeError
                if self.before is not None:
                    self.before(config.seed)
            except BaseException:
                self.leave(config)
                raise
            return None
        diverged = known.get("diverged")  # lines of runs that did not have none
        result = RunResult.read(known["result"], path) if diverged is None else Diverged(diverged)
        self._take_over(path, known)
        return result

    def _take_over(self, path: Path, known: Mapping[str, Any]) -> None:
        """A line for this part too."""
        name, own = known["fingerprint"], (self.part, _name(path))
        if self._own.get(own) == name or not (self.claims is None or self.claims.take(name)):
            return
        self._read()
        if self._own.get(own) != name:
            self._write({**known, "part": self.part, "run": own[1]})
        if self.claims is not None:
            self.claims.leave(name)

    def keep(self, path: Path, config: Config, result: RunResult | Diverged, seconds: float) -> None:
        self.clock.took(seconds)
        if self.quota:
            self.quota -= 1
        about = read_json(path / "run.json")
        del about["config"]
        if self.side_by_side > 1:
            about["side_by_side"] = self.side_by_side
        line = {
            "part": self.part,
            "run": _name(path),
            "fingerprint": fingerprint(config),
            "split": _split(path),
            "seconds": round(seconds, 2),
            "result": result.plain() if isinstance(result, RunResult) else None,
            "curves": curves(path / "metrics.jsonl") if isinstance(result, RunResult) else {},
            "made_with": {name: value for name, value in about.items() if value is not None},
        }
        if isinstance(result, Diverged):
            line["diverged"] = result.reason
        self._known[line["fingerprint"]] = line
        self._write(line)

    def leave(self, config: Config) -> None:
        if self.claims is not None:
            self.claims.leave(fingerprint(config))

    def _write(self, line: Mapping[str, Any]) -> None:
        self._own[line["part"], line["run"]] = line["fingerprint"]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as file:  # a line at once: other processes may read and write here
                file.write((json.dumps(line) + "\n").encode())
        except OSError as error:
            raise cannot_write(self.path, error) from None


def _name(path: Path) -> str:
    """The part of a run folder's path that says what was run."""
    return path.as_posix().rpartition("/runs/")[2]


def _split(path: Path) -> Any:
    return read_json(path / "data.json").get("seed")


def curves(path: Path) -> dict[str, list[float]]:
    """What a guided phase logged about its basis and weights, in at most `POINTS` means; empty for strategies without one."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    logged = [line for line in lines if line["phase"] == "guided" and "attittud/captured_primary" in line]
    if not logged:
        return {}
    size = -(-len(logged) // POINTS)
    chunks = [logged[i : i + size] for i in range(0, len(logged), size)]
    found = {"step": [_mean(line["step"] for line in chunk) for chunk in chunks]}
    names = [*CURVES, *(name for name in EARNED if f"attittud/{name}" in logged[0])]
    return found | {name: [_mean(line[f"attittud/{name}"] for line in chunk) for chunk in chunks] for name in names}


def _mean(values: Iterable[float]) -> float:
    return float(f"{fmean(values):.5g}")
