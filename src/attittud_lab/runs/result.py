"""The result of a finished run, and the machine and code behind its figures."""

from __future__ import annotations

import math
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
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
        """The content of the file; null for figures that are not defined."""
        return {
            key: without_nan(value)
            for key, value in vars(self).items()
            if key not in ("run_dir", "skipped")
        }

    @classmethod
    def read(cls, values: Mapping[str, Any], run_dir: Path) -> RunResult:
        """Read a file of a run that was finished before. Raises ValueError where a run would not
        have written it.
        """
        try:
            figures = {
                part: {
                    name: math.nan if value is None else value
                    for name, value in values[part].items()
                }
                for part in ("validation", "test")
            }
            result = cls(**typed(cls, {**values, **figures}), run_dir=run_dir, skipped=True)
            # A portfolio may have no test set.
            in_both = result.validation.keys() & (result.test or result.validation).keys()
            if not {result.metric, "loss"} <= in_both:
                raise ValueError(f"the figures {result.metric} and loss are not in it")
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None
        return result

    @property
    def seconds(self) -> float:
        return float(sum(phase["seconds"] for phase in self.phases))

    @property
    def steps(self) -> int:
        return int(sum(phase["steps"] for phase in self.phases))


def typed(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Check values from a file for the fields of a dataclass; ValueError where a value has another
    type.
    """
    names = {entry.name for entry in fields(cls)}
    hints = {name: hint for name, hint in get_type_hints(cls).items() if name in names}
    if not values.keys() <= hints.keys():
        raise ValueError(f"{next(iter(values.keys() - hints.keys()))!r} is unknown")
    try:
        return {
            name: TypeAdapter(hints[name]).validate_python(value, strict=True)
            for name, value in values.items()
        }
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))} {first['msg']}") from None


def provenance(packages: Iterable[str] = ()) -> dict[str, str | int | None]:
    """Versions, code revision (of a git checkout) and processor; no names of machines or users."""
    versions: dict[str, str | int | None] = {"python": platform.python_version()}
    for package in ("attittud", "torch", *packages):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:  # run from a source tree that was never installed
            versions[package] = None
    # The variable names the revision of a copy without git history.
    revision = os.environ["ATTITTUD_REVISION"] if "ATTITTUD_REVISION" in os.environ else _revision()
    return versions | {"revision": revision, "processor": _processor(), "cores": os.cpu_count()}


@cache  # the code that a process has imported does not change
def _revision() -> str | None:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        result = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
