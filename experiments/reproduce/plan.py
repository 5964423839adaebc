"""The runs of an experiment: first a search on validation, then all seeds with the settings that it
chose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path

from attittud_lab.compare.candidates import (
    Budget,
    Candidate,
    Variant,
    candidates,
    job,
    run_dir,
    variants,
)
from attittud_lab.config.schema import Config
from experiments.reproduce.results import Job, Line, merit

Find = Callable[[Job], Line | None]


@dataclass(eq=False)  # two plans are the same if they are the same object
class Plan:
    """Comparisons that share one search. Most have one part; the search of others is made on some
    parts for all.
    """

    experiment: str
    parts: Mapping[str, Config]
    searched: Sequence[str]
    """Parts whose validation examples choose the settings."""
    measured: Sequence[str]
    """Parts that are run with all seeds."""
    steps: Callable[[Config], Budget]
    """Returns the updates of a part, which may have to look at its data."""
    most: int | None = None
    """How many seeds are run, if not all that the configuration asks for."""
    _jobs: dict[tuple[str, str, Variant, int], Job] = field(default_factory=dict, repr=False)
    _steps: dict[str, Budget] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        first = self.parts[self.searched[0]]
        self.candidates = candidates(first)
        self.variants = {}
        for candidate in self.candidates:
            settings = variants(candidate.strategy, first.compare, tuned=candidate.tuned)
            self.variants[candidate.label] = settings
        self.seeds = range(first.seed, first.seed + first.compare.seeds)[: self.most]
        self.tuning_seeds = self.seeds[: first.compare.tuning_seeds]

    def jobs(self, find: Find, share: float = 0.0) -> Iterator[Job]:
        """Yield all runs that are known to be needed, the most urgent first; the search may not
        have chosen yet.

        `share` says how far down the list of parts to begin, from 0 to 1, so that processes that
        share the work read different data.
        """
        yield from self._search(share)
        chosen = [(candidate, self.chosen(candidate, find)) for candidate in self.candidates]
        for seed in self.seeds:
            for part in _turned(self.measured, share):
                for candidate, variant in chosen:
                    if variant is not None:
                        yield self.job(part, candidate, variant, seed)

    def missing(self, find: Find) -> set[str]:
        """Return the measured parts of which runs are missing; all of them while the search is not
        over.
        """
        if any(find(job) is None for job in self._search(0.0)):
            return set(self.measured)
        return {job.part for job in self.jobs(find) if find(job) is None}

    @property
    def count(self) -> int:
        """Return the number of runs, including the search."""
        not_chosen = sum(len(tries) - 1 for tries in self.variants.values())
        seeds = len(self.seeds) * len(self.measured)
        searched = not_chosen * len(self.tuning_seeds) * len(self.searched)
        return searched + len(self.candidates) * seeds

    def _search(self, share: float) -> Iterator[Job]:
        """Yield the runs of the search: every setting of every strategy, on the searched parts."""
        for part in _turned(self.searched, share):
            for seed in self.tuning_seeds:
                # Strategies take turns: an interrupted search has as many tries of each.
                for tries in zip_longest(*self.variants.values()):
                    for candidate, variant in zip(self.candidates, tries, strict=True):
                        if variant is not None:
                            yield self.job(part, candidate, variant, seed)

    def chosen(self, candidate: Candidate, find: Find) -> Variant | None:
        """Return the settings with the best mean on validation; None where the search is not over,
        or all diverged.
        """
        tried = self.variants[candidate.label]
        if len(tried) == 1:
            return tried[0]
        whole = {}
        for variant in tried:
            lines = []
            for part in self.searched:
                for seed in self.tuning_seeds:
                    line = find(self.job(part, candidate, variant, seed))
                    if line is None:
                        return None
                    lines.append(line)
            if not any("diverged" in line for line in lines):
                whole[variant] = lines
        return max(whole, key=lambda variant: merit(whole[variant]), default=None)

    def job(self, part: str, candidate: Candidate, variant: Variant, seed: int) -> Job:
        key = (part, candidate.label, variant, seed)
        if key not in self._jobs:
            config = self.parts[part]
            if part not in self._steps:
                self._steps[part] = self.steps(config)
            path = run_dir(Path(), candidate, variant, self._steps[part], seed)
            config_of_run = replace(job(config, candidate, variant, self._steps[part]), seed=seed)
            self._jobs[key] = Job(
                self.experiment, part, path.relative_to("runs").as_posix(), config_of_run
            )
        return self._jobs[key]


def _turned(names: Sequence[str], share: float) -> list[str]:
    """The same names, beginning `share` of the way down the list."""
    start = int(share * len(names))
    return [*names[start:], *names[:start]]
