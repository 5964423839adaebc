"""All statistics of the fourth round, computed from the JSON files of `run`. protocol.md has the
goals.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats
from sklearn.metrics import roc_auc_score

from attittud_lab.statistics import ALPHA, Summary, holm, summarise

from . import pairs
from .pair import Pair
from .record import unpack
from .references import METHODS as REFERENCES
from .write import ROOT

RECORD = ROOT / "experiments/answer/results.jsonl"
PAGE = ROOT / "docs/appendix/answer-held-out.md"
MARK = "<!-- made by python -m experiments.answer page -->\n"

DEFAULT, BEFORE, SUSPICIOUS = "default", "before", "suspicious"
PRODUCTS = {
    DEFAULT: "`default` as it ran",
    "without_translated": "`without_translated`, which is the default since",
}
"""The rows whose goals are shown. The kill rule of `translated` made the second the default."""
BY_FOLDS = "best by folds"
NO_AUXILIARY = "best without auxiliary data"
CHOICES = {
    BY_FOLDS: REFERENCES,
    f"{BY_FOLDS}, not AutoGluon": ("alone", "pooled", "frozen"),
    NO_AUXILIARY: ("alone", "frozen", "autogluon"),
    f"{NO_AUXILIARY}, not AutoGluon": ("alone", "frozen"),
}
"""Among what each of these chooses. AutoGluon's own validation score is too good: its ensemble is
weighted by it. So it may win the choice unduly, and each choice is made without it too."""
LEAST = {"alone": 2.0, "frozen": 1.0, "pooled": 1.5, "autogluon": 2.0, "autogluon_pooled": 2.0}
"""The least mean over pairs, in points."""
WORST, LEAST_BY_FOLDS, LEAST_WRONG = -1.0, 0.5, 3.0
LEAST_BEFORE = {"image": 8.0, "text": 8.0, "table": 1.0}
LEAST_AUROC, BINS = 0.85, 5
ABLATIONS = (
    ("without_pretrained", DEFAULT),
    ("without_simple", DEFAULT),
    ("without_networks", DEFAULT),
    ("with_networks", DEFAULT),
    ("with_attittud", "with_networks"),
    ("without_translated", DEFAULT),
    ("without_stacked", DEFAULT),
    ("ensemble", DEFAULT),
    ("single", DEFAULT),
)
ALONE = "uses_alone"
"""The product without auxiliary data, which says whether they helped."""
SINGLE_RUNS = ("channel", "gold_loss_correction", "multitask", "own_head", "auto")

Scores = dict[int, float]
"""Accuracy in points by seed."""


@dataclass
class Results:
    """Accuracies by pair and method, and what else the files say."""

    scores: dict[str, dict[str, Scores]] = field(default_factory=dict)
    folds: dict[str, dict[str, Scores]] = field(default_factory=dict)
    chances: dict[str, dict[tuple[str, int], float]] = field(default_factory=dict)
    """The chance that auxiliary data help, as a method said it for a pair and seed."""
    seconds: dict[str, list[float]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    suspicious: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    """Figures about wrong labels by pair, for each source and seed."""
    repeated: set[str] = field(default_factory=set)
    """Methods that were, at least once, the same run as `default`."""
    revisions: set[str] = field(default_factory=set)

    def methods(self) -> set[str]:
        return set().union(*self.scores.values())


def read(out: Path) -> Results:
    """Read all results; refuses quick tests, and methods that had other labels."""
    results = Results()
    labels: dict[tuple[str, int], str] = {}
    for place, facts in unpack(out):
        pair = facts["pair"]
        seed = facts["seed"]
        method = facts["method"]
        if facts["quick"]:
            raise SystemExit(f"{place}: a quick test is no measurement; remove it")
        if labels.setdefault((pair, seed), facts["labels"]) != facts["labels"]:
            raise SystemExit(f"{place}: {method} had other labels than the other methods")
        add(results, facts)
    for name, methods in CHOICES.items():
        for pair in results.scores:
            best = best_by_folds(results, pair, methods)
            if best:
                results.scores[pair][name] = best
    return results


def add(results: Results, facts: dict[str, Any]) -> None:
    """Add the facts of one result."""
    pair = facts["pair"]
    seed = facts["seed"]
    method = facts["method"]
    results.revisions.add(str(facts["provenance"]["revision"])[:8])
    if facts["accuracy"] is None:
        results.failed.append(f"{pair}, seed {seed}, {method}: {facts['error'][:200]}")
        # A failure counts against the product: 0 for it, 1 for what it is compared with.
        worst = 1.0 if method in (BEFORE, *REFERENCES) else 0.0
        facts |= {"accuracy": worst, "fold_accuracy": worst}
    if "same_as" in facts:
        results.repeated.add(method)
    else:
        results.seconds.setdefault(method, []).append(facts["cpu_seconds"])
    if method == SUSPICIOUS:
        for source in facts.get("sources", {}).values():
            results.suspicious.setdefault(pair, []).append(source)
        return
    for table, figure in ((results.scores, "accuracy"), (results.folds, "fold_accuracy")):
        of_pair = table.setdefault(pair, {}).setdefault(method, {})
        of_pair[seed] = 100 * facts[figure]
    if facts.get("chance") is not None:
        results.chances.setdefault(method, {})[pair, seed] = facts["chance"]


def best_by_folds(results: Results, pair: str, methods: Sequence[str]) -> Scores:
    """For each seed that all these methods have, the accuracy of the one with the highest accuracy
    on folds.
    """
    scores = results.scores[pair]
    folds = results.folds[pair]
    present = [method for method in methods if method in scores]
    best = {}
    for seed in common_seeds(scores, present):
        winner = max(present, key=lambda method: folds[method][seed])
        best[seed] = scores[winner][seed]
    return best


def common_seeds(scores: dict[str, Scores], methods: Sequence[str]) -> list[int]:
    """The seeds that all these methods have."""
    if not methods:
        return []
    return sorted(set.intersection(*(set(scores[method]) for method in methods)))


# --------------------------------------------------------------------------------------- statistics


@dataclass(frozen=True)
class Comparison:
    """Differences of two methods, in points, over the pairs that have both."""

    differences: dict[str, list[float]]
    """By pair, one for each seed that both have."""

    @property
    def means(self) -> dict[str, float]:
        return {pair: float(np.mean(values)) for pair, values in self.differences.items()}

    def summary(self) -> Summary:
        """Mean over pairs and its 95 % interval."""
        return summarise([*self.means.values()])

    def seeds(self) -> str:
        """How many seeds the pairs have: a number, or the fewest and the most."""
        counts = sorted(set(map(len, self.differences.values())))
        if len(counts) == 1:
            return str(counts[0])
        return f"{counts[0]} to {counts[-1]}"

    def lost(self) -> list[str]:
        """Pairs where a one-sided paired t-test shows a loss after Holm's correction; the smallest
        p-value first.
        """
        p_values = [p_of_loss(values) for values in self.differences.values()]
        adjusted = dict(zip(self.differences, holm(p_values), strict=True))
        shown = [pair for pair, p in adjusted.items() if p <= ALPHA]
        return sorted(shown, key=lambda pair: adjusted[pair])


def p_of_loss(differences: Sequence[float]) -> float:
    """One-sided p-value that the mean is below 0."""
    if len(differences) < 2:
        return 1.0
    if np.ptp(differences) == 0:
        return float(differences[0] >= 0)
    return float(stats.ttest_1samp(differences, 0.0, alternative="less").pvalue)


def compare(results: Results, first: str, second: str, names: Iterable[str]) -> Comparison:
    """`first` minus `second` on those of the named pairs that have both."""
    differences = {}
    for pair in names:
        methods = results.scores.get(pair, {})
        if first in methods and second in methods:
            seeds = common_seeds(methods, [first, second])
            if seeds:
                values = [methods[first][seed] - methods[second][seed] for seed in seeds]
                differences[pair] = values
    return Comparison(differences)


def helped(results: Results, product: str) -> tuple[list[float], list[bool]]:
    """The chance that a product row said, and whether auxiliary data helped it, by pair and
    seed.
    """
    chances = []
    outcomes = []
    for (pair, seed), chance in results.chances.get(product, {}).items():
        alone = results.scores[pair].get(ALONE, {}).get(seed)
        score = results.scores[pair][product][seed]
        if alone is not None and alone != score:
            chances.append(chance)
            outcomes.append(score > alone)
    return chances, outcomes


# --------------------------------------------------------------------------------------------- page


def tables(out: Path) -> str:
    """All goals, comparisons and ablations as Markdown. Means have the number of their seeds."""
    results = read(out)
    declared = {name: pair for name, pair in pairs().items() if name in results.scores}
    parts = [f"Revisions: {', '.join(sorted(results.revisions))}. Pairs: {len(declared)}."]
    products = [product for product in PRODUCTS if product in results.methods()]
    for product in products:
        lines = goals(results, declared, product)
        parts.append(f"The goals, for {PRODUCTS[product]}:")
        parts.append(table(("goal", "figure", "bound", "seeds", ""), lines))
    parts.append(means_by_pair(results, declared))
    parts.append(ablations(results, declared))
    for product in products:
        lines = reliability(results, product)
        if lines:
            parts.append(f"What {PRODUCTS[product]} said about help:")
            head = ("chance that was said", "share that was helped", "runs")
            parts.append(table(head, lines))
    if results.suspicious:
        parts.append(suspicious(results))
    parts.append(times(results))
    if results.failed:
        parts.append("Failed:\n\n" + "\n".join(f"* {line}" for line in results.failed))
    return "\n\n".join(parts)


def page() -> str:
    """The page about the held-out pairs: its words, and the tables of the committed results."""
    words, _, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    return f"{words}{MARK}\n{tables(RECORD)}\n"


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    ruled = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in ruled)


def goals(results: Results, declared: dict[str, Pair], product: str) -> list[list[str]]:
    """Every goal for one row of the product."""
    lines = []
    for method in LEAST:
        lines += goals_against(method, compare(results, product, method, declared))
    wrong = [name for name, pair in declared.items() if pair.systematic]
    tables_alone = [name for name, pair in declared.items() if pair.kind == "table"]
    nets = [name for name in declared if name not in tables_alone]
    by_folds, by_folds_alone, best, best_alone = CHOICES
    for title, method, names, least in (
        (f"mean over the {by_folds}", by_folds, declared, LEAST_BY_FOLDS),
        (f"mean over the {by_folds_alone}", by_folds_alone, declared, LEAST_BY_FOLDS),
        (f"wrong, over the {best}", best, wrong, LEAST_WRONG),
        (f"wrong, over the {best_alone}", best_alone, wrong, LEAST_WRONG),
        ("mean over (a), texts and images", BEFORE, nets, LEAST_BEFORE["text"]),
        ("mean over (a), tables", BEFORE, tables_alone, LEAST_BEFORE["table"]),
    ):
        comparison = compare(results, product, method, names)
        if not comparison.differences:
            lines.append(missed(title, f"≥ +{least:g}"))
            continue
        ours = comparison.summary()
        met = ours.mean >= least
        if method in (by_folds, by_folds_alone):
            met = met and ours.low > 0
        lines.append(goal(title, with_ends(ours), f"≥ +{least:g}", comparison.seeds(), met))
    chances, outcomes = helped(results, product)
    title = "AUROC of the chance"
    bound = f"≥ {LEAST_AUROC}"
    if len(set(outcomes)) < 2:
        return [*lines, missed(title, bound)]
    area = float(roc_auc_score(outcomes, chances))
    return [*lines, goal(title, f"{area:.2f}", bound, "", area >= LEAST_AUROC)]


def goal(title: str, figure: str, bound: str, seeds: str, met: bool) -> list[str]:
    """A line of the table of goals."""
    return [title, figure, bound, seeds, "met" if met else "**missed**"]


def missed(title: str, bound: str) -> list[str]:
    return goal(title, "no results", bound, "", met=False)


def goals_against(method: str, comparison: Comparison) -> list[list[str]]:
    """The three goals against a reference: no pair lost, the worst pair, and the mean."""
    if not comparison.differences:
        return [missed(f"against {method}", "")]
    seeds = comparison.seeds()
    lost = comparison.lost()
    means = comparison.means
    worst = min(means, key=lambda pair: means[pair])
    worst_shown = f"{means[worst]:+.1f} ({worst})"
    ours = comparison.summary()
    least = LEAST[method]
    in_words = ", ".join(lost) or "none"
    return [
        goal(f"no pair lost to {method}", in_words, "none", seeds, not lost),
        goal(f"worst against {method}", worst_shown, "≥ -1", seeds, means[worst] >= WORST),
        goal(f"mean over {method}", with_ends(ours), f"≥ +{least:g}", seeds, ours.mean >= least),
    ]


def with_ends(ours: Summary) -> str:
    return f"{ours.mean:+.2f} ({ours.low:+.2f} to {ours.high:+.2f})"


def means_by_pair(results: Results, declared: dict[str, Pair]) -> str:
    """Mean accuracy of every method on every pair, with its number of seeds."""
    every = (DEFAULT, BEFORE, *REFERENCES, *dict(ABLATIONS), "primary_only", *SINGLE_RUNS)
    methods = [method for method in every if method in results.methods()]
    lines = []
    for pair in declared:
        line = [pair]
        for method in methods:
            values = [*results.scores[pair].get(method, {}).values()]
            line.append(f"{np.mean(values):.1f} ({len(values)})" if values else "")
        lines.append(line)
    return table(("pair", *methods), lines)


def ablations(results: Results, declared: dict[str, Pair]) -> str:
    """What each row of `ABLATIONS`, the product without auxiliary data, and each single run add."""
    without = [(ALONE, product) for product in PRODUCTS]
    singles = [(name, "primary_only") for name in SINGLE_RUNS]
    lines = []
    for first, second in (*without, *ABLATIONS, *singles):
        comparison = compare(results, first, second, declared)
        if not comparison.differences:
            continue
        row = f"{first} (the same runs)" if first in results.repeated else first
        ours = comparison.summary()
        ends = f"{ours.low:+.2f} to {ours.high:+.2f}"
        lost = ", ".join(comparison.lost()) or "none"
        line = [row, second, f"{ours.mean:+.2f}", ends, lost, str(ours.n), comparison.seeds()]
        lines.append(line)
    return table(
        ("row", "minus", "mean", "95 % interval", "shown to lose", "pairs", "seeds"), lines
    )


def reliability(results: Results, product: str) -> list[list[str]]:
    """How often auxiliary data helped, by the chance that a product row said."""
    chances, outcomes = map(np.array, helped(results, product))
    bin_of = np.minimum((chances * BINS).astype(int), BINS - 1)
    lines = []
    for number in range(BINS):
        inside = bin_of == number
        if inside.any():
            means = [f"{np.mean(chances[inside]):.2f}", f"{np.mean(outcomes[inside]):.2f}"]
            lines.append([*means, str(inside.sum())])
    return lines


def suspicious(results: Results) -> str:
    """How well wrong labels are found: means over sources and seeds, and their mean over pairs. The
    rows are a record of the revision that `run.py` names.
    """
    lines = []
    gains = []
    for pair, sources in results.suspicious.items():
        mean = {}
        for name in ("wrong", "list", "cleanlab", "seconds"):
            mean[name] = float(np.mean([source[name] for source in sources]))
        gains.append(mean["list"] - mean["cleanlab"])
        areas = [f"{mean['list']:.3f}", f"{mean['cleanlab']:.3f}"]
        lines.append([pair, f"{mean['wrong']:.0%}", *areas, f"{mean['seconds']:.1f}"])
    ours = summarise(gains)
    shown = f"{ours.mean:+.3f} ({ours.low:+.3f} to {ours.high:+.3f})"
    lines.append(["mean difference", "", shown, "", ""])
    head = ("wrong labels", "wrong", "AUROC of the list", "of cleanlab", "seconds for 10,000")
    return table(head, lines)


def times(results: Results) -> str:
    lines = []
    for method, seconds in sorted(results.seconds.items()):
        lines.append([method, f"{np.median(seconds):.1f}", str(len(seconds))])
    return table(("method", "median seconds of a core", "runs"), lines)
