"""How long the networks of a portfolio still take.

The forecast of the plan is corrected by the pace of finished trials. `networks.py` says which
trials are done, and shows the range of seconds. The plan itself never changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from attittud_lab.config.schema import Config
from attittud_lab.output.progress import EARLY, MEASURED, readable_range
from attittud_lab.portfolio.budget import Plan, expected_runs, rung_lengths

FEW = 3
"""With fewer finished trials, the range also covers the forecast of the plan.

The first trial has more to set up than the others.
"""
RECENT = 5
"""The latest trials, which say how busy the machine is now."""


class Pace:
    """The trials of one stage that are done, and the time that everything else takes.

    A stage is a rung or the final training. A trial with forecast f and measured time t has the
    ratio t / f. What is left of a candidate takes its forecast times the median ratio of its
    trials; before it has any, the median of all trials. The range is wider where the latest trials
    were slower or faster than that.
    """

    def __init__(self, plan: Plan, config: Config, folds: int, at_once: int) -> None:
        """`config` has the steps of the plan; `at_once` trials run at the same time."""
        self.plan = plan
        self.config = config
        self.folds = folds
        self.at_once = at_once
        self.lengths = rung_lengths(config)
        self.stage = 0
        """The rung; the number of rungs in the final training."""
        self.share = 0.0
        """The share of a full run that each trial of this stage trains."""
        self.labels: list[str] = []
        self.done: set[tuple[str, int | None]] = set()
        """The trials of this stage that are done, by candidate and fold."""
        self.ratios: list[tuple[str, float]] = []
        """Candidate and ratio of each trial that finished in this process, in this order."""

    @property
    def is_final(self) -> bool:
        """Whether candidates are trained on all labels."""
        return self.stage == len(self.lengths)

    def begin(self, rung: int, labels: Sequence[str]) -> None:
        """Begin a rung with these candidates."""
        self.stage = rung
        self.share = self.lengths[rung]
        self.labels = list(labels)
        self.done = set()

    def begin_final(self, labels: Sequence[str], share: float) -> None:
        """Begin the final training, of this share of a full run."""
        self.stage = len(self.lengths)
        self.share = share
        self.labels = list(labels)
        self.done = set()

    def join(self, labels: Sequence[str]) -> None:
        """Go on in the same stage with these candidates."""
        self.labels = list(labels)

    def skip(self, label: str, fold: int | None) -> None:
        """Count a trial whose time says nothing: it finished earlier, or diverged."""
        self.done.add((label, fold))

    def finish(self, label: str, fold: int | None, seconds: float) -> None:
        """Count a trial that took so many seconds from its beginning to its end."""
        self.done.add((label, fold))
        self.ratios.append((label, seconds / (self.forecast(label) * self.share)))

    def forecast(self, label: str) -> float:
        """Return the plan's seconds of a full run.

        A candidate that joins later takes as long as the mean of the others.
        """
        usual = self.plan.seconds / self.plan.runs
        return max(self.plan.costs.get(label, usual), 1e-9)

    def ratio(self, label: str) -> float:
        """Return the median ratio of a candidate, or of all; 1 before the first trial."""
        ratios = [ratio for _, ratio in self.ratios]
        of_label = [ratio for name, ratio in self.ratios if name == label]
        return median(of_label or ratios or [1.0])

    def left(self) -> tuple[float, float]:
        """Return the least and the most seconds that all that is left will probably take."""
        if not self.labels:
            return 0.0, 0.0
        trials = 1 if self.is_final else self.folds
        full = {label: self.forecast(label) * self.ratio(label) for label in self.labels}
        here = 0.0
        for label, seconds in full.items():
            done = sum(name == label for name, _ in self.done)
            here += (trials - done) * self.share * seconds
        # Without folds, only the final training counts; so many of its trials run at the same time.
        final = expected_runs(len(self.labels), 0, self.config, self.stage)
        together = max(1.0, min(self.at_once, final))
        low, high = self.factors()
        if self.is_final:
            return low * here / together, high * here / together
        # Which candidates go on is not known yet. The final training ends at the best step, so it
        # may be short.
        mean = fmean(full.values())
        least, most = (here + mean * self.later_runs(spare) for spare in (0, 1))
        return low * least / self.at_once, high * (most / self.at_once + final * mean / together)

    def later_runs(self, spare: int) -> float:
        """Count the full runs of the rungs after this one."""
        count = len(self.labels)
        runs = expected_runs(count, self.folds, self.config, self.stage, spare)
        final = expected_runs(count, 0, self.config, self.stage, spare)
        return max(0.0, runs - final - count * self.folds * self.share)

    def factors(self) -> tuple[float, float]:
        """Return the ends of the range, as multiples of the expected seconds."""
        if not self.ratios:
            return EARLY
        changes = [ratio / self.ratio(label) for label, ratio in self.ratios[-RECENT:]]
        change = median(changes)
        low = MEASURED[0] * min(1.0, change)
        high = MEASURED[1] * max(1.0, change)
        if len(self.ratios) >= FEW:
            return low, high
        # Where the first trials were slower than the plan, they may be faster later.
        slower = median([ratio for _, ratio in self.ratios])
        return min(low, EARLY[0] / slower), max(high, EARLY[1] / slower)

    def words(self) -> str:
        """Return the time left in words."""
        return readable_range(*self.left())
