"""Table 4, which basis is best, and Figure 3, how much of a gradient lies in it: from the same
runs.
"""

from __future__ import annotations

from statistics import fmean

from . import printed
from .claims import DIVERGED, Claim, against_paper, claim_table, summary_cells, table
from .plots import shown
from .rows import Part, Row, part
from .tables import missing

TABLE4 = """\
Every basis was run with (1, 1, 0) and (1, 1, −1); the better one on validation counts. A random subspace of five dimensions holds
next to nothing of a gradient (Figure 3). So the row of `random` is practically multitask with `primary_weight` 0.01."""
CAPTURED = """\
The table shows how much of the auxiliary gradient and of the step's primary gradient lies inside the span: the share of the
squared norm in per cent, as a mean over the guided phase of the runs of Table 4. (The paper shows the fraction of the norm;
this is its square.) The primary gradient has 50 examples, drawn independently of the 64 that built the basis, all from the same
100. So about two thirds of the 50 helped to build the basis. The paper finds large shares for its randomized SVD and small
shares for `random` and `mean`. By definition `canonical` holds all of both gradients, and a basis with the mean included holds
all of the primary gradient. Claims are about each seed's mean."""

SIDES = ("auxiliary", "primary")
"""The gradients whose captured shares are shown."""
TABLE4_CLAIMS = [
    *(
        Claim(f"`sketch` beats `{b}`", "sketch", b, round(62.2 - printed.TABLE4[b][1], 1))
        for b in ("canonical", "random", "mean")
    ),
    *(
        Claim(f"`{b}` beats `sketch`", b, "sketch")
        for b in ("svd", "exact", "sketch, mean included")
    ),
]
FIGURE3_CLAIMS = [
    Claim(f"`sketch` holds more of the {side} gradient than `{b}`", f"sketch/{side}", f"{b}/{side}")
    for side in SIDES
    for b in ("random", "mean")
]


def everything() -> Part:
    """Both parts together: they have the same search."""
    return part("table4-bases", "table4-bases", also=["table4-bases-exact"])


def labels(basis: str) -> list[str]:
    """Return the labels of a basis's two rows."""
    names = ["drop_harmful-primary_weight=0.01", "flip-primary_weight=0.01"]
    if basis == "sketch":
        return names
    if "," in basis:
        return [f"{name}-include_mean=True" for name in names]
    return [f"{name}-basis={basis}" for name in names]


def best_rows() -> dict[str, Row]:
    """By basis, as in the paper: of the two Etas the one that is better on validation, over the
    seeds that both have.

    Where both diverged, a row without a run.
    """
    results = everything()
    best = {basis: results.best(labels(basis)) for basis in printed.TABLE4}
    lost = {
        basis: Row(basis, "")
        for basis in printed.TABLE4
        if missing(results, *labels(basis)) == DIVERGED
    }
    return lost | {basis: row for basis, row in best.items() if row is not None}


def table4() -> str:
    lines, results, best = [], everything(), best_rows()
    for basis, (name, mean, half) in printed.TABLE4.items():
        chosen = best[basis] if basis in best and best[basis].runs else None
        ours = chosen.summary if chosen else None
        met = against_paper(ours, mean, half) if ours and mean is not None else ""
        eta = ""
        if chosen is not None:
            eta = "(1, 1, −1)" if chosen.label.startswith("flip") else "(1, 1, 0)"
        cells = summary_cells(ours) if ours else [missing(results, *labels(basis)), "", "", "0"]
        lines.append(
            [f"`{basis}`", name, "" if mean is None else f"{mean} ± {half}", *cells, met, eta]
        )
    return "\n\n".join(
        [
            "## Table 4, bases",
            TABLE4,
            table(
                ["basis", "in the paper", "paper", "ours", "std", "95 %", "n", "intervals", "Eta"],
                lines,
            ),
            claim_table(TABLE4_CLAIMS, best),
        ]
    )


def shares() -> dict[str, Row]:
    """Captured shares instead of accuracies, by basis and side; for each seed the mean over its
    runs.

    Of a basis with which all diverged, rows without a run.
    """
    every, share_rows = everything(), dict[str, Row]()
    rows = every.rows
    for basis in printed.TABLE4:
        if basis == "canonical":
            continue  # all of every gradient, by definition
        for side in SIDES:
            values: dict[int, list[float]] = {}
            for label in labels(basis):
                for seed, line in rows[label].runs.items() if label in rows else ():
                    values.setdefault(seed, []).append(fmean(line["curves"][f"captured_{side}"]))
            runs = {
                seed: {"result": {"metric": "share", "test": {"share": fmean(some)}}}
                for seed, some in values.items()
            }
            if runs or missing(every, *labels(basis)) == DIVERGED:
                share_rows[f"{basis}/{side}"] = Row(basis, "", runs)
    return share_rows


def captured() -> str:
    """Return the section about Figure 3: a table with a line for each basis, the paper's claims and
    the figure.
    """
    results = everything()
    share_rows = shares()
    lines = []
    for basis in printed.TABLE4:
        if basis == "canonical":
            continue  # all of every gradient, by definition
        rows = [results.rows[label] for label in labels(basis) if label in results.rows]
        runs = sum(len(row.runs) for row in rows)
        cells = [missing(results, *labels(basis)), ""]
        if runs:
            cells = [_mean_share(share_rows.get(f"{basis}/{side}")) for side in SIDES]
        lines.append([f"`{basis}`", *cells, str(runs)])
    return "\n\n".join(
        [
            "## Figure 3: how much of a gradient lies in the basis",
            CAPTURED,
            table(["basis", "auxiliary", "primary", "runs"], lines),
            claim_table(FIGURE3_CLAIMS, share_rows),
            *shown("captured"),
        ]
    )


def _mean_share(row: Row | None) -> str:
    """Return the mean of a row in per cent; empty if it has no run."""
    if row is None or not row.runs:
        return ""
    return f"{100 * row.summary.mean:.2f}"
