"""docs/appendix/reproduction.md and its plots: `python -m experiments.paper.page` makes them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from experiments.reproduce.results import Line, read_lines

from . import figure2, multicifar, printed, table1, table2, table3, table4
from .claims import Claim, judged, spread_falls
from .plots import DOCS, PLOTS, draw
from .rows import HERE, RESULTS, Row, minutes
from .tables import against_paper, table

PAGE = DOCS / "reproduction.md"

ABOUT = """\
# Do the paper's results hold?

We ran the experiments behind the paper's tables and figures again, on open data where the paper's own data are not available.
This page has our numbers next to the paper's, and an outcome for each claim; [Does the paper hold?](../paper.md) sums it up.
The outcomes come first. Then follow [how to read them, and how to run everything again](#how-to-read-this-page), the tables,
and the costs. At the end are the [protocols](#how-the-papers-vision-experiments-are-run-again), which were written before the
runs and list all differences from the paper."""

READING = """\
## How to read this page

* Figures are test accuracy in per cent, unless a section names another metric.
* *std* is the standard deviation with n − 1 in the denominator. Intervals are 95 % t-intervals over seeds. Differences are
  taken seed by seed (paired t-test). For MultiCifar100 intervals and differences are over superclasses. n counts the seeds or
  superclasses. p-values are Holm-corrected within a table.
* A claim *holds* where the difference has the claimed sign and p < 0.05. *Not significant* does not mean *equal*: the
  interval next to it says which differences are still possible.
* The paper's ± is a 95 % interval over 5 seeds; *agrees* means that the two intervals overlap, *above* that ours lies wholly
  above the paper's.
* In the settings, *heads* is the initialisation of the heads (PyTorch's default, or zero), and *keeps* says which model leaves
  the guided phase (the last, or the best on validation).
* The runs of the search with the chosen settings count among the seeds. Their validation figures chose the settings; their
  test figures did not.

ATTITTUD's rows are named by the weights of the neutral, the helpful and the harmful part: `orthogonal` is (1, 0, 0),
`orthogonal_flip` (1, 0, −1), `drop_harmful` (1, 1, 0) and `flip` (1, 1, −1). `primary_only` trains on the primary data alone.
`pcgrad` is one-sided PCGrad. `auto` finds the weights while it trains.

`python -m experiments.paper.page` makes this page from the runs in `experiments/results/`. To repeat an experiment, from a
checkout:

    python -m experiments.reproduce                                     # lists the experiments, and the data each needs
    python -m experiments.reproduce table2-cat-vs-dog --data FOLDER     # with CIFAR-10's parquet files from the dataset hub

Finished runs are not repeated; move `experiments/results/` away to start from scratch. `--part table2-cat-vs-dog` runs the
five rows of the paper alone; `--workers 2` shares the runs among two processes."""

COMPILED = """\
Compiled runs had `training.compile=true` added to the command. They have the same initial weights and batches as other runs,
but other rounding, dropout masks and times. A table, and even a row, may mix compiled and uncompiled runs. Where several runs
shared the device, each counts with its share of the minutes."""


def page() -> str:
    """The whole page. All experiments must have been run."""
    sections = [
        ABOUT,
        in_short(),
        READING,
        table2.section(),
        table4.section(),
        figure2.samples(),
        figure2.rank(),
        table4.captured(),
        multicifar.section(),
        table1.section(),
        table3.section(),
        diverged(),
        costs(),
        protocol(),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def in_short() -> str:
    """Every claim with its outcome, and our means with the paper's; one line for a study on other
    data with one outcome.
    """
    results = table2.everything()
    column = multicifar.column()
    rows = table2.with_chosen(results)
    on_multicifar = "Table 2, MultiCifar100"
    lines = [
        *verdicts("Table 2", table2.TABLE2_CLAIMS, rows),
        *verdicts("Table 2", table2.CHOSEN_CLAIMS, rows),
        *verdicts("Table 2, beyond the paper", table2.MORE_CLAIMS, rows),
        *verdicts("Table 4", table4.TABLE4_CLAIMS, table4.best_rows()),
        *verdicts("Figure 2", figure2.SAMPLES_CLAIMS, figure2.samples_rows()),
    ]
    seeds, outcome, _ = spread_falls(figure2.samples_panel().rows)
    lines.append(["Figure 2", figure2.SPREAD, str(seeds), outcome])
    lines += verdicts("Figure 2", figure2.RANK_CLAIMS, figure2.rank_rows())
    lines += verdicts("Figure 3", table4.FIGURE3_CLAIMS, table4.shares())
    lines += verdicts(on_multicifar, multicifar.CLAIMS, column.rows)
    outcome, _ = multicifar.best_outcome(column)
    lines.append([on_multicifar, multicifar.BEST, str(multicifar.SUPERCLASSES), outcome])
    count = Counter(line[-1] for line in lines)
    on_xrays = ("Table 3, other data", table3.CLAIMS, table3.everything().rows)
    for group in (*table1.groups(), on_xrays):
        of_study = verdicts(*group)
        count.update(line[-1] for line in of_study)
        lines += at_once(of_study)
    for line in lines:
        if "hold" in line[-1]:
            line[-1] = f"**{line[-1]}**"
    counted = ", ".join(f"*{outcome}* {n}" for outcome, n in count.most_common())
    means = []
    for label, (name, mean, half) in printed.TABLE2.items():
        ours = results.rows[label].summary
        agrees = against_paper(ours, mean, half)
        means.append([table2.NAMES.get(label, name), f"{100 * ours.mean:.1f}", str(mean), agrees])
    sections = [
        "## In short",
        table(["mean on Cat-vs-Dog, %", "ours", "paper", "intervals"], means),
        "\n".join([table2.summed_up(results), *multicifar.summed_up(column)]),
        f"We tested {count.total()} claims, the paper's and further ones. Their outcomes are: {counted}.",
        table(["", "claim", "n", "outcome"], lines),
    ]
    return "\n\n".join(sections)


def verdicts(where: str, claims: Sequence[Claim], rows: Mapping[str, Row]) -> list[list[str]]:
    """Section, claim, seeds and outcome of each claim."""
    lines = []
    for judgement in judged(claims, rows):
        seeds = str(judgement.difference.n)
        lines.append([where, judgement.claim.text, seeds, judgement.outcome])
    return lines


def at_once(lines: list[list[str]]) -> list[list[str]]:
    """One line instead of all, where they differ only in the claim."""
    where, _, *rest = lines[0]
    if all(line[2:] == rest for line in lines):
        return [[where, f"all {len(lines)}", *rest]]
    return lines


def every_line() -> Iterator[tuple[str, Line]]:
    """All results, with the experiment of each."""
    for path in sorted(RESULTS.glob("*.jsonl")):
        for line in read_lines(path):
            yield path.stem, line


def every_run() -> Iterable[tuple[str, Line]]:
    """The same, each run once: other parts may have a copy of its line."""
    runs: dict[str, tuple[str, Line]] = {}
    for experiment, line in every_line():
        runs.setdefault(line["fingerprint"], (experiment, line))
    return runs.values()


def diverged() -> str:
    """Every run without a result, so that none is silently missing from a table; empty where all
    have results.
    """
    lines = []
    for experiment, line in every_run():
        if line.get("diverged") is not None:
            lines.append([experiment, f"`{line['run']}`", line["diverged"]])
    if not lines:
        return ""
    about = (
        "No mean counts these runs, and no search can choose them; the tables have the other seeds."
    )
    runs = table(["experiment", "run", "what happened"], lines)
    return f"## Runs that diverged\n\n{about}\n\n{runs}"


YES_OR_NO = {True: "yes", False: "no"}


def costs() -> str:
    """Minutes of the device by experiment and machine."""
    runs: dict[tuple[str, ...], list[Line]] = {}
    for experiment, line in every_run():
        about = line["made_with"]
        key = (
            experiment,
            about["device"],
            f"torch {about['torch']}, revision {about.get('revision', 'unknown')}",
            YES_OR_NO[about.get("compiled", False)],
            YES_OR_NO[about["repeatable"]],
            str(about.get("side_by_side", 1)),
        )
        runs.setdefault(key, []).append(line)
    lines = [[*key, str(len(some)), f"{minutes(some):.1f}"] for key, some in runs.items()]
    head = ["experiment", "device", "made with", "compiled", "repeatable bit by bit"]
    head += ["side by side", "runs", "minutes"]
    every = [line for _, line in every_run()]
    text = (
        f"In all, {len(every)} runs (a portfolio counts as one) took {minutes(every):.1f} minutes. "
        f"{five_rows()}"
    )
    parts = ["## What it cost", COMPILED, table(head, lines), text, made_again()]
    return "\n\n".join(filter(None, parts))


def made_again() -> str:
    """Whether runs that were made more than once had the same figures each time."""
    figures_of: dict[str, dict[str, str]] = {}
    for _, line in every_line():
        if line.get("diverged") is None:
            figures = [line["result"]["validation"], line["result"]["test"], line["curves"]]
            started = line["made_with"].get("started", "")  # other parts have a copy of the line
            times = figures_of.setdefault(line["fingerprint"], {})
            times[started] = json.dumps(figures, sort_keys=True)
    repeated = [times for times in figures_of.values() if len(times) > 1]
    if not repeated:
        return ""
    same = sum(len(set(times.values())) == 1 for times in repeated)
    often = f"{len(repeated)} runs were made more than once, up to {max(map(len, repeated))} times"
    return (
        f"{often}. {same} of these {len(repeated)} gave the same figures to the last digit every "
        "time."
    )


def five_rows() -> str:
    """What the paper's own column takes."""
    name = "table2-cat-vs-dog"
    runs = [line for line in read_lines(RESULTS / f"{name}.jsonl") if line["part"] == name]
    return (
        f"The five rows of the paper's Cat-vs-Dog column, with their search, are {len(runs)} runs and took {minutes(runs):.1f} "
        "minutes."
    )


def protocol() -> str:
    """The protocols as they were written down, below this page's headings."""
    texts = []
    # By their stems, so that the first tables come first.
    for path in sorted(HERE.glob("protocol*.md"), key=lambda path: path.stem):
        title, _, text = path.read_text(encoding="utf-8").partition("\n")
        lower = text.replace("\n## ", "\n### ").rstrip()
        texts.append(f"#{title}\n{lower}")
    return "\n\n".join(texts)


def main() -> None:
    draw(PLOTS)
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE} and its plots")


if __name__ == "__main__":
    main()
