"""Did the auxiliary data help? From the figures of all runs to a table and a decision.

The baseline is primary_only: the question is what the auxiliary data are worth. The best strategy
is chosen by its mean on validation. The test set only says how large the differences are. P-values
are Holm-corrected over all rows. This includes the chosen row: its runs were lucky on validation,
and so perhaps on test. `content.py` calls `decide` for each table of comparison.json.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from attittud_lab.compare import words
from attittud_lab.compare.candidates import MULTITASK, PRIMARY_ONLY
from attittud_lab.statistics import (
    ALPHA,
    PROPORTION,
    ROUNDING,
    Difference,
    Summary,
    differences,
    mark,
    seeds_needed,
    summarise,
)

ENOUGH = 5
"""How many seeds to recommend if there are too few for an interval."""


@dataclass(frozen=True)
class Scores:
    """The metric of a strategy's runs, by seed."""

    label: str
    validation: Mapping[int, float]
    test: Mapping[int, float]


@dataclass(frozen=True)
class ComparedRow:
    """A strategy in a table. The difference to itself is None; p-values are Holm-corrected."""

    label: str
    validation: Summary
    test: Summary
    to_primary_only: Difference | None
    to_multitask: Difference | None


@dataclass(frozen=True)
class Decision:
    """What follows from a table."""

    outcome: Literal["use", "no_help", "unclear"]
    strategy: str | None
    """The strategy to use: primary_only if the auxiliary data do not help, None if unclear."""
    text: str
    row: str
    """The row to look at: the strategy's row, or the best row on validation if unclear."""
    seeds_needed: int | None = None
    """Seeds that would be needed if the outcome is unclear; None if no practical number does."""


@dataclass(frozen=True)
class ComparedTable:
    """All strategies at equal steps, or at equal seconds."""

    rows: list[ComparedRow]
    decision: Decision


def decide(scores: Sequence[Scores], worthwhile: float, example: float = 0.0) -> ComparedTable:
    """Compare rows and decide; primary_only and multitask must be among them.

    `worthwhile` is the smallest useful gain. `example` is what a single test example is worth in
    the metric; 0 where that does not limit what more seeds show.
    """
    tests = {row.label: row.test for row in scores}
    to_primary_only = differences(tests, PRIMARY_ONLY, PROPORTION)
    to_multitask = differences(tests, MULTITASK, PROPORTION)
    rows = []
    for row in scores:
        validation = summarise(list(row.validation.values()), PROPORTION)
        test = summarise(list(row.test.values()), PROPORTION)
        gain = to_primary_only.get(row.label)
        gain_over_multitask = to_multitask.get(row.label)
        rows.append(ComparedRow(row.label, validation, test, gain, gain_over_multitask))
    return ComparedTable(rows, _decision(rows, worthwhile, example))


def _decision(rows: Sequence[ComparedRow], worthwhile: float, example: float) -> Decision:
    """Decide from the rows of a table.

    The best row on validation is compared to primary_only. A gain that is ruled out ends the
    search; a gain that is not shown asks for more seeds or examples. If it is shown, the simple
    multitask is preferred unless the best row beats it, or multitask itself shows no gain.
    """
    candidates = _candidates(rows)
    if not candidates:
        return Decision("unclear", None, words.NOTHING_TO_COMPARE, PRIMARY_ONLY)
    best = max(candidates, key=lambda row: row.validation.mean)
    gain = best.to_primary_only
    assert gain is not None
    if ruled_out(gain, worthwhile):
        text = words.no_help(best.label, gain, worthwhile)
        return Decision("no_help", PRIMARY_ONLY, text, PRIMARY_ONLY)
    if not better(gain):
        advice, seeds = _more(gain, worthwhile, len(candidates), example)
        return Decision("unclear", None, words.unclear(best.label, gain, advice), best.label, seeds)
    extra = best.to_multitask
    if extra is None or better(extra):
        return Decision("use", best.label, words.use(best.label, gain, extra), best.label)
    # The auxiliary data help, but nothing shows that more than the simple sum is needed.
    strategy = best.label
    gain_of_multitask = next(row.to_primary_only for row in rows if row.label == MULTITASK)
    if gain_of_multitask is not None and better(gain_of_multitask):
        strategy = MULTITASK
        gain = gain_of_multitask
    versus = words.difference_of_best(best.label, "tuned multitask", extra)
    advice, _ = _more(extra, worthwhile, len(candidates) - 1, example)
    text = f"{words.use(strategy, gain)} {versus}. {advice}"
    return Decision("use", strategy, text, strategy)


def _candidates(rows: Sequence[ComparedRow]) -> list[ComparedRow]:
    """Return the rows among which the best is chosen: those that can be compared to primary_only.

    A row that diverged with some seeds only has the figures of its other, lucky seeds. It takes
    part only if there is no row with all seeds.
    """
    compared = [row for row in rows if row.to_primary_only is not None]
    most_seeds = max(row.test.n for row in rows)
    complete = [row for row in compared if row.test.n == most_seeds]
    return complete or compared


def better(difference: Difference) -> bool:
    """Whether a gain is statistically significant, not only measured."""
    return mark(difference.mean, difference.p) == "▲"


def ruled_out(difference: Difference, worthwhile: float) -> bool:
    """Whether the difference is shown to be less than `worthwhile`.

    Coarse figures of a small test set can make all differences the same, so that their interval has
    no width after a few seeds. Then as many seeds are needed as for the sign test, whose p-value is
    2 / 2^n if all n differences have the same sign.
    """
    interval_has_width = difference.std > ROUNDING
    enough_seeds = 2 * 0.5**difference.n < ALPHA
    return difference.high < worthwhile and (interval_has_width or enough_seeds)


def _more(
    difference: Difference, worthwhile: float, tests: int, example: float
) -> tuple[str, int | None]:
    """Return a sentence on what would show a gain, or rule out a worthwhile gain, and the seeds
    that this needs; None if more seeds alone would not do.

    Of the two questions, the one that needs fewer seeds is answered. `tests` is the number of rows
    that are tested at once, and `example` what a test example is worth, or 0.
    """
    if math.isnan(difference.p):
        return words.too_few_seeds(ENOUGH), ENOUGH
    shows_gain = difference.mean >= worthwhile / 2
    if shows_gain:
        size = difference.mean
        tests_at_once = tests
        question = words.show_difference(size)
    else:
        size = worthwhile - difference.mean
        tests_at_once = 1
        question = words.rule_out_gain(worthwhile)
    if example > size + ROUNDING:
        return words.too_few_examples(example, question), None
    needed = seeds_needed(difference.std, size, tests=tests_at_once)
    if needed is None:
        return words.no_number_of_seeds(question), None
    # The estimate comes from these seeds, so fewer cannot be enough.
    needed = max(needed, difference.n + 1)
    text = words.seeds_would(
        question, needed, as_measured=not shows_gain, coarse=difference.std <= ROUNDING
    )
    return text, needed
