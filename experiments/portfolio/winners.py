"""Which candidate `final: single` chose on each pair, and why goals were missed, with the figures behind it."""

from __future__ import annotations

from statistics import fmean

from .declare import Pair
from .outcome import (
    BETTER,
    FOLDED,
    MIXED,
    MOST_RUNS,
    PORTFOLIOS,
    WORST_MEAN,
    by_pair,
    cat_vs_dog,
    compared,
    reference,
    time_cost,
)
from .record import Lines
from .rows import ENSEMBLE, SINGLE

Won = dict[str, dict[str, list[int]]]
"""By pair and candidate: the seeds on which it won, candidates that won most often first."""


def winners(lines: Lines) -> Won:
    found: Won = {}
    for (pair, row, seed), line in sorted(lines.items()):
        if row == PORTFOLIOS[SINGLE]:
            found.setdefault(pair, {}).setdefault(line["winner"], []).append(seed)
    return {pair: dict(sorted(won.items(), key=lambda item: -len(item[1]))) for pair, won in found.items()}


def winner_table(lines: Lines) -> str:
    """How often each candidate won, and its mean difference to (b) on these seeds."""
    data = by_pair(lines)
    head = "| pair | candidates, with the number of seeds on which each won (points minus (b) on these seeds) |"
    found = [head, "|---|---|"]
    for pair, won in winners(lines).items():
        own, other = data[pair][PORTFOLIOS[SINGLE]], data[pair].get(FOLDED, {})
        words = []
        for name, seeds in won.items():
            both = [own[seed] - other[seed] for seed in seeds if seed in other]
            words.append(f"`{name}`: {len(seeds)}" + (f" ({fmean(both):+.1f})" if both else ""))
        found.append(f"| {pair} | {'; '.join(words)} |")
    return "\n".join(found)


def reasons(lines: Lines, pairs: dict[str, Pair], cats: Lines) -> str:
    """A sentence for each goal that was missed; "" if none was."""
    data, found = by_pair(lines), list[str]()
    one = compared(data, PORTFOLIOS[SINGLE], BETTER)
    if one is not None and one.pairs[one.worst].mean < WORST_MEAN:
        values = data[one.worst]
        own, other = values[PORTFOLIOS[SINGLE]], values[reference(values)]
        parts = [
            f"`{name}` {fmean(own[seed] - other[seed] for seed in seeds):+.1f} ({len(seeds)} of {len(own)} seeds)"
            for name, seeds in winners(lines)[one.worst].items()
        ]
        labels = sum(pairs[one.worst].labels.values())
        found.append(
            f"* **The lowest mean** belongs to {one.worst}, where folds of only {labels} labels do not always choose a good "
            f"candidate. Points minus (a), by the candidate that won: {'; '.join(parts)}."
        )
    one = compared(data, PORTFOLIOS[ENSEMBLE], MIXED, {name for name, pair in pairs.items() if pair.shares})
    if one is not None and not one.mean.low > 0:  # also where two pairs are too few for an interval
        means = {name: summary.mean for name, summary in one.pairs.items()}
        lowest, highest = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
        found.append(
            f"* **(c) where classes are shared**: the {len(means)} pairs differ a lot, from {means[lowest]:+.1f} ({lowest}) to "
            f"{means[highest]:+.1f} ({highest}), so the interval over pairs is wide. The intervals over seeds are above 0 on "
            f"{', '.join(one.gains) or 'none'}. Shown to lose: {', '.join(one.losers) or 'none'}."
        )
    times = time_cost(lines, PORTFOLIOS[SINGLE])
    dear = [name for name, runs in times.items() if runs > MOST_RUNS]
    if dear:
        several = sum(len(pairs[name].auxiliary) > 1 and pairs[name].shares for name in dear)
        found.append(
            f"* **Cost** is above {MOST_RUNS:g} runs on {', '.join(dear)}. {several} of {len(dear)} have several sources, at "
            "least one of which predicts the primary classes. They have more candidates: each source alone, and separate output "
            "layers. "
            "`budget: 12 runs` would limit the cost."
        )
    if any(goal.met is False for goal in cat_vs_dog(cats)):
        own = by_pair(cats)["cat_vs_dog"]
        single, mixed = (own[PORTFOLIOS[final]] for final in (SINGLE, ENSEMBLE))
        parts = [
            f"`{name}` {fmean(single[seed] for seed in seeds):.1f} ({len(seeds)} of {len(single)} seeds)"
            for name, seeds in winners(cats)["cat_vs_dog"].items()
        ]
        found.append(
            f"* **Cat-vs-Dog**: the {len(single)} seeds of `single` span {max(single.values()) - min(single.values()):.1f} "
            "points, which is too much to show a difference of one point. Accuracy by the candidate that won: "
            f"{'; '.join(parts)}. `ensemble`, from the same trials, has "
            f"{fmean(mixed[seed] - single[seed] for seed in single):+.1f} points more."
        )
    return "\n".join(found)
