"""docs/appendix/portfolio-never-regret.md and its plot from the committed results: `python -m experiments.portfolio.page`."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean
from typing import Any

from .declare import Pair, read
from .outcome import (
    BETTER,
    FOLDED,
    MIXED,
    PLAIN,
    PORTFOLIOS,
    Values,
    auroc,
    by_pair,
    calibrated,
    cat_vs_dog,
    compared,
    cost,
    development_cases,
    foretold,
    goals,
    interval,
    multitask_helped,
    reference,
    reliability,
)
from .prepare import DEVELOPMENT, HELD_OUT
from .record import RESULTS, Lines, load
from .rows import ABLATION, ABLATION_SEEDS, FINALS, REFERENCES, ROWS, SINGLE
from .winners import reasons, winner_table

APPENDIX = Path(__file__).parents[2] / "docs" / "appendix"
PAGE = APPENDIX / "portfolio-never-regret.md"
CATS = "cat-vs-dog"
PLOT = APPENDIX / "portfolio-never-regret.svg"
Results = dict[str, tuple[dict[str, Any], Lines]]
"""By half: header and lines."""
SEEDS = 20
AGAINST = {"(a)": BETTER, "(b)": FOLDED, "(c)": MIXED}

ABOUT = """\
`python -m experiments.portfolio.page` makes this page from `experiments/portfolio/results/`.
`experiments/portfolio/README.md` says how to run everything again.

A *pair* is a primary task with auxiliary data. The held-out pairs, their sizes and what each was built to do were declared
before anything was tuned or run on them (`experiments/portfolio/pairs.json`). The seeds reported here were
run once, after everything was frozen; `experiments/portfolio/README.md` lists the trial runs with another seed before.
Half of the labels are for training and half for validation; the portfolio and references (b) and (c) use all of them for both.
The three references are:

* **(a)** the better of `primary_only` and multitask, where multitask is tuned with eight runs on the validation half. One
  knows only afterwards which of the two is better.
* **(b)** a portfolio whose candidates are only `primary_only` and multitask with several weights. It has the same folds, rungs
  and final training as the full portfolio, and the same number of candidates.
* **(c)** a greedy ensemble from the same trials as (b).

Points are percentage points of test accuracy. Intervals are 95 % (paired t): over seeds for one pair, over pairs for a mean.
A pair *gains* where the lower bound of its interval is above 0. It is *shown to lose* where a one-sided paired t-test says so
at 5 %, with Holm's correction over the pairs."""


COLUMNS = (
    f"`{PLAIN}` is `primary_only` with folds. `{FOLDED}` is reference (b), and `{MIXED}` is reference (c). `single` is one\n"
    "network, finally trained on all labels; `ensemble` is a mean of networks of the folds."
)
FULL_RUN = "A *full run* is one training with all of its steps."
FITTED = """\
The chance is the logistic function of {:.2f} + {:.2f} x, fitted to the development pairs. Here x is the sum of the
[two figures](portfolio.md#the-chance-that-the-auxiliary-data-help) from which the chance follows, in standard errors."""


def page(results: Results) -> str:
    """The whole page."""
    _, lines = results.get(HELD_OUT, ({}, {}))
    _, cats = results.get(CATS, ({}, {}))
    pairs = read()
    sharing = [name for name, pair in pairs.items() if pair.shares]
    parts = ["# With `strategy: portfolio`, do auxiliary data ever make the model worse?", summary(lines), ABOUT]
    if lines:
        parts.append(f"![The portfolio minus the better of primary_only and tuned multitask]({PLOT.name})")
    parts += ["## Goals", goal_table(lines, sharing, cats)]
    if why := reasons(lines, pairs, cats):
        parts += ["Why goals were missed:", why]
    parts += ["## The pairs", pair_table(pairs, by_pair(lines))]
    parts += ["## Accuracies", COLUMNS, accuracies(lines)]
    for final in FINALS:
        parts += [f"## `final: {final}` against the references", differences(lines, final)]
    parts += ["## Which candidate `single` chose", winner_table(lines)]
    parts += ["## What each part is worth", ablations(lines), "## What it costs", FULL_RUN, costs(lines)]
    parts += ["## The chance that auxiliary data help", chances(results)]
    if DEVELOPMENT in results:
        own = results[DEVELOPMENT][1]
        parts += ["## Development pairs", "Defaults were decided on these.", accuracies(own)]
        parts += [differences(own, final) for final in FINALS] + [ablations(own)]
    parts += ["## Made with", made_with(results)]
    return "\n\n".join(parts) + "\n"


