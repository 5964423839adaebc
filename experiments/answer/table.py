"""All statistics of the fourth round, computed from the JSON files of `run`. protocol.md has the
goals.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import pairs
from .pair import Pair
from .record import unpack
from .references import METHODS as REFERENCES
from .run import SUSPICIOUS
from .write import ROOT

RECORD = ROOT / "experiments/answer/results.jsonl"
PAGE = ROOT / "docs/appendix/answer-held-out.md"
MARK = "<!-- made by python -m experiments.answer page -->\n"

LEVEL = 0.05
DEFAULT, BEFORE = "default", "before"
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
        return {method for methods in self.scores.values() for method in methods}


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
    """Add one file."""
    pair = facts["pair"]
    seed = facts["seed"]
    method = facts["method"]
    results.revisions.add(str(facts["provenance"]["revision"])[:8])
    if facts["accuracy"] is None:
        results.failed.append(f"{pair}, seed {seed}, {method}: {facts['error'][:200]}")
        # A failure counts against the product.
        worst = 1.0 if method in (BEFORE, *REFERENCES) else 0.0
        facts |= {"accuracy": worst, "fold_accuracy": worst}
    if "same_as" in facts:
        results.repeated.add(method)
    else:
        results.seconds.setdefault(method, []).append(facts["cpu_seconds"])
    if method == SUSPICIOUS:
        results.suspicious.setdefault(pair, []).extend(facts.get("sources", {}).values())
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
    scores, folds = results.scores[pair], results.folds[pair]
    present = [method for method in methods if method in scores]
    best = {}
    for seed in common_seeds(scores, present):
        winner = max(present, key=lambda method: folds[method][seed])
        best[seed] = scores[winner][seed]
    return best


def common_seeds(scores: dict[str, Scores], methods: Sequence[str]) -> list[int]:
    """The seeds that all these methods have."""
    seeds = [set(scores[method]) for method in methods]
    return sorted(set.intersection(*seeds)) if seeds else []


# --------------------------------------------------------------------------------------- statistics


@dataclass(frozen=True)
class Comparison:
    """Differences of two methods, in points, over the pairs that have both."""

    differences: dict[str, np.ndarray]
    """By pair, one for each seed that both have."""

    @property
    def means(self) -> dict[str, float]:
        return {pair: float(values.mean()) for pair, values in self.differences.items()}

    def mean(self) -> tuple[float, float, float]:
        """Mean over pairs and the ends of its 95 % interval."""
        return interval([*self.means.values()])

    def seeds(self) -> str:
        """How many seeds the pairs have: a number, or the fewest and the most."""
        counts = [len(values) for values in self.differences.values()]
        fewest, most = min(counts), max(counts)
        return str(most) if fewest == most else f"{fewest} to {most}"

    def lost(self) -> list[str]:
        """Pairs where a one-sided paired t-test shows a loss after Holm's correction."""
        p_values = {pair: p_of_loss(values) for pair, values in self.differences.items()}
        shown = []
        for rank, pair in enumerate(sorted(p_values, key=lambda pair: p_values[pair])):
            if p_values[pair] > LEVEL / (len(p_values) - rank):
                break
            shown.append(pair)
        return shown


def p_of_loss(differences: np.ndarray) -> float:
    """One-sided p-value that the mean is below 0."""
    from scipy import stats

    if len(differences) < 2:
        return 1.0
    if np.ptp(differences) == 0:
        return 0.0 if differences[0] < 0 else 1.0
    return float(stats.ttest_1samp(differences, 0.0, alternative="less").pvalue)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    from scipy import stats

    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, float("-inf"), float("inf")
    half = stats.t.ppf(1 - LEVEL / 2, len(values) - 1) * np.std(values, ddof=1)
    half /= np.sqrt(len(values))
    return mean, mean - float(half), mean + float(half)


