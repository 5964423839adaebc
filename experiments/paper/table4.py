"""Table 4, which basis is best, and Figure 3, how much of a gradient lies in it: from the same
runs.
"""

from __future__ import annotations

from statistics import fmean

from . import printed
from .claims import Claim, claim_table
from .plots import shown
from .rows import Key, Part, Row, part
from .tables import against_paper, summary_cells, table

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
BASES_WITH_SHARES = tuple(basis for basis in printed.TABLE4 if basis != "canonical")
"""Bases for which a share is worth a figure: `canonical` holds all of every gradient."""
TABLE4_CLAIMS = []
for _basis in ("canonical", "random", "mean"):
    _points = round(62.2 - printed.TABLE4[_basis][1], 1)
    TABLE4_CLAIMS.append(Claim(f"`sketch` beats `{_basis}`", "sketch", _basis, _points))
for _basis in ("svd", "exact", "sketch, mean included"):
    TABLE4_CLAIMS.append(Claim(f"`{_basis}` beats `sketch`", _basis, "sketch"))
FIGURE3_CLAIMS = []
for _side in SIDES:
    for _basis in ("random", "mean"):
        _text = f"`sketch` holds more of the {_side} gradient than `{_basis}`"
        FIGURE3_CLAIMS.append(Claim(_text, f"sketch/{_side}", f"{_basis}/{_side}"))


def everything() -> Part:
    """Both parts together: they have the same search."""
    return part("table4-bases", "table4-bases", also=["table4-bases-exact"])


def labels(basis: str) -> list[str]:
    """Return the labels of a basis's two rows."""
    ending = f"-basis={basis}"
    if basis == "sketch":
        ending = ""
    if basis == "sketch, mean included":
        ending = "-include_mean=True"
    return [
        f"drop_harmful-primary_weight=0.01{ending}",
        f"flip-primary_weight=0.01{ending}",
    ]


def best_rows() -> dict[str, Row]:
    """By basis, as in the paper: of the two Etas the one that is better on validation."""
    results = everything()
    return {basis: results.better(*labels(basis)) for basis in printed.TABLE4}


def section() -> str:
    best = best_rows()
    lines = []
    for basis, (name, mean, half) in printed.TABLE4.items():
        ours = best[basis].summary
        theirs = ""
        agrees = ""
        if mean is not None:
            theirs = f"{mean} ± {half}"
            agrees = against_paper(ours, mean, half)
        eta = "(1, 1, −1)" if best[basis].label.startswith("flip") else "(1, 1, 0)"
        lines.append([f"`{basis}`", name, theirs, *summary_cells(ours), agrees, eta])
    head = ["basis", "in the paper", "paper", "ours", "std", "95 %", "n", "intervals", "Eta"]
    claims = claim_table(TABLE4_CLAIMS, best)
    return "\n\n".join(["## Table 4, bases", TABLE4, table(head, lines), claims])


def shares() -> dict[str, Row]:
    """Captured shares instead of accuracies, by basis and side; for each seed the mean over its
    runs.
    """
    rows = everything().rows
    share_rows = {}
    for basis in BASES_WITH_SHARES:
        for side in SIDES:
            values: dict[Key, list[float]] = {}
            for label in labels(basis):
                for seed, line in rows[label].runs.items():
                    values.setdefault(seed, []).append(fmean(line["curves"][f"captured_{side}"]))
            share_row = Row(basis, "")
            for seed, some in values.items():
                result = {"metric": "share", "test": {"share": fmean(some)}}
                share_row.runs[seed] = {"result": result}
            share_rows[f"{basis}/{side}"] = share_row
    return share_rows


def captured() -> str:
    """Return the section about Figure 3: a table with a line for each basis, the paper's claims and
    the figure.
    """
    results = everything()
    share_rows = shares()
    lines = []
    for basis in BASES_WITH_SHARES:
        runs = sum(len(results.rows[label].runs) for label in labels(basis))
        cells = [f"{100 * share_rows[f'{basis}/{side}'].summary.mean:.2f}" for side in SIDES]
        lines.append([f"`{basis}`", *cells, str(runs)])
    sections = [
        "## Figure 3: how much of a gradient lies in the basis",
        CAPTURED,
        table(["basis", "auxiliary", "primary", "runs"], lines),
        claim_table(FIGURE3_CLAIMS, share_rows),
        shown("captured"),
    ]
    return "\n\n".join(sections)
