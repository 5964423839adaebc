"""Figure 2: accuracy against the examples that build the basis, and against its rank."""

from __future__ import annotations

from dataclasses import dataclass

from .claims import Claim, claim_table, spread_falls
from .plots import shown
from .rows import Row, part
from .tables import difference_cells, summary_cells, table

SAMPLES = """\
Accuracy against m, the number of examples that build the basis, with rank 5, (1, 0, 0) and primary_weight 0.01. In the paper the
mean is flat, and the variance falls with m."""
ENDS = """\
We saw one difference in the figure and had not planned to test it, so it has neither an outcome nor a correction:"""
RANK = "The paper finds small ranks better where data are scarce, and larger ranks elsewhere."
SAMPLES_CLAIMS = [Claim("the mean is flat: 100 examples are as good as 5", "100", "5", flat=True)]
SPREAD = "the variance falls with m"
RANK_CLAIMS = [
    Claim("with 50 per class, rank 5 is better than 40", "50/5", "50/40"),
    Claim("with 1,000 per class, rank 40 is better than 5", "1000/40", "1000/5"),
]
SIZES = (50, 1000)
"""Primary examples per class."""


@dataclass(frozen=True)
class Panel:
    """Runs of `orthogonal` in which one number varies, and multitask in the same setting."""

    multitask: Row
    rows: dict[int, Row]
    """By that number, in ascending order."""


def panel(experiment: str, name: str, key: str, usual: int) -> Panel:
    """Read a part whose labels give the number as `key`, if it is not the `usual` one."""
    results = part(experiment, name)
    rows = {}
    for label, row in results.rows.items():
        if label.startswith("orthogonal"):
            number = label.partition(f"{key}=")[2].partition("-")[0]
            rows[int(number or usual)] = row
    return Panel(results.rows["multitask"], dict(sorted(rows.items())))


def samples_panel() -> Panel:
    """By m."""
    return panel("figure2-samples", "figure2-samples", "basis_batch", 100)


def rank_panels() -> dict[int, Panel]:
    """For 50 and for 1,000 examples per class, by rank."""
    return {size: panel("figure2-rank", f"figure2-rank-{size}", "rank", 10) for size in SIZES}


def samples_rows() -> dict[str, Row]:
    """What claims are about, by m."""
    return {str(m): row for m, row in samples_panel().rows.items()}


def rank_rows() -> dict[str, Row]:
    """What claims are about, by examples per class and rank."""
    rows = {}
    for size, results in rank_panels().items():
        for rank, row in results.rows.items():
            rows[f"{size}/{rank}"] = row
    return rows


def ends() -> str:
    """Rank 1 against 40, which the figure suggests and nobody had asked."""
    rows = rank_rows()
    lines = []
    for size in SIZES:
        difference = rows[f"{size}/1"].minus(rows[f"{size}/40"])
        lines.append([f"{size:,}", *difference_cells(difference)])
    head = ["examples per class", "rank 1 minus rank 40, points", "95 %", "n", "p"]
    return table(head, lines)


def samples() -> str:
    """The section on the left half of the figure."""
    rows = samples_panel().rows
    _, outcome, figures = spread_falls(rows)
    lines = [[str(m), *summary_cells(row.summary)] for m, row in rows.items()]
    sections = [
        "## Figure 2, left: examples that build the basis",
        SAMPLES,
        table(["m", "ours", "std", "95 %", "n"], lines),
        claim_table(SAMPLES_CLAIMS, samples_rows()),
        f"{SPREAD.capitalize()}: {outcome} ({figures}).",
        shown("samples"),
    ]
    return "\n\n".join(sections)


def rank() -> str:
    """The section on the right half of the figure."""
    few, many = rank_panels().values()
    lines = []
    for number, row in few.rows.items():
        cells = summary_cells(row.summary) + summary_cells(many.rows[number].summary)
        lines.append([str(number), *cells])
    head = ["rank", "50 per class", "std", "95 %", "n", "1,000 per class", "std", "95 %", "n"]
    sections = [
        "## Figure 2, right: the rank of the basis",
        RANK,
        table(head, lines),
        claim_table(RANK_CLAIMS, rank_rows()),
        ENDS,
        ends(),
        shown("rank"),
    ]
    return "\n\n".join(sections)
