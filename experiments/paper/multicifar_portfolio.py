"""`strategy: portfolio` on four superclasses of MultiCifar100, apart from the table but compared
with its rows.

It is a record: the runner, and the portfolio whose candidates stopped early, are those of `REVISION`.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from statistics import fmean

from attittud_lab.statistics import ALPHA, Difference
from experiments.reproduce.results import Line, read_lines

from . import multicifar
from . import rows as reader
from .claims import MISSING, difference_cells, table
from .multicifar import WIDTH
from .rows import Row, minutes

NAME = "multicifar100-portfolio"
OTHERS = ("fish", "household_furniture", "large_omnivores_and_herbivores", "small_mammals")
"""The next superclass in alphabetical order after each of those of the search."""
REVISION = "2d18b6d9"
FINALS = ("single", "ensemble")
TITLE = "### A portfolio on four superclasses, apart from the table"
ABOUT = """\
We ran `strategy: portfolio` ([what it does](../portfolio.md)) on four superclasses: the next in alphabetical order
after each superclass of the search. They are {names}. `single` is one network, finally trained on all labels;
`ensemble` is a mean of networks of the folds. The test images are those of the table. This is a record of revision
{revision}: the portfolio of today trains every candidate to the end."""
LABELS = """\
A portfolio has the {labels:,} labels of a superclass both to train and to choose with. The network of `single` is
trained on all of them, each network of `ensemble` on two thirds. Rows of the table train on {train:,} of them and
choose on the other {validation:,}. So a difference has causes that these figures cannot tell apart: labels, averaged
weights, the choice among strategies, and the number of steps."""
CAUSES = """\
A portfolio takes the steps of about {runs:.0f} runs, a row of the table the steps of one run. On the device a portfolio took
as long as {device:.0f} runs of the table. The table's runs were compiled; the portfolio's runs were not.

The settings of both come from the search on other superclasses, except the weight. The row of multitask weighs the
primary task by 0.1 and the auxiliary task by 1. No candidate has that ratio: the candidates' ratios are 1 to 1, 1 to 0.1
and 1 to 4. This may be one reason why a portfolio is below tuned multitask.

The first rung ends inside the guided phase, where `pretrain` has fitted only its output layer to the primary task. There
it was stopped on {stopped} of {n} superclasses. This may be another reason.

The intervals are over {n} superclasses with one seed each. To be significant, a mean must be {needed:.1f} times as large as
the standard deviation of the differences. The p-values are not corrected, and we draw no conclusion."""
COST = "The portfolios took {own:.0f} minutes on the device and the table {table:.0f}: {both:.0f} of the 60 minutes planned."


def lines() -> list[Line]:
    """The superclasses that have been run, in the order of the declaration."""
    line_of = {line["part"]: line for line in read_lines(reader.RESULTS / f"{NAME}.jsonl")}
    return [line_of[name] for name in OTHERS if name in line_of]


def rows() -> dict[str, Row]:
    """Both kinds of model as rows of the table, by superclass."""
    rows = {final: Row(final, "") for final in FINALS}
    for line in lines():
        for final, row in rows.items():
            row.runs[line["part"]] = {"result": line["result"] | line["portfolio"][final]}
    return rows


def section() -> str:
    from scipy.stats import t

    done = lines()
    results = multicifar.column()
    if not multicifar.complete(results) or len(done) < len(OTHERS):
        return f"{TITLE}\n\n{MISSING}"
    of_table = {label: results.rows[label] for label in multicifar.SHORT}
    of_portfolio = rows()
    differences = []
    for label, row in of_table.items():
        cells = [cell for final in FINALS for cell in _cells(of_portfolio[final].minus(row))]
        differences.append([multicifar.SHORT[label], *cells])
    head = [text for final in FINALS for text in (f"`{final}` minus it", "95 %", "p")]
    of_all = minutes(multicifar.lines())
    own = minutes(done)
    figures = {
        "runs": fmean(line["portfolio"]["single"]["runs"] for line in done),
        "device": (own / len(done)) / (of_all / len(multicifar.lines())),
        "stopped": sum(_stopped(line) for line in done),
        "n": len(done),
        "needed": t.ppf(1 - ALPHA / 2, len(done) - 1) / math.sqrt(len(done)),
    }
    causes = CAUSES.format(**figures).split("\n\n")
    bullets = [textwrap.fill(f"* {cause}", WIDTH, subsequent_indent="  ") for cause in causes]
    return "\n\n".join(
        [
            TITLE,
            textwrap.fill(ABOUT.format(names=", ".join(OTHERS), revision=REVISION), WIDTH),
            by_superclass(done, of_table),
            table(["row of the table", *head], differences),
            textwrap.fill(LABELS.format(**used_labels(of_table)), WIDTH),
            "\n".join(bullets),
            COST.format(own=own, table=of_all, both=own + of_all),
        ]
    )


def _stopped(line: Line) -> bool:
    """Whether the first rung was the last of pre-training."""
    steps = {
        label: tried["steps"]
        for label, tried in line["portfolio"]["single"].get("candidates", {}).items()
    }
    return bool(steps) and steps["pretrain"] == min(steps.values()) < max(steps.values())


def used_labels(of_table: Mapping[str, Row]) -> dict[str, int]:
    """How many labels of a superclass a portfolio has, and what a row of the table takes them
    for.
    """
    row = next(iter(of_table.values()))
    about: Line = next(iter(row.runs.values()))["result"]["examples"]
    labels: int = lines()[0]["portfolio"]["single"]["labels"]
    return {"labels": labels, "train": about["train"], "validation": about["validation"]}


def by_superclass(done: list[Line], of_table: Mapping[str, Row]) -> str:
    """A line for every superclass, with the mean of all below them."""
    lined = []
    columns: list[list[float]] = []
    for line in done:
        portfolio = line["portfolio"]
        values = [row.test[line["part"]] for row in of_table.values()]
        values += [portfolio[final]["test"][line["result"]["metric"]] for final in FINALS]
        columns.append(values)
        picked = ", ".join(
            f"{label} x {n}" if n > 1 else label
            for label, n in portfolio["ensemble"]["picks"].items()
        )
        single = portfolio["single"]
        shown = [f"{100 * value:.1f}" for value in values]
        lined.append([line["part"], *shown, single["winner"], picked, f"{single['runs']:.1f}"])
    means = [f"{100 * fmean(values):.1f}" for values in zip(*columns, strict=True)]
    lined.append(["mean", *means, "", "", ""])
    names = [multicifar.SHORT[label] for label in of_table]
    head = ["superclass", *names, *(f"`{final}`" for final in FINALS)]
    return table([*head, "`single` is", "`ensemble` has", "full runs"], lined)


def _cells(difference: Difference | None) -> list[str]:
    mean, interval, _, p = difference_cells(difference)
    return [mean, interval, p]
