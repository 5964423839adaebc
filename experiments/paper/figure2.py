"""Figure 2: accuracy against the examples that build the basis, and against its rank."""

from __future__ import annotations

from collections.abc import Iterable

from .claims import Claim, claim_table, difference_cells, spread_falls, table
from .plots import shown
from .rows import Part, Row, part
from .tables import cells

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


def numbered(labels: Iterable[str], key: str, usual: int) -> dict[int, str]:
    """Labels of `orthogonal` by the number that they give for `key`."""
    label_of = {}
    for label in labels:
        if label.startswith("orthogonal"):
            text = label.partition(f"{key}=")[2].partition("-")[0]
            label_of[int(text) if text else usual] = label
    return dict(sorted(label_of.items()))


def samples_part() -> tuple[Part, dict[int, str]]:
    """What has been run, and its labels by m."""
    results = part("figure2-samples", "figure2-samples")
    return results, numbered(results.tried, "basis_batch", 100)


def rank_parts() -> dict[int, tuple[Part, dict[int, str]]]:
    """For 50 and for 1,000 examples per class what has been run, and its labels by rank."""
    parts = {size: part("figure2-rank", f"figure2-rank-{size}") for size in (50, 1000)}
    return {size: (results, numbered(results.tried, "rank", 10)) for size, results in parts.items()}


def with_results(results: Part, labels: dict[int, str]) -> dict[int, Row]:
    return {
        number: results.rows[label] for number, label in labels.items() if label in results.rows
    }


def by_samples() -> dict[int, Row]:
    return with_results(*samples_part())


def samples_rows() -> dict[str, Row]:
    """What claims are about, by m."""
    results, labels = samples_part()
    return {
        str(m): results.claimed[label] for m, label in labels.items() if label in results.claimed
    }


def rank_rows() -> dict[str, Row]:
    """What claims are about, by examples per class and rank."""
    rows = {}
    for size, (results, labels) in rank_parts().items():
        for k, label in labels.items():
            if label in results.claimed:
                rows[f"{size}/{k}"] = results.claimed[label]
    return rows


def ends() -> list[str]:
    """Rank 1 against 40, which the figure suggests and nobody had asked."""
    rows, lines = rank_rows(), []
    for size in (50, 1000):
        if f"{size}/1" in rows and f"{size}/40" in rows:
            difference = rows[f"{size}/1"].minus(rows[f"{size}/40"])
            if difference is not None:
                lines.append([f"{size:,}", *difference_cells(difference)])
    head = ["examples per class", "rank 1 minus rank 40, points", "95 %", "n", "p"]
    return [ENDS, table(head, lines)] if lines else []


def samples() -> str:
    results, labels = samples_part()
    _, verdict, figures = spread_falls(with_results(results, labels))
    lines = [[str(m), *cells(results, labels.get(m, ""))] for m in (5, 10, 25, 50, 100)]
    return "\n\n".join(
        [
            "## Figure 2, left: examples that build the basis",
            SAMPLES,
            table(["m", "ours", "std", "95 %", "n"], lines),
            claim_table(SAMPLES_CLAIMS, samples_rows()),
            f"{SPREAD.capitalize()}: {verdict}{f' ({figures})' if figures else ''}.",
            *shown("samples"),
        ]
    )


def rank() -> str:
    parts = rank_parts().values()
    lines = [
        [str(k), *(cell for results, labels in parts for cell in cells(results, labels.get(k, "")))]
        for k in (1, 5, 10, 20, 40)
    ]
    head = ["rank", "50 per class", "std", "95 %", "n", "1,000 per class", "std", "95 %", "n"]
    return "\n\n".join(
        [
            "## Figure 2, right: the rank of the basis",
            RANK,
            table(head, lines),
            claim_table(RANK_CLAIMS, rank_rows()),
            *ends(),
            *shown("rank"),
        ]
    )