def summary(lines: Lines) -> str:
    """The first paragraph: what was found, and whether the decomposition adds anything."""
    data, words = by_pair(lines), list[str]()
    for final, row in PORTFOLIOS.items():
        one = compared(data, row, BETTER)
        if one is not None:
            where = "above" if one.mean.mean >= 0 else "below"
            words.append(
                f"* On {len(one.pairs)} held-out pairs of data sets, `final: {final}` is on average {abs(one.mean.mean):.1f} "
                f"points {where} the better of `primary_only` and tuned multitask. It gains on {len(one.gains)} pairs, and is "
                f"shown to lose on {', '.join(one.losers) or 'none'}."
            )
    for final in FINALS:
        one = compared(data, f"with_attittud/{final}", f"without_attittud/{final}")
        if one is not None:
            adds = "they add something" if one.mean.low > 0 else "**they add nothing significant here**"
            words.append(
                f"* With strategies of ATTITTUD, which split gradients, as further candidates, `{final}` changes by "
                f"{interval(one.mean)} points: {adds}{ablated(data)}."
            )
    seeds = min(
        (len(values[row]) for values in data.values() for row in PORTFOLIOS.values() if row in values), default=0
    )
    if words and seeds < SEEDS:
        words.insert(0, f"* **So far {seeds} of {SEEDS} seeds have been run; the figures below are not final.**")
    return "\n".join(words) or "Not measured yet."


def goal_table(lines: Lines, sharing: list[str], cats: Lines) -> str:
    found = ["| goal | measured | |", "|---|---|---|"]
    for goal in (*goals(lines, sharing), *cat_vs_dog(cats)):
        state = "" if goal.met is None else "met" if goal.met else "**missed**"
        found.append(f"| {goal.wanted} | {goal.measured} | {state} |")
    return "\n".join(found)


