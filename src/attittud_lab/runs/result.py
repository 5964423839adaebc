"""The result of a finished run, and the machine and code behind its figures."""

from __future__ import annotations

import math
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic needs this version of it before Python 3.12

from attittud_lab.files import without_nan


class PhaseSummary(TypedDict):
    """A finished phase."""

    name: str
    steps: int
    best_step: int
    seconds: float
    """The time of training alone."""
    stopped: str | None
    """The limit that ended it before its last step: patience or seconds."""


@dataclass(frozen=True)
class RunResult:
    """The content of result.json."""

    strategy: str
    seed: int
    metric: str
    """The name of the figure that chose the model."""
    validation: dict[str, float]
    test: dict[str, float]
    phases: list[PhaseSummary]
    parameters: int
    examples: dict[str, int]
    run_dir: Path = field(compare=False)
    skipped: bool = field(default=False, compare=False)
    """The folder already held the finished run."""

    def plain(self) -> dict[str, Any]:
        """Return the content of the file; null for figures that are not defined."""
        values = dict(vars(self))
        del values["run_dir"], values["skipped"]
        plain: dict[str, Any] = without_nan(values)
        return plain

    @classmethod
    def read(cls, values: Mapping[str, Any], run_dir: Path) -> RunResult:
        """Read the file of a finished run. Raises ValueError for one that no run has written."""
        try:
            stored = dict(values)
            for part in ("validation", "test"):
                stored[part] = _with_nan(values[part])
            result = cls(**typed(cls, stored), run_dir=run_dir, skipped=True)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None
        names = set(result.validation)
        if result.test:  # a portfolio may have no test set
            names &= result.test.keys()
        if not {result.metric, "loss"} <= names:
            raise ValueError(f"the figures {result.metric} and loss are not in it")
        return result

    @property
    def seconds(self) -> float:
        """The time of training, without evaluations and reading."""
        return float(sum(phase["seconds"] for phase in self.phases))

    @property
    def steps(self) -> int:
        return int(sum(phase["steps"] for phase in self.phases))


def _with_nan(figures: Mapping[str, float | None]) -> dict[str, float]:
    """Return figures with NaN where the file has null."""
    return {name: math.nan if value is None else value for name, value in figures.items()}


def typed(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values from a file, checked for the fields of the dataclass `cls`.

    Raises ValueError, which names the value, for an unknown field or a value of another type.
    """
    hints = get_type_hints(cls)
    checked = {}
    for name, value in values.items():
        if name not in hints:
            raise ValueError(f"{name!r} is unknown")
        try:
            checked[name] = TypeAdapter(hints[name]).validate_python(value, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, [name, *first["loc"]]))
            raise ValueError(f"{where}: {first['msg']}") from None
    return checked


def provenance(packages: Iterable[str] = ()) -> dict[str, str | int | None]:
    """Return versions, code revision and processor; no names of machines or users."""
    versions: dict[str, str | int | None] = {"python": platform.python_version()}
    for package in ("attittud", "torch", *packages):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:  # run from a source tree that was never installed
            versions[package] = None
    # The variable names the revision of a copy without git history.
    revision = os.environ.get("ATTITTUD_REVISION", _revision())
    return versions | {"revision": revision, "processor": _processor(), "cores": os.cpu_count()}


@cache  # the code that a process has imported does not change
def _revision() -> str | None:
    """Return the commit of the checkout, with `-dirty` if files differ; None outside of one."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    folder = Path(__file__).parent
    try:
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