def compare(results: Results, first: str, second: str, names: Iterable[str]) -> Comparison:
    differences = {}
    for pair in names:
        methods = results.scores.get(pair, {})
        if first in methods and second in methods:
            seeds = common_seeds(methods, [first, second])
            if seeds:
                values = [methods[first][seed] - methods[second][seed] for seed in seeds]
                differences[pair] = np.array(values)
    return Comparison(differences)


def helped(results: Results, product: str) -> tuple[list[float], list[bool]]:
    """The chance that a product row said, and whether auxiliary data helped it, by pair and
    seed.
    """
    chances, outcomes = [], []
    for (pair, seed), chance in results.chances.get(product, {}).items():
        alone = results.scores[pair].get("uses_alone", {}).get(seed)
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
    for product in products(results):
        parts += [
            f"The goals, for {PRODUCTS[product]}:",
            rows(("goal", "figure", "bound", "seeds", ""), goals(results, declared, product)),
        ]
    parts += [
        rows(("pair", *shown_methods(results)), means_by_pair(results, declared)),
        rows(
            ("row", "minus", "mean", "95 % interval", "shown to lose", "pairs", "seeds"),
            ablations(results, declared),
        ),
    ]
    for product in products(results):
        table = reliability(results, product)
        parts += [f"What {PRODUCTS[product]} said about help:", table] if table else []
    parts += [
        rows(
            ("wrong labels", "wrong", "AUROC of the list", "of cleanlab", "seconds for 10,000"),
            suspicious(results),
        ),
        rows(("method", "median seconds of a core", "runs"), times(results)),
    ]
    if results.failed:
        parts.append("Failed:\n\n" + "\n".join(f"* {line}" for line in results.failed))
    return "\n\n".join(part for part in parts if part)


def page() -> str:
    """The page about the held-out pairs: its words, and the tables of the committed results."""
    words, _, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    return f"{words}{MARK}\n{tables(RECORD)}\n"


def products(results: Results) -> list[str]:
    return [product for product in PRODUCTS if product in results.methods()]


def rows(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    if not lines:
        return ""
    ruled = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in ruled)


def goals(results: Results, declared: dict[str, Pair], product: str) -> list[list[str]]:
    """Every goal for one row of the product."""
    lines = []

    def goal(name: str, figure: str, bound: str, met: bool, seeds: str = "") -> None:
        lines.append([name, figure, bound, seeds, "met" if met else "**missed**"])

    for method, least in LEAST.items():
        comparison = compare(results, product, method, declared)
        if not comparison.differences:
            goal(f"against {method}", "no results", "", False)
            continue
        lost = comparison.lost()
        worst = min(comparison.means, key=lambda pair: comparison.means[pair])
        mean, low, high = comparison.mean()
        figure = comparison.means[worst]
        seeds = comparison.seeds()
        worst_shown = f"{figure:+.1f} ({worst})"
        shown = with_ends(mean, low, high)
        goal(f"no pair lost to {method}", ", ".join(lost) or "none", "none", not lost, seeds)
        goal(f"worst against {method}", worst_shown, "≥ -1", figure >= WORST, seeds)
        goal(f"mean over {method}", shown, f"≥ +{least:g}", mean >= least, seeds)
    wrong = [name for name, pair in declared.items() if pair.systematic]
    kinds = {kind: [n for n, p in declared.items() if p.kind == kind] for kind in LEAST_BEFORE}
    nets = kinds["image"] + kinds["text"]
    by_folds, no_auxiliary = [*CHOICES][:2], [*CHOICES][2:]
    for name, method, names, least in (
        *[(f"mean over the {name}", name, [*declared], LEAST_BY_FOLDS) for name in by_folds],
        *[(f"wrong, over the {name}", name, wrong, LEAST_WRONG) for name in no_auxiliary],
        ("mean over (a), texts and images", BEFORE, nets, LEAST_BEFORE["text"]),
        ("mean over (a), tables", BEFORE, kinds["table"], LEAST_BEFORE["table"]),
    ):
        comparison = compare(results, product, method, names)
        if not comparison.differences:
            goal(name, "no results", f"≥ +{least:g}", False)
            continue
        mean, low, high = comparison.mean()
        met = mean >= least and (method not in by_folds or low > 0)
        goal(name, with_ends(mean, low, high), f"≥ +{least:g}", met, comparison.seeds())
    chances, outcomes = helped(results, product)
    if len(set(outcomes)) == 2:
        from sklearn.metrics import roc_auc_score

        area = float(roc_auc_score(outcomes, chances))
        goal("AUROC of the chance", f"{area:.2f}", f"≥ {LEAST_AUROC}", area >= LEAST_AUROC)
    else:
        goal("AUROC of the chance", "no results", f"≥ {LEAST_AUROC}", False)
    return lines


