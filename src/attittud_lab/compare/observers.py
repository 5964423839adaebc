"""Progress of a comparison."""

from __future__ import annotations

from typing import Protocol

from attittud_lab.output.progress import Progress, Quiet


class Runs(Progress, Protocol):
    """Told about the whole comparison too."""

    def comparison(self, runs: int) -> None:
        """So many runs are planned, finished ones among them; told again when it is known better."""

    def begin(self, what: str) -> None:
        """A run begins."""

    def end(self) -> None:
        """It is finished."""


class QuietRuns(Quiet):
    """Says nothing."""

    def comparison(self, runs: int) -> None:
        pass

    def begin(self, what: str) -> None:
        pass

    def end(self) -> None:
        pass
