"""From lines of results to conclusions: differences on each pair, the goals, and how well the chance was known."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from scipy.stats import ttest_ind

from attittud_lab.portfolio.leaderboard import CHANCE
from attittud_lab.statistics import ALPHA, Difference, Summary, holm, paired, summarise

from .record import RESULTS, Lines
from .rows import CONTROL, ENSEMBLE, MULTITASK, PORTFOLIO, PRIMARY_FOLDS, PRIMARY_ONLY, REFERENCES, SINGLE

Values = dict[str, dict[int, float]]
"""Test accuracies in per cent by row and seed."""
PORTFOLIOS = {final: f"{PORTFOLIO}/{final}" for final in (SINGLE, ENSEMBLE)}
FOLDED, MIXED, PLAIN = f"{CONTROL}/{SINGLE}", f"{CONTROL}/{ENSEMBLE}", f"{PRIMARY_FOLDS}/{SINGLE}"
"""References (b) and (c), and `primary_only` with folds."""
WORST_MEAN, WANTED, NOT_BELOW, MOST_RUNS = -1.5, {SINGLE: 2.0, ENSEMBLE: 2.5}, -0.5, 12.0
WORTHWHILE = 0.5
"""Points that auxiliary data must bring to have helped."""
CASES = RESULTS / "development-cases.json"
BINS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def by_pair(lines: Lines) -> dict[str, Values]:
    found: dict[str, Values] = {}
    for (pair, row, seed), line in sorted(lines.items()):
        found.setdefault(pair, {}).setdefault(row, {})[seed] = line["accuracy"]
    return found


def reference(values: Values) -> str:
    """(a): the better of the two by its mean on the test set, which one knows only afterwards."""
    return max(REFERENCES, key=lambda row: fmean(values[row].values()))


def difference(values: Values, row: str, other: str) -> Difference:
    """`row` less `other`, over the seeds that both have."""
    both = sorted(values[row].keys() & values[other].keys())
    return paired([values[row][seed] for seed in both], [values[other][seed] for seed in both])


def loses(found: Difference) -> float:
    """The one-sided p-value of "it does not lose", from the two-sided one."""
    return found.p / 2 if found.mean < 0 else 1 - found.p / 2


@dataclass(frozen=True)
class Compared:
    """A row against another one on all pairs that have both."""

    row: str
    other: str
    """`a` stands for the better reference of each pair."""
    pairs: dict[str, Difference]
    adjusted: dict[str, float]
    """One-sided p-values of a loss, Holm-corrected over the pairs."""

    @property
    def mean(self) -> Summary:
        """Over pairs: seeds of different pairs have nothing in common, the pairs are what is sampled."""
        return summarise([found.mean for found in self.pairs.values()])

    @property
    def losers(self) -> list[str]:
        return [pair for pair, p in self.adjusted.items() if p < ALPHA]

    @property
    def gains(self) -> list[str]:
        return [pair for pair, found in self.pairs.items() if found.low > 0]

    @property
    def worst(self) -> str:
        return min(self.pairs, key=lambda pair: self.pairs[pair].mean)


BETTER = "a"


def compared(data: Mapping[str, Values], row: str, other: str, only: Iterable[str] | None = None) -> Compared | None:
    """None where no pair has both rows."""
    found = {}
    for pair, values in data.items():
        if only is not None and pair not in only:
            continue
        needed = {*REFERENCES} if other == BETTER else {other}
        if row in values and needed <= values.keys():
            against = reference(values) if other == BETTER else other
            if values[row].keys() & values[against].keys():
                found[pair] = difference(values, row, against)
    if not found:
        return None
    adjusted = holm([loses(one) for one in found.values()])
    return Compared(row, other, found, dict(zip(found, adjusted, strict=True)))


@dataclass(frozen=True)
class Goal:
    """One line of the table of goals."""

    wanted: str
    measured: str
    met: bool | None
    """None where it was not measured."""


def interval(found: Summary) -> str:
    return f"{found.mean:+.2f} ({found.low:+.2f} to {found.high:+.2f})"


def named(pairs: Sequence[str]) -> str:
    return ", ".join(pairs) if pairs else "none"


def goals(lines: Lines, sharing: Iterable[str]) -> list[Goal]:
    """Every goal of the round; `sharing` are the pairs whose tasks share their classes."""
    data, found = by_pair(lines), list[Goal]()
    for final, row in PORTFOLIOS.items():
        found += _against_a(compared(data, row, BETTER), final)
    for final, other, name in ((SINGLE, FOLDED, "b"), (ENSEMBLE, FOLDED, "b"), (ENSEMBLE, MIXED, "c")):
        one = compared(data, PORTFOLIOS[final], other)
        wanted = f"`{final}` minus ({name}): lower bound of the mean over pairs ≥ {NOT_BELOW:g}".replace("-", "−")
        found.append(Goal(wanted, *((interval(one.mean), one.mean.low >= NOT_BELOW) if one else NOT_MEASURED)))
        wanted = f"`{final}` minus ({name}): no pair shown to lose"
        found.append(Goal(wanted, *((named(one.losers), not one.losers) if one else NOT_MEASURED)))
    one = compared(data, PORTFOLIOS[ENSEMBLE], MIXED, set(sharing))
    wanted = "`ensemble` minus (c) where tasks share their classes: the whole interval is above 0"
    found.append(Goal(wanted, *((interval(one.mean), one.mean.low > 0) if one else NOT_MEASURED)))
    times, steps = time_cost(lines, PORTFOLIOS[SINGLE]), cost(lines, PORTFOLIOS[SINGLE])
    wanted = f"cost of `single`: at most the time of {MOST_RUNS:g} full runs on every pair"
    most = max(times, key=lambda pair: times[pair]) if times else ""
    words = f"by time {fmean(times.values()):.1f} on average, at most {times[most]:.1f} ({most}); " if times else ""
    words += f"by steps {fmean(steps.values()):.1f} on average, at most {max(steps.values()):.1f}" if times else ""
    found.append(Goal(wanted, *((words, times[most] <= MOST_RUNS) if times else NOT_MEASURED)))
    return found


NOT_MEASURED: tuple[str, None] = ("not measured", None)
TABLE_2 = Path(__file__).parents[1] / "results" / "table2-cat-vs-dog.jsonl"


def tuned_multitask() -> list[float]:
    """Test accuracies of tuned multitask on the paper's Cat-vs-Dog. Only the settings that tuning chose have all seeds."""
    found: dict[str, dict[int, float]] = {}
    for line in map(json.loads, TABLE_2.read_text(encoding="utf-8").splitlines()):
        settings, _, seed = line["run"].rpartition("/seed-")
        if line["result"]["strategy"] == MULTITASK:
            found.setdefault(settings, {})[int(seed)] = 100 * line["result"]["test"]["accuracy"]
    return list(max(found.values(), key=len).values())


