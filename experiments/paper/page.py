"""docs/appendix/reproduction.md and its plots: `python -m experiments.paper.page` makes them."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.reproduce.results import read_lines

from . import multicifar, multicifar_portfolio, printed, table1, table3
from .claims import MISSING, Claim, against_paper, judged, spread_falls, table
from .figure2 import (
    RANK_CLAIMS,
    SAMPLES_CLAIMS,
    SPREAD,
    by_samples,
    rank,
    rank_rows,
    samples,
    samples_rows,
)
from .plots import DOCS, PLOTS, draw
from .rows import HERE, RESULTS, Row, minutes
from .table2 import (
    CHOSEN_CLAIMS,
    MORE_CLAIMS,
    NAMES,
    TABLE2_CLAIMS,
    everything,
    outcome,
    table2,
    with_chosen,
)
from .table4 import FIGURE3_CLAIMS, TABLE4_CLAIMS, best_rows, captured, shares, table4

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
    """The whole page; what was not run yet says so."""
    vision = [table2(), table4(), samples(), rank(), captured()]
    sections = [
        ABOUT,
        in_short(),
        READING,
        *vision,
        multicifar.section(),
        multicifar_portfolio.section(),
        table1.section(),
        table3.section(),
        *diverged(),
        costs(),
        protocol(),
    ]
    return "\n\n".join(sections) + "\n"


def in_short() -> str:
    """Every claim with its outcome, and our means with the paper's; one line for a study on other
    data with one outcome.
    """
    results, column = everything(), multicifar.column()
    rows = with_chosen(results)
    groups = [
        ("Table 2", TABLE2_CLAIMS, rows),
        ("Table 2", CHOSEN_CLAIMS, rows),
        ("Table 2, beyond the paper", MORE_CLAIMS, rows),
        ("Table 4", TABLE4_CLAIMS, best_rows()),
        ("Figure 2", SAMPLES_CLAIMS, samples_rows()),
        ("Figure 2", RANK_CLAIMS, rank_rows()),
        ("Figure 3", FIGURE3_CLAIMS, shares()),
        ("Table 2, MultiCifar100", multicifar.CLAIMS, column.claimed),
    ]
    every = [line for group in groups for line in verdicts(*group)]
    n, verdict, _ = spread_falls(by_samples())
    place = [line[1] for line in every].index(SAMPLES_CLAIMS[-1].text) + 1
    every.insert(place, ["Figure 2", SPREAD, str(n), verdict])
    n, verdict, _ = multicifar.best_verdict(column)
    every.append(["Table 2, MultiCifar100", multicifar.BEST, str(n), verdict])
    elsewhere = [*table1.groups(), ("Table 3, other data", table3.CLAIMS, table3.rows().claimed)]
    others = [verdicts(*group) for group in elsewhere]
    count = Counter(line[-1] for line in itertools.chain(every, *others))
    waiting = count.pop(MISSING, 0)
    counted = ", ".join(f"*{verdict}* {n}" for verdict, n in count.most_common())
    lines = [
        [*line, f"**{verdict}**" if "hold" in verdict else verdict]
        for *line, verdict in itertools.chain(every, *map(at_once, others))
        if verdict != MISSING
    ]
    bullets = [*outcome(results), *multicifar.outcome(column)]
    means = [
        [NAMES.get(label, name), *beside(results.rows.get(label), mean, half)]
        for label, (name, mean, half) in printed.TABLE2.items()
    ]
    return "\n\n".join(
        [
            "## In short",
            table(["mean on Cat-vs-Dog, %", "ours", "paper", "intervals"], means),
            *(["\n".join(bullets)] if bullets else []),
            f"We tested {sum(count.values())} claims, the paper's and further ones. Their outcomes are: {counted}.",
            table(["", "claim", "n", "outcome"], lines),
            *(
                [f"Claims that wait for their runs, in the sections below: {waiting}."]
                if waiting
                else []
            ),
        ]
    )


def verdicts(where: str, claims: Sequence[Claim], rows: Mapping[str, Row]) -> list[list[str]]:
    """Section, claim, seeds and outcome of each claim."""
    return [
        [where, claim.text, "" if difference is None else str(difference.n), verdict]
        for claim, difference, verdict in judged(claims, rows)
    ]


def at_once(lines: list[list[str]]) -> list[list[str]]:
    """One line instead of all, where they differ only in the claim."""
    where, _, *rest = lines[0]
    if all(line[2:] == rest for line in lines):
        return [[where, f"all {len(lines)}", *rest]]
    return lines


def beside(ours: Row | None, mean: float, half: float) -> list[str]:
    """Our mean, the paper's, and whether the intervals agree."""
    if ours is None:
        return [MISSING, str(mean), ""]
    return [f"{100 * ours.summary.mean:.1f}", str(mean), against_paper(ours.summary, mean, half)]


