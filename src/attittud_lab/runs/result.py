"""What a finished run found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attittud_lab.files import without_nan


@dataclass(frozen=True)
class RunResult:
    """The content of result.json."""

    strategy: str
    seed: int
    metric: str
    """The figure that chose the model."""
    validation: dict[str, float]
    test: dict[str, float]
    phases: list[dict[str, Any]]
    """For each: name, steps, best_step, seconds (of training alone), stopped (patience, seconds or null)."""
    parameters: int
    examples: dict[str, int]
    run_dir: Path = field(compare=False)
    skipped: bool = field(default=False, compare=False)
    """The folder already held the finished run."""

    def plain(self) -> dict[str, Any]:
        """As it goes into a file: null for figures that are not defined."""
        return {key: without_nan(value) for key, value in vars(self).items() if key not in ("run_dir", "skipped")}

    @classmethod
    def read(cls, values: Mapping[str, Any], run_dir: Path) -> RunResult:
        """From a file: the run was finished before."""
        figures = {
            part: {name: math.nan if value is None else value for name, value in values[part].items()}
            for part in ("validation", "test")
        }
        return cls(**(dict(values) | figures), run_dir=run_dir, skipped=True)

    @property
    def seconds(self) -> float:
        return float(sum(phase["seconds"] for phase in self.phases))

    @property
    def steps(self) -> int:
        return int(sum(phase["steps"] for phase in self.phases))