def pair_table(pairs: dict[str, Pair], data: dict[str, Values]) -> str:
    """What each pair is, and what plain multitask does to it."""
    found = [
        "*Built to* says what the auxiliary data were meant to do; *open* means that we made no prediction. The last column is",
        "tuned multitask minus `primary_only`, both on the fixed split of (a).",
        "",
        "| pair | kind | built to | labels | tested on | what it is: primary; auxiliary | multitask |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, pair in pairs.items():
        values, effect = data.get(name, {}), ""
        if all(row in values for row in REFERENCES):
            effect = f"{mean(values, 'multitask') - mean(values, 'primary_only'):+.1f}"
        labels = sum(pair.labels.values())
        found.append(f"| {name} | {pair.kind} | {pair.built_to} | {labels} | {pair.test} | {pair.about} | {effect} |")
    return "\n".join(found)


def mean(values: Values, row: str) -> float:
    return fmean(values[row].values())


def accuracies(lines: Lines) -> str:
    """Means of the rows that every pair has."""
    data = by_pair(lines)
    shown = [*REFERENCES, PLAIN, FOLDED, MIXED, *PORTFOLIOS.values()]
    shown = [row for row in shown if any(row in values for values in data.values())]
    if not shown:
        return "Not measured yet."
    found = [f"| pair | seeds | {' | '.join(f'`{row}`' for row in shown)} |", "|---|---|" + "---|" * len(shown)]
    for pair, values in data.items():
        cells = [f"{mean(values, row):.1f}" if row in values else "" for row in shown]
        found.append(f"| {pair} | {max(len(seeds) for seeds in values.values())} | {' | '.join(cells)} |")
    whole = [row for row in shown if all(row in values for values in data.values())]
    cells = [f"{fmean(mean(values, row) for values in data.values()):.1f}" if row in whole else "" for row in shown]
    return "\n".join([*found, f"| mean | | {' | '.join(cells)} |"])


def differences(lines: Lines, final: str) -> str:
    """Each pair against the three references, with the corrected p-value of a loss."""
    data, row = by_pair(lines), PORTFOLIOS[final]
    columns = {name: compared(data, row, other) for name, other in AGAINST.items()}
    if all(one is None for one in columns.values()):
        return "Not measured yet."
    head = " | ".join(f"minus {name} | p of a loss" for name in columns)
    found = [f"| pair | {head} |", "|---|" + "---|---|" * len(columns)]
    for pair, values in data.items():
        cells = []
        for name, one in columns.items():
            if one is None or pair not in one.pairs:
                cells += ["", ""]
                continue
            which = f" `{reference(values)}`" if name == "(a)" else ""
            cells += [f"{interval(one.pairs[pair])}{which}", f"{one.adjusted[pair]:.3f}"]
        found.append(f"| {pair} | {' | '.join(cells)} |")
    cells = []
    for one in columns.values():
        cells += ["", ""] if one is None else [interval(one.mean), ""]
    return "\n".join([*found, f"| mean over pairs | {' | '.join(cells)} |"])


def ablations(lines: Lines) -> str:
    """Each ablation less the portfolio, over the seeds that both have."""
    data = by_pair(lines)
    found = ["| row | what it is | `single` | `ensemble` | full runs of `single` |", "|---|---|---|---|---|"]
    for row in ROWS.values():
        if row.group != ABLATION:
            continue
        cells = []
        for final in FINALS:
            one = compared(data, f"{row.name}/{final}", PORTFOLIOS[final])
            cells.append("" if one is None else interval(one.mean))
        runs = cost(lines, f"{row.name}/{SINGLE}")
        cells.append(f"{fmean(runs.values()):.1f}" if runs else "")
        if any(cells):
            found.append(f"| `{row.name}` | {row.about} | {' | '.join(cells)} |")
    if len(found) == 2:
        return "Not measured yet."
    return f"Points of each row minus the portfolio with its defaults, mean over pairs{ablated(data)}.\n\n" + "\n".join(
        found
    )


def ablated(data: dict[str, Values]) -> str:
    """How many seeds the ablations have, as long as some are missing."""
    counts = [len(values.get(f"with_attittud/{SINGLE}", {})) for values in data.values()]
    if min(counts) >= ABLATION_SEEDS:
        return ""
    some = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    return f" (so far {some} of {ABLATION_SEEDS} seeds)"


def costs(lines: Lines) -> str:
    """Full runs, size and time of a prediction."""
    found = ["| row | full runs | networks | bytes | seconds per prediction |", "|---|---|---|---|---|"]
    for row in (*REFERENCES, FOLDED, MIXED, *PORTFOLIOS.values()):
        own = [line for (_, name, _), line in lines.items() if name == row]
        if not own:
            continue
        models = [line["model"] for line in own if "model" in line]
        cells = [f"{fmean(line['runs'] for line in own):.1f}"]
        for key in ("members", "bytes", "seconds_per_prediction"):
            values = [model[key] for model in models if model.get(key) is not None]
            form = {"members": ".1f", "bytes": ",.0f"}.get(key, ".2e")
            cells.append(format(fmean(values), form) if values else "")
        found.append(f"| `{row}` | {' | '.join(cells)} |")
    return "\n".join(found) if len(found) > 2 else "Not measured yet."


def chances(results: Results) -> str:
    """AUROC and reliability on both halves."""
    found = [
        "The chance is printed after the first rung. We say that the auxiliary data *helped* where `single` is more than half a",
        "point above `primary_only` with folds, on the same pair and seed. In the last column of the next table, *helped* means",
        "instead that tuned multitask is above `primary_only`, on the fixed split.",
        "",
        "| pairs | runs | helped | AUROC | AUROC for tuned multitask |",
        "|---|---|---|---|---|",
    ]
    tables = list[str]()
    fitted = development_cases()
    groups = {"development (fitted to these)": (fitted, math.nan)}
    for half, (_, lines) in results.items():
        groups[half] = (foretold(lines), auroc(multitask_helped(lines)))
    for half, (own, other) in groups.items():
        if not own:
            continue
        share = fmean(one.helped for one in own)
        beside = "" if math.isnan(other) else f"{other:.2f}"
        found.append(f"| {half} | {len(own)} | {share:.0%} | {auroc(own):.2f} | {beside} |")
        tables += ["", f"Reliability, {half}:", "", "| chance | runs | mean chance | helped |", "|---|---|---|---|"]
        for low, high, count, chance, helped in reliability(own):
            tables.append(f"| {low:.0%} to {high:.0%} | {count} | {chance:.0%} | {helped:.0%} |")
    intercept, slope = calibrated(fitted)
    tables += ["", FITTED.format(intercept, slope)]
    return "\n".join(found + tables)


def made_with(results: Results) -> str:
    found = []
    for half, (header, lines) in results.items():
        words = ", ".join(f"{name} {value}" for name, value in header["made_with"].items() if value is not None)
        hours = sum(line.get("spent", 0.0) for line in lines.values()) / 3600
        found.append(f"* {half}: {len(lines)} rows, {hours:.1f} processor hours; {words}.")
    return "\n".join(found) or "No results have been committed yet."


def results_in(folder: Path = RESULTS) -> Results:
    halves = (HELD_OUT, DEVELOPMENT, CATS)
    return {half: load(folder / f"{half}.jsonl") for half in halves if (folder / f"{half}.jsonl").is_file()}


def draw(lines: Lines, path: Path) -> None:
    """The differences to (a) with their intervals; the same file for the same results."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "attittud", "svg.fonttype": "none", "font.size": 9}
    figure, pairs = Figure(figsize=(8, 6)), read()
    for axes, final in zip(figure.subplots(1, 2, sharey=True), FINALS, strict=True):
        one = compared(by_pair(lines), PORTFOLIOS[final], BETTER)
        if one is None:
            continue
        for y, found in enumerate(reversed(one.pairs.values())):
            axes.plot([found.low, found.high], [y, y], color="#4477aa")
            axes.plot(found.mean, y, "o", color="#4477aa")
        axes.axvline(0, color="black", linewidth=0.8)
        names = [f"{name} ({pairs[name].built_to})" if name in pairs else name for name in reversed(one.pairs)]
        axes.set_yticks(range(len(names)), names)
        axes.set_title(f"final: {final}")
        axes.set_xlabel("points to (a)")
    figure.savefig(path, format="svg", metadata={"Date": None}, bbox_inches="tight")


def main() -> None:
    results = results_in()
    PAGE.write_text(page(results), encoding="utf-8")
    if HELD_OUT in results:
        draw(results[HELD_OUT][1], PLOT)
    print(f"wrote {PAGE}" + ("" if HELD_OUT in results else "; there are no held-out results yet"))


if __name__ == "__main__":
    main()
