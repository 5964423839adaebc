"""Tables that every study has: our rows with the paper's, rows beyond the paper, and the search."""

from __future__ import annotations

from collections.abc import Mapping

from attittud_lab.statistics import FEWEST, summarise

from .claims import DIVERGED, MISSING, against_paper, summary_cells, table
from .rows import Part, Row

Printed = tuple[str, float, float]
"""A row's name in the paper, its mean and the half-width of its interval."""


def beside_paper(results: Part, printed: Mapping[str, Printed], *, same_data: bool = True) -> str:
    """Rows by label, ours with the paper's; on other data than the paper's there is nothing for
    intervals to agree about.
    """
    met = ["intervals"] if same_data else []
    lines = []
    for label, (name, mean, half) in printed.items():
        row = results.rows.get(label)
        ours = row.summary if row else None
        agrees = [against_paper(ours, mean, half) if ours else ""] if same_data else []
        lines.append(
            [name, f"{mean} ± {half}", *cells(results, label), *agrees, settings(results, label)]
        )
    return table(
        ["row", "paper", "ours", "std", "95 %", "n", *met, "settings chosen on validation"], lines
    )


def beyond_paper(results: Part, names: Mapping[str, str]) -> str:
    """Rows by label, with what to call them."""
    lines = []
    for label, name in names.items():
        lines.append([name, *cells(results, label), settings(results, label)])
    return table(["row", "ours", "std", "95 %", "n", "settings chosen on validation"], lines)


def cells(results: Part, label: str) -> list[str]:
    if label in results.rows:
        return summary_cells(results.rows[label].summary)
    return [missing(results, label), "", "", "0"]


def missing(results: Part, *labels: str) -> str:
    """Why none of them has a result."""
    return DIVERGED if all(results.searched(label) for label in labels) else MISSING


def settings(results: Part, label: str) -> str:
    """What the search chose, or how far it is."""
    if label in results.rows:
        row = results.rows[label]
        lost = ", ".join(str(seed) for seed in sorted(row.diverged))
        return row.settings + (f"; diverged with seed {lost}" if lost else "")
    if results.searched(label):
        return "diverged with every setting"
    tried = len(results.tried.get(label, []))
    return f"search not finished, {tried} tried" if tried else ""


def searched(results: Part) -> str:
    """Show every try of every label, by its mean on validation over the seeds of the search."""
    lines = [
        [
            label,
            row.settings,
            f"{100 * row.validation(results.tuning)[0]:.1f}"
            if row.whole(results.tuning)
            else DIVERGED,
            "chosen"
            if label in results.rows and results.rows[label].changes == row.changes
            else "",
        ]
        for label, rows in results.tried.items()
        for row in rows
        if row.over(results.tuning)
    ]
    if lines:
        return table(["strategy", "settings", "validation", ""], lines)
    return f"The search: {MISSING}."


def summarise_figures(row: Row, name: str) -> str:
    """Mean and half of the 95 % interval over seeds of another figure than the metric."""
    summary = summarise(list(row.figures(name).values()))
    return f"{100 * summary.mean:.1f}" + (
        f" ± {100 * (summary.high - summary.mean):.1f}" if summary.n >= FEWEST else ""
    )