def cat_vs_dog(lines: Lines) -> list[Goal]:
    """Five seeds with the paper's labels against tuned multitask, which was run before with other seeds: Welch's test."""
    found, values, other = [], by_pair(lines).get("cat_vs_dog", {}), tuned_multitask()
    for final, row in PORTFOLIOS.items():
        wanted = f"Cat-vs-Dog, `{final}`: significantly above tuned multitask ({fmean(other):.1f})"
        own = list(values.get(row, {}).values())
        if len(own) < 2:
            found.append(Goal(wanted, *NOT_MEASURED))
            continue
        test = ttest_ind(own, other, equal_var=False)
        low, high = test.confidence_interval()
        points = f"{fmean(own) - fmean(other):+.2f} ({low:+.2f} to {high:+.2f})"
        words = f"{fmean(own):.1f}, {points}, {len(own)} seeds against {len(other)}"
        found.append(Goal(wanted, words, bool(low > 0)))
    return found


def _against_a(one: Compared | None, final: str) -> list[Goal]:
    wanted = [
        f"`{final}` minus (a): no pair shown to lose",
        f"`{final}` minus (a): every mean ≥ {WORST_MEAN:g}".replace("-", "−"),
        f"`{final}` minus (a): lower bound > 0 on half of the pairs",
        f"`{final}` minus (a): mean over pairs ≥ {WANTED[final]:+g}",
    ]
    if one is None:
        return [Goal(words, *NOT_MEASURED) for words in wanted]
    lowest = one.pairs[one.worst].mean
    return [
        Goal(wanted[0], named(one.losers), not one.losers),
        Goal(wanted[1], f"lowest {lowest:+.2f} ({one.worst})", lowest >= WORST_MEAN),
        Goal(wanted[2], f"{len(one.gains)} of {len(one.pairs)}", 2 * len(one.gains) >= len(one.pairs)),
        Goal(wanted[3], interval(one.mean), one.mean.mean >= WANTED[final]),
    ]


