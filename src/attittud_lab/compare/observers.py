"""Who is told about the runs of a comparison: a progress bar, and an archive of their results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from attittud_lab.output.progress import Progress, Quiet

if TYPE_CHECKING:
    from attittud_lab.config.schema import Config
    from attittud_lab.runs.result import Diverged, RunResult


class Runs(Progress, Protocol):
    """Told about the whole comparison too."""

    def comparison(self, runs: int) -> None:
        """So many runs are planned, finished ones among them; told again when it is known better."""

    def begin(self, what: str) -> None:
        """A run begins."""

    def end(self) -> None:
        """It is finished."""


class BusyError(Exception):
    """Another process is at this run."""


class Archive(Protocol):
    """Results that outlive their run folders."""

    def find(self, path: Path, config: Config) -> RunResult | Diverged | None:
        """What was kept of a run; one that is to be trained may also be refused, `BusyError` among others."""

    def keep(self, path: Path, config: Config, result: RunResult | Diverged, seconds: float) -> None:
        """A run has ended, after so many seconds."""

    def leave(self, config: Config) -> None:
        """A run that was to be trained is over, whether it was kept or not."""


class QuietRuns(Quiet):
    """Says nothing."""

    def comparison(self, runs: int) -> None:
        pass

    def begin(self, what: str) -> None:
        pass

    def end(self) -> None:
        pass