def with_ends(mean: float, low: float, high: float) -> str:
    return f"{mean:+.2f} ({low:+.2f} to {high:+.2f})"


def shown_methods(results: Results) -> list[str]:
    every = (DEFAULT, BEFORE, *REFERENCES, *dict(ABLATIONS), "primary_only", *SINGLE_RUNS)
    return [method for method in every if method in results.methods()]


def means_by_pair(results: Results, declared: dict[str, Pair]) -> list[list[str]]:
    lines = []
    for name in declared:
        line = [name]
        for method in shown_methods(results):
            values = [*results.scores[name].get(method, {}).values()]
            line.append(f"{np.mean(values):.1f} ({len(values)})" if values else "")
        lines.append(line)
    return lines


def ablations(results: Results, declared: dict[str, Pair]) -> list[list[str]]:
    lines = []
    singles = [(name, "primary_only") for name in SINGLE_RUNS]
    for first, second in (*ABLATIONS, *singles):
        comparison = compare(results, first, second, declared)
        if comparison.differences:
            mean, low, high = comparison.mean()
            ends = f"{low:+.2f} to {high:+.2f}"
            lost = ", ".join(comparison.lost()) or "none"
            count = str(len(comparison.means))
            row = f"{first} (the same runs)" if first in results.repeated else first
            seeds = comparison.seeds()
            lines.append([row, second, f"{mean:+.2f}", ends, lost, count, seeds])
    return lines


def reliability(results: Results, product: str) -> str:
    """How often auxiliary data helped, by the chance that a product row said."""
    chances, outcomes = helped(results, product)
    numbers = np.minimum((np.array(chances) * BINS).astype(int), BINS - 1)
    lines = []
    for number in range(BINS):
        inside = np.flatnonzero(numbers == number)
        if len(inside):
            chance = np.mean([chances[row] for row in inside])
            share = np.mean([outcomes[row] for row in inside])
            lines.append([f"{chance:.2f}", f"{share:.2f}", str(len(inside))])
    return rows(("chance that was said", "share that was helped", "runs"), lines)


def suspicious(results: Results) -> list[list[str]]:
    """How well wrong labels are found: means over sources and seeds, and their mean over pairs."""
    lines = []
    means = []
    for pair, sources in results.suspicious.items():
        if sources:
            names = ("wrong", "list", "cleanlab", "seconds")
            mean = {name: float(np.mean([source[name] for source in sources])) for name in names}
            means.append(mean)
            lines.append([pair, *found(mean), f"{mean['seconds']:.1f}"])
    if means:
        gains = [mean["list"] - mean["cleanlab"] for mean in means]
        average, low, high = interval(gains)
        gain = f"{average:+.3f} ({low:+.3f} to {high:+.3f})"
        lines.append(["mean difference", "", gain, "", ""])
    return lines


def found(mean: dict[str, float]) -> list[str]:
    return [f"{mean['wrong']:.0%}", f"{mean['list']:.3f}", f"{mean['cleanlab']:.3f}"]


def times(results: Results) -> list[list[str]]:
    return [
        [method, f"{np.median(seconds):.1f}", str(len(seconds))]
        for method, seconds in sorted(results.seconds.items())
    ]