def cost(lines: Lines, row: str) -> dict[str, float]:
    """Full runs that a row took, by pair, mean over seeds."""
    found: dict[str, list[float]] = {}
    for (pair, name, _), line in sorted(lines.items()):
        if name == row:
            found.setdefault(pair, []).append(line["runs"])
    return {pair: fmean(runs) for pair, runs in found.items()}


def time_cost(lines: Lines, row: str) -> dict[str, float]:
    """The time that a row took over that of one run of multitask with the same seed, by pair, mean over seeds."""
    found: dict[str, list[float]] = {}
    for (pair, name, seed), line in sorted(lines.items()):
        if name == row and (run := lines.get((pair, MULTITASK, seed))):
            found.setdefault(pair, []).append(line["seconds"] / (run["seconds"] / run["runs"]))
    return {pair: fmean(runs) for pair, runs in found.items()}


@dataclass(frozen=True)
class Foretold:
    """The chance that was printed, the evidence behind it, and what came of it."""

    chance: float
    evidence: float
    helped: bool


def foretold(lines: Lines, row: str = PORTFOLIOS[SINGLE], other: str = PLAIN) -> list[Foretold]:
    """For each pair and seed: did `row` have more than half a point more than `other`?"""
    found = []
    for (pair, name, seed), line in sorted(lines.items()):
        if name != PORTFOLIOS[SINGLE] or line["chance"] is None:
            continue
        if all((pair, needed, seed) in lines for needed in (row, other)):
            more = lines[pair, row, seed]["accuracy"] - lines[pair, other, seed]["accuracy"]
            found.append(Foretold(line["chance"]["value"], line["chance"]["evidence"], more > WORTHWHILE))
    return found


def development_cases(path: Path = CASES) -> list[Foretold]:
    """What the chance was fitted to (`policies --cases` wrote it), with the chances that the product gives."""
    found = json.loads(path.read_text(encoding="utf-8"))["cases"]
    return [
        Foretold(CHANCE.of(one["evidence"]), one["evidence"], one["single"] - one["primary_folds"] > WORTHWHILE)
        for one in found
        if one["evidence"] is not None
    ]


def multitask_helped(lines: Lines) -> list[Foretold]:
    """The same for reference (a): tuned multitask against `primary_only`."""
    return foretold(lines, MULTITASK, PRIMARY_ONLY)


def auroc(found: Sequence[Foretold]) -> float:
    """How often a run that was helped had the more evidence, of two; NaN where all came out alike."""
    good, bad = ([one.evidence for one in found if one.helped == helped] for helped in (True, False))
    if not good or not bad:
        return math.nan
    return fmean((a > b) + 0.5 * (a == b) for a in good for b in bad)


def reliability(found: Sequence[Foretold]) -> list[tuple[float, float, int, float, float]]:
    """For each bin of the chance: its ends, runs, the mean chance, and the share that was helped."""
    rows = []
    for low, high in pairwise(BINS):
        own = [one for one in found if low <= one.chance < high or (high == BINS[-1] and one.chance == high)]
        if own:
            rows.append((low, high, len(own), fmean(o.chance for o in own), fmean(o.helped for o in own)))
    return rows


def calibrated(found: Sequence[Foretold], ridge: float = 1e-3) -> tuple[float, float]:
    """Intercept and slope of the chance by logistic regression on the evidence (Newton's method, a little ridge)."""
    intercept, slope = 0.0, 0.0
    for _ in range(100):
        g0, g1, h00, h01, h11 = ridge * intercept, ridge * slope, ridge, 0.0, ridge
        for one in found:
            p = 1 / (1 + math.exp(-max(-50.0, min(50.0, intercept + slope * one.evidence))))
            error, weight = p - one.helped, p * (1 - p)
            g0, g1 = g0 + error, g1 + error * one.evidence
            h00, h01, h11 = h00 + weight, h01 + weight * one.evidence, h11 + weight * one.evidence**2
        determinant = h00 * h11 - h01 * h01
        steps = (h11 * g0 - h01 * g1) / determinant, (h00 * g1 - h01 * g0) / determinant
        intercept, slope = intercept - steps[0], slope - steps[1]
        if max(map(abs, steps)) < 1e-9:
            break
    return intercept, slope
