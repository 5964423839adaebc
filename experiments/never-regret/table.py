"""From runs to statements: what each strategy reaches on a pair, and whether one would regret `auto`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from attittud.recipes.statistics import Difference, Summary, paired, summarise

from .record import Runs
from .strategies import AUTO

ROWS = ("primary_only", "multitask", "pcgrad", "cosine_gate", "bloop", "best_preset", AUTO)
REFERENCES = ("primary_only", "multitask")
MODES = {"at_steps": "equal steps", "at_seconds": "equal seconds"}
MARGIN = -1.0
"""Points that one may lose without regret."""
JUDGED = ("judges", "judges_loss")
VALIDATED = ("validation", "validation_loss")


@dataclass(frozen=True)
class Outcome:
    """One pair in one mode. `values` has test accuracies in per cent by row, one for each seed."""

    pair: str
    values: dict[str, list[float]]
    plain: list[float]
    """Multitask with weight 1, as one would begin."""
    without_judges: list[float]
    """`primary_only` without the labels that `auto` gives to its judges."""
    chosen: list[str]
    """The preset that the judges chose, for each seed."""
    seconds: dict[str, float]
    """Mean processor seconds of all runs that a row needs, at equal steps."""

    @property
    def reference(self) -> str:
        """The better of the two that one would otherwise take, by its mean on the test set: who knew would take it."""
        return max(REFERENCES, key=lambda row: fmean(self.values[row]))

    @property
    def regret(self) -> Difference:
        """`auto` less the reference, seed by seed."""
        return paired(self.values[AUTO], self.values[self.reference])

    @property
    def verdict(self) -> str:
        found = self.regret
        if found.low > 0:
            return "gains"
        if found.low >= MARGIN:
            return "no regret"
        return "**loses**" if found.high < 0 else "unclear"

    def summary(self, row: str) -> Summary:
        return summarise(self.values[row])


def outcome(pair: str, entries: list[str], runs: Runs, mode: str) -> Outcome | None:
    """Of the seeds of which all runs are there; None where there are none."""
    seeds = sorted({seed for name, _, seed in runs if name == pair})
    complete = [
        {entry: runs[pair, entry, seed] for entry in entries}
        for seed in seeds
        if all((pair, entry, seed) in runs for entry in entries)
    ]
    if not complete:
        return None
    values: dict[str, list[float]] = {row: [] for row in ROWS}
    chosen = []
    for found in complete:
        for row in ROWS:
            entry = choose(found, row, mode)
            values[row].append(found[entry][mode]["test"])
            if row == "best_preset":
                chosen.append(entry.removeprefix("preset "))
    plain = "multitask 1" if "multitask 1" in complete[0] else "multitask 1 1"
    return Outcome(
        pair,
        values,
        [found[plain][mode]["test"] for found in complete],
        [found["preset primary_only"][mode]["test"] for found in complete],
        chosen,
        {row: fmean(sum(found[e]["seconds"] for e in belonging(found, row)) for found in complete) for row in ROWS},
    )


def belonging(found: Mapping[str, Any], row: str) -> list[str]:
    """The runs of a row."""
    prefix = {"multitask": "multitask ", "best_preset": "preset "}.get(row)
    return [entry for entry in found if entry == row or (prefix and entry.startswith(prefix))]


def choose(found: Mapping[str, dict[str, Any]], row: str, mode: str) -> str:
    """The run that a row takes: the best on validation, or, for presets, in the eyes of the judges."""
    entries = belonging(found, row)
    if len(entries) == 1:
        return entries[0]
    accuracy, loss = JUDGED if row == "best_preset" else VALIDATED
    return max(entries, key=lambda entry: (found[entry][mode][accuracy], -found[entry][mode][loss]))


def outcomes(header: Mapping[str, Any], runs: Runs, mode: str) -> list[Outcome]:
    found = (outcome(pair, about["entries"], runs, mode) for pair, about in header["pairs"].items())
    return [one for one in found if one is not None]


@dataclass(frozen=True)
class Goal:
    """One of the things that the suite must show."""

    measured: str
    met: bool


GOALS = (
    "lower bound ≥ −1 on every pair",
    "lower bound > 0 on a third",
    "`auto` less `best_preset`, mean over pairs, ≥ 0",
    "time of `best_preset` over that of `auto`, > 1",
)


def goals(found: list[Outcome]) -> list[Goal]:
    """In the order of `GOALS`, for the outcomes of one mode."""
    lows = {one.pair: one.regret.low for one in found}
    safe = [pair for pair, low in lows.items() if low >= MARGIN]
    above = [pair for pair, low in lows.items() if low > 0]
    worst = min(lows, key=lambda pair: lows[pair])
    # Seeds of different pairs have nothing in common: the pairs are what is sampled.
    against = paired([fmean(one.values[AUTO]) for one in found], [fmean(one.values["best_preset"]) for one in found])
    ratio = sum(one.seconds["best_preset"] for one in found) / sum(one.seconds[AUTO] for one in found)
    return [
        Goal(f"{len(safe)} of {len(lows)}; lowest {lows[worst]:+.1f} ({worst})", len(safe) == len(lows)),
        Goal(f"{len(above)} of {len(lows)}", 3 * len(above) >= len(lows)),
        Goal(f"{against.mean:+.2f} ({against.low:+.2f} to {against.high:+.2f})", against.mean >= 0),
        Goal(f"{ratio:.1f}", ratio > 1),
    ]
