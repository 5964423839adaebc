"""docs/appendix/never-regret.md and its plot from the committed results: `python -m experiments.never-regret.page`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from statistics import fmean
from typing import Any

from attittud_lab.statistics import FEWEST

from .pairs import PAIRS, SPLIT
from .record import RESULTS, Runs, load
from .strategies import AUTO
from .table import GOALS, MODES, ROWS, Outcome, belonging, difference, goals, outcomes
from .train import RATES

DOCS = Path(__file__).parents[2] / "docs" / "appendix"
PAGE = DOCS / "never-regret.md"
PLOT = DOCS / "never-regret.svg"

Results = dict[str, tuple[dict[str, Any], dict[str, dict[str, float]], Runs]]
HALVES = {"held_out": "Held-out pairs", "development": "Development pairs"}

TITLE = '# Will I ever regret `eta="auto"`?'
ABOUT = """\
`python -m experiments.never-regret.page` makes this page from `experiments/never-regret/results/`.
`experiments/never-regret/README.md` says how to run the suite. [The record of `auto`](auto.md) discusses the results.

A *pair* is a primary task with auxiliary data. The primary task has 40 to 300 labels, a small validation set and a larger
test set. The auxiliary data help, do nothing, or hurt. The rule of `auto` was chosen on the development pairs. The held-out
pairs were declared before that, and were run once after the rule was frozen. (Eight of the development pairs had been held out
for an earlier rule.)

* Every strategy has the same model, optimizer, learning rate and batches. Each run is stopped where its validation accuracy is
  best. The learning rate of a pair is the best rate on validation for the better of `primary_only` and multitask. It is not
  tuned for `auto`.
* `multitask` is the best on validation of eight runs with different auxiliary weights, for each seed. `best_preset` is the
  best of nine presets on the same validation set. All other strategies, also `auto`, are one run.
* The judges of `auto` are up to 64 validation examples, drawn again for every answer. So no strategy loses labels to judges,
  and none has more labels than the others.
* At equal steps every run takes as many steps as a run of `auto`. At equal seconds every run takes as many steps as fit into
  the processor time of a run of `auto`, so the eight runs of `multitask` together cost eight times as much. Seconds per step
  were measured once, before the runs.
* Differences are relative to the better of `primary_only` and `multitask`; one knows only afterwards which of the two is
  better. Points are percentage points of test accuracy. Intervals are 95 % (paired t) over seeds.

