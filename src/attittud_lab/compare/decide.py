"""From the figures of every seed to a table with intervals, and from the table to a decision.

Whatever is chosen (the best strategy, the simple baseline to beat) is chosen by its mean on validation. The test set
only says how large the differences are. P-values are Holm-corrected over the rows they were computed for, also that of
the chosen row: its runs were lucky on validation, and so perhaps on test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from attittud_lab.statistics import (
    ALPHA,
    POWER,
    ROUNDING,
    Difference,
    Summary,
    holm,
    paired,
    seeds_needed,
    summarise,
)

PRIMARY_ONLY, MULTITASK = "primary_only", "multitask"
SIMPLE = (PRIMARY_ONLY, MULTITASK)


@dataclass(frozen=True)
class Scores:
    """One row of a table: the metric of its runs, by seed."""

    label: str
    validation: Mapping[int, float]
    test: Mapping[int, float]

    @property
    def chosen_by(self) -> float:
        return summarise(list(self.validation.values())).mean


@dataclass(frozen=True)
class Row:
    """What a table says about a strategy. Differences are None against itself, their p-values Holm-corrected."""

    label: str
    validation: Summary
    test: Summary
    to_baseline: Difference | None
    to_primary_only: Difference | None
    to_multitask: Difference | None


@dataclass(frozen=True)
class Decision:
    """The last line."""

    outcome: Literal["use", "no_help", "unclear"]
    strategy: str | None
    """The one to use: primary_only where the auxiliary data does not help, None where one cannot tell."""
    text: str
    seeds_needed: int | None = None
    """Where one cannot tell; None where no sensible number would do."""


@dataclass(frozen=True)
class Verdict:
    """A whole table."""

    baseline: str
    rows: list[Row]
    decision: Decision


def decide(scores: Sequence[Scores], worthwhile: float) -> Verdict:
    """`scores` must have rows primary_only, multitask and seeds in common; `worthwhile` is the smallest useful gain."""
    by_label = {row.label: row for row in scores}
    baseline = max(SIMPLE, key=lambda label: by_label[label].chosen_by)
    against = {label: differences(scores, by_label[label]) for label in SIMPLE}
    rows = [
        Row(
            row.label,
            summarise(list(row.validation.values())),
            summarise(list(row.test.values())),
            against[baseline].get(row.label),
            against[PRIMARY_ONLY].get(row.label),
            against[MULTITASK].get(row.label),
        )
        for row in scores
    ]
    return Verdict(baseline, rows, _decision(rows, worthwhile))


def differences(scores: Sequence[Scores], reference: Scores) -> dict[str, Difference]:
    """Every other row minus `reference` on test, over the seeds that both have."""
    found = {}
    for row in scores:
        seeds = [seed for seed in reference.test if seed in row.test]
        if row.label != reference.label and seeds:
            found[row.label] = paired([row.test[s] for s in seeds], [reference.test[s] for s in seeds])
    adjusted = holm([difference.p for difference in found.values()])
    return {label: replace(difference, p=p) for (label, difference), p in zip(found.items(), adjusted, strict=True)}


def _decision(rows: Sequence[Row], worthwhile: float) -> Decision:
    by_label = {row.label: row for row in rows}
    users = [row for row in rows if row.to_primary_only is not None]
    # Whoever diverged with some seeds is known by the others, the lucky ones.
    whole = max(row.test.n for row in rows)
    users = [row for row in users if row.test.n == whole] or users
    best = max(users, key=lambda row: row.validation.mean)
    gain = best.to_primary_only
    assert gain is not None
    about = f"{best.label}, the best on validation of those that use it, changes primary_only by {points(gain)}"
    if math.isnan(gain.p):
        return Decision("unclear", None, "Cannot tell: one seed has no interval; raise compare.seeds to at least 5.")
    if ruled_out(gain, worthwhile):
        text = (
            f"The auxiliary data does not help: {about}, so a gain of {100 * worthwhile:.2g} points is ruled out. "
            "Use primary_only."
        )
        return Decision("no_help", PRIMARY_ONLY, text)
    if not better(gain):
        power = Power.of(gain, worthwhile, len(users))
        return Decision("unclear", None, f"Cannot tell with {gain.n} seeds: {about}. {power.text}", power.seeds)
    return _which(best, gain, by_label[MULTITASK], worthwhile, len(users) - 1)


def _which(best: Row, gain: Difference, multitask: Row, worthwhile: float, tests: int) -> Decision:
    """The auxiliary data helps; is more than the simple sum needed?"""
    help_ = f"it gains {points(gain)} over primary_only"
    extra = best.to_multitask
    if extra is None:
        return Decision("use", MULTITASK, f"Use multitask: {help_}, and no row is better on validation.")
    if better(extra):
        text = f"Use {best.label}: {help_}, and {points(extra)} over tuned multitask."
        return Decision("use", best.label, text)
    power = Power.of(extra, worthwhile, tests)
    more = f"{best.label}, the best on validation, against tuned multitask: {points(extra)}. {power.text}"
    own = multitask.to_primary_only
    assert own is not None
    if better(own):
        text = f"Use multitask: it gains {points(own)} over primary_only. That another row is better is not shown."
        return Decision("use", MULTITASK, f"{text} {more}")
    text = f"Use {best.label}: {help_}. Whether it is better than tuned multitask, which is not shown to gain, is open."
    return Decision("use", best.label, f"{text} {more}")


def better(difference: Difference) -> bool:
    """Shown to be, not only measured to be."""
    return difference.mean > 0 and difference.p < ALPHA


def ruled_out(difference: Difference, worthwhile: float) -> bool:
    """Shown to be less than that.

    Where all differences are the same, as coarse figures of a small test set can be, their interval has no width after
    two seeds; as many seeds are asked for then as the sign test needs.
    """
    enough = difference.std > ROUNDING or 2 * 0.5**difference.n < ALPHA
    return difference.high < worthwhile and enough


def points(difference: Difference) -> str:
    """In points (per cent of the metric), with the interval and the p-value."""
    mean, low, high = (100 * value for value in (difference.mean, difference.low, difference.high))
    return f"{mean:+.1f} points (95 % interval {low:+.1f} to {high:+.1f}, p = {difference.p:.2g})"


@dataclass(frozen=True)
class Power:
    """How many seeds would answer a question, and which one."""

    seeds: int | None
    question: str

    @classmethod
    def of(cls, difference: Difference, worthwhile: float, tests: int) -> Power:
        """Whichever is nearer: to show that there is a gain, or to rule one out that would be worth having."""
        if difference.mean >= worthwhile / 2:
            needed = seeds_needed(difference.std, difference.mean, tests=tests)
            question = f"show a difference of {100 * difference.mean:.2g} points"
        else:
            needed = seeds_needed(difference.std, worthwhile - difference.mean)
            question = f"rule out a gain of {100 * worthwhile:.2g} points, if the difference is as measured"
        # The estimate rests on these very seeds; fewer than there are cannot be the answer.
        return cls(None if needed is None else max(needed, difference.n + 1), question)

    @property
    def text(self) -> str:
        if self.seeds is None:
            return f"No sensible number of seeds would {self.question}: more test examples or primary labels might."
        return (
            f"About {self.seeds} seeds would {self.question}, in {POWER:.0%} of cases (compare.seeds={self.seeds}; finished "
            "runs are kept)."
        )
