"""From runs to conclusions: the accuracy of each strategy on a pair, and whether one would regret `auto`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from attittud_lab.statistics import Difference, Summary, paired, summarise

from .record import Runs
from .strategies import AUTO, PRESET, ROWS

REFERENCES = ("primary_only", "multitask")
MODES = {"at_steps": "equal steps", "at_seconds": "equal seconds"}
MARGIN = -1.0
"""Points that one may lose without regret."""


@dataclass(frozen=True)
class Outcome:
    """One pair in one mode. Test accuracies in per cent by seed; rows may have been given different numbers of seeds."""

    pair: str
    values: dict[str, dict[int, float]]
    """By row, of the seeds of which all its runs are there."""
    plain: dict[int, float]
    """Multitask with weight 1, as one would begin."""
    chosen: list[str]
    """The preset that was best on validation, for each seed."""
    seconds: dict[str, float]
    """Mean processor seconds of all runs that a row needs, at equal steps."""

    @property
    def reference(self) -> str:
        """The better of the two strategies that one would otherwise use, by its mean on the test set, known only afterwards."""
        return max(REFERENCES, key=self.mean)

    @property
    def regret(self) -> Difference:
        """`auto` less the reference, seed by seed."""
        return difference(self.values[AUTO], self.values[self.reference])

    @property
    def control(self) -> Difference | None:
        """`auto` less the best preset, seed by seed."""
        return difference(self.values[AUTO], self.values["best_preset"]) if "best_preset" in self.values else None

    @property
    def verdict(self) -> str:
        found = self.regret
        if found.low > 0:
            return "gains"
        if found.low >= MARGIN:
            return "no regret"
        return "**loses**" if found.high < 0 else "unclear"

    def summary(self, row: str) -> Summary:
        return summarise(list(self.values[row].values()))

    def mean(self, row: str) -> float:
        return fmean(self.values[row].values())


def difference(first: Mapping[int, float], second: Mapping[int, float]) -> Difference:
    """Over the seeds that both have."""
    both = sorted(first.keys() & second.keys())
    return paired([first[seed] for seed in both], [second[seed] for seed in both])


def outcome(pair: str, entries: list[str], runs: Runs, mode: str) -> Outcome | None:
    """Rows without a seed of which all runs are there are left out; None where that leaves nothing to compare."""
    seeds = sorted({seed for name, _, seed in runs if name == pair})
    values: dict[str, dict[int, float]] = {}
    seconds, chosen = {}, []
    for row in ROWS:
        values[row], spent = {}, []
        for seed in seeds:
            own = belonging(entries, row)
            if not all((pair, entry, seed) in runs for entry in own):
                continue
            entry = choose({entry: runs[pair, entry, seed] for entry in own}, mode)
            values[row][seed] = runs[pair, entry, seed][mode]["test"]
            spent.append(sum(runs[pair, name, seed]["seconds"] for name in own))
            if row == "best_preset":
                chosen.append(entry.removeprefix(PRESET))
        if spent:
            seconds[row] = fmean(spent)
        else:
            del values[row]
    if not {AUTO, *REFERENCES} <= values.keys():
        return None
    plain = "multitask 1" if "multitask 1" in entries else "multitask 1 1"
    tests = {seed: runs[pair, plain, seed][mode]["test"] for seed in seeds if (pair, plain, seed) in runs}
    return Outcome(pair, values, tests, chosen, seconds)


def belonging(entries: Iterable[str], row: str) -> list[str]:
    """The runs of a row."""
    prefix = {"multitask": "multitask ", "best_preset": PRESET}.get(row)
    return [entry for entry in entries if entry == row or (prefix and entry.startswith(prefix))]


def choose(found: Mapping[str, dict[str, Any]], mode: str) -> str:
    """The run that a row takes: the best on validation."""
    # (A run that diverged has no loss.)
    return max(
        found,
        key=lambda entry: (found[entry][mode]["validation"], -found[entry][mode].get("validation_loss", math.inf)),
    )


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
    "`auto` minus `best_preset`, mean over pairs, ≥ 0",
    "total time of `best_preset` over that of `auto`, > 1",
)


def goals(found: list[Outcome]) -> list[Goal]:
    """In the order of `GOALS`, for the outcomes of one mode; the last two are missing where no preset was chosen."""
    lows = {one.pair: one.regret.low for one in found}
    safe = [pair for pair, low in lows.items() if low >= MARGIN]
    above = [pair for pair, low in lows.items() if low > 0]
    worst = min(lows, key=lambda pair: lows[pair])
    measured = [
        Goal(f"{len(safe)} of {len(lows)}; lowest {lows[worst]:+.1f} ({worst})", len(safe) == len(lows)),
        Goal(f"{len(above)} of {len(lows)}", 3 * len(above) >= len(lows)),
    ]
    controls = {one.pair: one.control.mean for one in found if one.control is not None}
    if controls:
        # Seeds of different pairs have nothing in common: the pairs are what is sampled.
        against = summarise(list(controls.values()))
        both = [one.seconds for one in found if one.pair in controls]
        ratio = sum(spent["best_preset"] for spent in both) / sum(spent[AUTO] for spent in both)
        measured += [
            Goal(f"{against.mean:+.2f} ({against.low:+.2f} to {against.high:+.2f})", against.mean >= 0),
            Goal(f"{ratio:.1f}", ratio > 1),
        ]
    return measured