| outcome | meaning |
|---|---|
| gains | the lower bound is above 0 |
| no regret | the lower bound is at least −1: at most a point is lost |
| loses | the lower bound is below −1 and the upper bound below 0 |
| unclear | the lower bound is below −1 and the upper bound is not below 0 |"""


def answer(results: Results) -> str:
    """The answer to the title, from the held-out pairs."""
    chosen = found(results, "held_out", "at_steps")
    if not chosen:
        return "Not known yet."
    count = Counter(one.verdict for one in chosen)
    return (
        f"Of {len(chosen)} held-out pairs of data sets, `auto` loses on {count['**loses**']} and gains on {count['gains']} at "
        "equal\nsteps, compared with the better of `primary_only` and tuned multitask."
    )


def page(results: Results) -> str:
    """The whole page."""
    parts = [TITLE, answer(results), ABOUT]
    parts += [f"![auto minus the better of primary_only and tuned multitask]({PLOT.name})"] if results else []
    parts += ["## Goals", goal_tables(results), "## The pairs", pair_table(results)]
    for half, title in HALVES.items():
        for mode, words in MODES.items():
            parts += [f"## {title}, {words}", tables(results, half, mode)]
    parts += ["## What it costs", cost(results), "## How equal the seconds were", spent(results)]
    parts += ["## What the shared learning rate costs", rates()]
    parts += ["## Made with", made_with(results)]
    return "\n\n".join(parts) + "\n"


def found(results: Results, half: str, mode: str) -> list[Outcome]:
    return outcomes(results[half][0], results[half][2], mode) if half in results else []


def goal_tables(results: Results) -> str:
    lines = [f"| pairs | at | {' | '.join(GOALS)} |", "|---|---|" + "---|" * len(GOALS)]
    for halves in (*([half] for half in HALVES), list(HALVES)):
        for mode, words in MODES.items():
            chosen = [one for half in halves for one in found(results, half, mode)]
            cells = [f"{g.measured}: {'met' if g.met else '**missed**'}" for g in goals(chosen)] if chosen else []
            cells += [""] * (len(GOALS) - len(cells))
            name = "all" if len(halves) > 1 else halves[0].replace("_", "-")
            lines.append(f"| {name} | {words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def pair_table(results: Results) -> str:
    """What each pair is, and what plain multitask training does to it."""
    effects = {}
    for half in HALVES:
        for one in found(results, half, "at_steps"):
            effects[one.pair] = f"{difference(one.plain, one.values['primary_only']).mean:+.1f}"
    lines = [
        "*Built to* says what the auxiliary data were meant to do; *open* means that we made no prediction. The last column is",
        "multitask with weight 1 minus `primary_only`, at equal steps.",
        "",
        "| pair | | built to | what it is: primary; auxiliary | plain multitask |",
        "|---|---|---|---|---|",
    ]
    for half in HALVES:
        for name in SPLIT[half]:
            pair, effect = PAIRS[name], effects.get(name, "")
            lines.append(f"| {name} | {half.replace('_', '-')} | {pair.built_to} | {pair.about} | {effect} |")
    return "\n".join(lines)


def tables(results: Results, half: str, mode: str) -> str:
    chosen = found(results, half, mode)
    if not chosen:
        return "Not measured yet."
    rows = [row for row in ROWS if row != AUTO]
    lines = [
        f"| pair | {' | '.join(f'`{row}`' for row in rows)} | `auto` | minus the better of the first two | |",
        "|---|" + "---|" * (len(rows) + 3),
    ]
    for one in chosen:
        means = [interval(one, row) for row in (*rows, AUTO)]
        regret = f"{one.regret.mean:+.1f} ({one.regret.low:+.1f} to {one.regret.high:+.1f}), `{one.reference}`"
        lines.append(f"| {one.pair} | {' | '.join(means)} | {regret} | {one.verdict} |")
    whole = {row for row in ROWS if all(row in one.values for one in chosen)}
    means = [f"{fmean(one.mean(row) for one in chosen):.1f}" if row in whole else "" for row in (*rows, AUTO)]
    lines.append(f"| mean | {' | '.join(means)} | | |")
    common = set.intersection(*(set(values) for one in chosen for values in one.values.values()))
    if common and any(set(values) != common for one in chosen for values in one.values.values()):
        means = [f"{mean_over(chosen, row, common):.1f}" if row in whole else "" for row in (*rows, AUTO)]
        lines.append(f"| mean, the {len(common)} seeds of all rows | {' | '.join(means)} | | |")
    return "\n".join(lines) + "\n\n" + losers(chosen)


def mean_over(chosen: list[Outcome], row: str, seeds: Collection[int]) -> float:
    """Means over the pairs for these seeds alone, so that rows with different numbers of seeds can be compared."""
    return fmean(fmean(one.values[row][seed] for seed in seeds) for one in chosen)


def interval(one: Outcome, row: str) -> str:
    if row not in one.values:
        return ""
    found = one.summary(row)
    return f"{found.mean:.1f} ± {found.high - found.mean:.1f}" if found.n >= FEWEST else f"{found.mean:.1f}"


def losers(chosen: list[Outcome]) -> str:
    """Where the goal is missed, and how much the seeds differ there."""
    lines = [
        f"* {one.pair}: {one.regret.mean:+.1f} compared with `{one.reference}`; the differences of {one.regret.n} seeds have a "
        f"standard deviation of {one.regret.std:.1f}."
        for one in chosen
        if one.verdict in ("**loses**", "unclear")
    ]
    return (
        "The first goal, a lower bound of at least −1, is missed on these pairs:\n\n" + "\n".join(lines)
        if lines
        else "The first goal, a lower bound of at least −1, is met on each of these pairs."
    )


def cost(results: Results) -> str:
    lines = [
        "The table has the processor time of all runs that a strategy needs, divided by that of `auto`, at equal steps. Each",
        "pair has a ratio, and the table has the mean of these ratios. (The goals divide the total times of all pairs instead.)",
        "The last column counts how often the validation set chose each preset as the best.",
        "",
        f"| pairs | {' | '.join(f'`{row}`' for row in ROWS)} | chosen presets |",
        "|---|" + "---|" * (len(ROWS) + 1),
    ]
    for half in HALVES:
        chosen = found(results, half, "at_steps")
        if chosen:
            ratios = []
            for row in ROWS:
                found_ratios = [one.seconds[row] / one.seconds[AUTO] for one in chosen if row in one.seconds]
                ratios.append(f"{fmean(found_ratios):.2f}" if found_ratios else "")
            counts = Counter(name for one in chosen for name in one.chosen)
            names = ", ".join(f"{name} {count}" for name, count in counts.most_common())
            lines.append(f"| {half.replace('_', '-')} | {' | '.join(ratios)} | {names} |")
    return "\n".join(lines)


def spent(results: Results) -> str:
    """How equal the seconds were, by the clocks of the runs themselves."""
    lines = [
        "Seconds per step were measured before the runs, which then shared the machine with others. So the seconds were not",
        "exactly equal. The table has the time that a strategy really had at equal seconds, divided by the time of `auto`: the",
        "mean over the pairs (lowest to highest). Below 1 a strategy had less time than `auto`, above 1 more.",
        "",
        f"| pairs | {' | '.join(f'`{row}`' for row in ROWS if row != AUTO)} |",
        "|---|" + "---|" * (len(ROWS) - 1),
    ]
    for half, (header, _, runs) in results.items():
        cells = []
        for row in ROWS:
            shares = [
                time_spent(pair, belonging(about["entries"], row), runs) for pair, about in header["pairs"].items()
            ]
            known = [share for share in shares if share is not None]
            if row != AUTO:
                cells.append(f"{fmean(known):.2f} ({min(known):.2f} to {max(known):.2f})" if known else "")
        lines.append(f"| {half.replace('_', '-')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def time_spent(pair: str, entries: Collection[str], runs: Runs) -> float | None:
    """Processor time of a run at equal seconds, divided by the time of a run of `auto`; mean over runs."""
    own = [run for (name, entry, _), run in runs.items() if name == pair and entry in entries]
    auto = [run["seconds"] for (name, entry, _), run in runs.items() if name == pair and entry == AUTO]
    if not own or not auto:
        return None
    return fmean(run["seconds"] / run["steps"] * run["equal_seconds"] for run in own) / fmean(auto)


def rates() -> str:
    """Validation accuracy that the two references lose because all strategies of a pair share one rate."""
    lines = [
        "All strategies of a pair share one learning rate. The table has the validation accuracy of four other seeds at this",
        "rate, and how many points more the best of three rates would give.",
        "",
        "| pair | rate | `primary_only` | more | `multitask`, weight 1 | more |",
        "|---|---|---|---|---|---|",
    ]
    for name, tuned in json.loads(RATES.read_text(encoding="utf-8")).items():
        cells = []
        for row in ("primary_only", "multitask"):
            own = tuned["validation"][str(tuned["rate"])][row]
            most = max(values[row] for values in tuned["validation"].values())
            cells += [f"{own:.1f}", f"{most - own:.1f}"]
        lines.append(f"| {name} | {tuned['rate']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def made_with(results: Results) -> str:
    lines = []
    for half in HALVES:
        if half in results:
            about, runs = results[half][0]["made_with"], results[half][2]
            seeds = {len(values) for one in found(results, half, "at_steps") for values in one.values.values()}
            words = ", ".join(f"{name} {value}" for name, value in about.items() if value is not None)
            lines.append(
                f"* {half.replace('_', '-')}: {len(runs)} runs, {' or '.join(map(str, sorted(seeds)))} seeds; {words}."
            )
    return "\n".join(lines) or "No results have been committed yet."


def read(folder: Path = RESULTS) -> Results:
    return {half: load(folder / f"{half}.jsonl") for half in HALVES if (folder / f"{half}.jsonl").is_file()}


def draw(results: Results, path: Path) -> None:
    """The differences with their intervals; the same file for the same results."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "attittud", "svg.fonttype": "none", "font.size": 9}
    figure = Figure(figsize=(8, 7))
    for axes, (mode, words) in zip(figure.subplots(1, 2, sharey=True), MODES.items(), strict=True):
        shown = [(half, one) for half in reversed(HALVES) for one in reversed(found(results, half, mode))]
        for y, (half, one) in enumerate(shown):
            color = "#4477aa" if half == "held_out" else "#bbbbbb"
            axes.plot([one.regret.low, one.regret.high], [y, y], color=color)
            axes.plot(one.regret.mean, y, "o", color=color)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.axvline(-1, color="black", linewidth=0.8, linestyle=":")
        axes.set_yticks(range(len(shown)), [f"{one.pair} ({PAIRS[one.pair].built_to})" for _, one in shown])
        axes.set_title(words)
        axes.set_xlabel("points (blue: held-out)")
    figure.savefig(path, format="svg", metadata={"Date": None}, bbox_inches="tight")


def main() -> None:
    results = read()
    PAGE.write_text(page(results), encoding="utf-8")
    if results:
        draw(results, PLOT)
    print(f"wrote {PAGE}" + (f" and {PLOT}" if results else "; there are no results yet"))


if __name__ == "__main__":
    main()