def every_line() -> Iterator[tuple[str, dict[str, Any]]]:
    """All results, with the experiment of each."""
    return (
        (path.stem, line) for path in sorted(RESULTS.glob("*.jsonl")) for line in read_lines(path)
    )


def diverged() -> list[str]:
    """Every run without a result, so that none is silently missing from a table; empty where all
    have results.
    """
    by_fingerprint = {  # once, though other parts may have a copy of the line
        line["fingerprint"]: [experiment, f"`{line['run']}`", line["diverged"]]
        for experiment, line in every_line()
        if line.get("diverged") is not None
    }
    lines = by_fingerprint.values()
    head = ["experiment", "run", "what happened"]
    about = (
        "No mean counts these runs, and no search can choose them; the tables have the other seeds."
    )
    return [f"## Runs that diverged\n\n{about}\n\n{table(head, lines)}"] if lines else []


def costs() -> str:
    """Minutes of the device by experiment and machine."""
    by_fingerprint: dict[str, tuple[str, dict[str, Any]]] = {}
    for experiment, line in every_line():  # other parts may have a copy of the line
        by_fingerprint.setdefault(line["fingerprint"], (experiment, line))
    runs: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for experiment, line in by_fingerprint.values():
        about: dict[str, Any] = line["made_with"]
        key = (
            experiment,
            about["device"],
            f"torch {about['torch']}, revision {about.get('revision', 'unknown')}",
            "yes" if about.get("compiled") else "no",
            "yes" if about["repeatable"] else "no",
            str(about.get("side_by_side", 1)),
        )
        runs.setdefault(key, []).append(line)
    if not runs:
        return f"## What it cost\n\nNothing has been run: {MISSING}."
    lines = [[*key, str(len(some)), f"{minutes(some):.1f}"] for key, some in runs.items()]
    head = ["experiment", "device", "made with", "compiled", "repeatable bit by bit"]
    head += ["side by side", "runs", "minutes"]
    count = len(by_fingerprint)
    in_all = minutes(line for _, line in by_fingerprint.values())
    one = " (a portfolio counts as one)" if multicifar_portfolio.lines() else ""
    text = f"In all, {count} runs{one} took {in_all:.1f} minutes. {five_rows()}"
    return "\n\n".join(["## What it cost", COMPILED, table(head, lines), text, *made_again()])


def made_again() -> list[str]:
    """Whether runs of which there is more than one line had the same figures each time; nothing
    where there is none.
    """
    every: dict[str, dict[str, str]] = {}
    for _, line in every_line():
        if line.get("diverged") is None:
            figures = [line["result"]["validation"], line["result"]["test"], line["curves"]]
            started = line["made_with"].get("started", "")  # other parts have a copy of the line
            every.setdefault(line["fingerprint"], {})[started] = json.dumps(figures, sort_keys=True)
    times = [list(copies.values()) for copies in every.values() if len(copies) > 1]
    if not times:
        return []
    same = sum(len(set(copies)) == 1 for copies in times)
    often = f"{len(times)} runs were made more than once, up to {max(map(len, times))} times"
    return [
        f"{often}. {same} of these {len(times)} gave the same figures to the last digit every time."
    ]


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
    for path in sorted(
        HERE.glob("protocol*.md"), key=lambda path: path.stem
    ):  # the first tables come first
        title, _, text = path.read_text(encoding="utf-8").partition("\n")
        texts.append(f"#{title}\n{text.replace(chr(10) + '## ', chr(10) + '### ')}".rstrip())
    return "\n\n".join(texts)


def main() -> None:
    draw(PLOTS)
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE} and its plots")


if __name__ == "__main__":
    main()
