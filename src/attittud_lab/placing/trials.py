"""Run the trials of a comparison or a portfolio: what is finished is read, the rest takes place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attittud_lab.output.progress import Progress
from attittud_lab.placing.job import Job, Place


@dataclass(frozen=True)
class Trial:
    """One training, whose result stays in a folder of its own."""

    folder: Path
    finished: bool
    """Whether the folder has the result already."""
    stored: Callable[[], Any]
    """Reads the result of a finished trial."""
    job: Callable[[], Job]
    """Makes the job that returns the result of another trial."""


def results_of(trials: Sequence[Trial], place: Place, progress: Progress) -> Iterator[Any]:
    """Yield the result of each trial, in their order, as soon as all earlier ones are there.

    A result is read, and a job is made, when it is needed: all data at once might need much memory.
    """
    finished = sum(trial.finished for trial in trials)
    progress.skipped(finished)
    jobs = (trial.job() for trial in trials if not trial.finished)
    running = iter(place.run(jobs, progress))
    results: dict[Path | None, Any] = {}
    for trial in trials:
        if trial.finished:
            yield trial.stored()
            continue
        while trial.folder not in results:
            job, result = next(running)
            results[job.folder] = result
        yield results.pop(trial.folder)
    for _ in running:  # the place ends its work
        pass
