"""Markdown tables of the page, and the cells that all of its sections share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attittud_lab.statistics import FEWEST, Difference, Summary, summarise

from .rows import Part, Row

Printed = tuple[str, float, float]
"""A row's name in the paper, its mean and the half-width of its interval, both in per cent."""
CHOSEN_SETTINGS = "settings chosen on validation"


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for line in lines:
        rows.append(f"| {' | '.join(line)} |")
    return "\n".join(rows)


def summary_cells(summary: Summary) -> list[str]:
    """Mean, standard deviation, 95 % t-interval and n. Few seeds have no interval."""
    mean = f"{100 * summary.mean:.1f}"
    if summary.n < FEWEST:
        return [mean, "", "", str(summary.n)]
    ends = f"{100 * summary.low:.1f} to {100 * summary.high:.1f}"
    return [mean, f"{100 * summary.std:.1f}", ends, str(summary.n)]


def difference_cells(difference: Difference) -> list[str]:
    """Mean in points, its 95 % interval, n and the p-value."""
    ends = f"{100 * difference.low:+.1f} to {100 * difference.high:+.1f}"
    p = "< 0.001" if difference.p < 0.001 else f"{difference.p:.3f}"
    return [f"{100 * difference.mean:+.1f}", ends, str(difference.n), p]


def against_paper(ours: Summary, mean: float, half: float) -> str:
    """Whether our 95 % interval and the paper's, `mean` ± `half` in per cent, overlap."""
    if ours.n < FEWEST:
        return f"{ours.n} of {FEWEST} seeds"
    if 100 * ours.low > mean + half:
        return "above"
    if 100 * ours.high < mean - half:
        return "below"
    return "agrees"


def beside_paper(results: Part, printed: Mapping[str, Printed], *, same_data: bool = True) -> str:
    """Rows by label, ours with the paper's. On other data than the paper's there is nothing for
    intervals to agree about.
    """
    head = ["row", "paper", "ours", "std", "95 %", "n"]
    if same_data:
        head.append("intervals")
    lines = []
    for label, (name, mean, half) in printed.items():
        row = results.rows[label]
        line = [name, f"{mean} ± {half}", *summary_cells(row.summary)]
        if same_data:
            line.append(against_paper(row.summary, mean, half))
        lines.append([*line, settings(row)])
    return table([*head, CHOSEN_SETTINGS], lines)


def beyond_paper(results: Part, names: Mapping[str, str]) -> str:
    """Rows by label, with what to call them."""
    lines = []
    for label, name in names.items():
        row = results.rows[label]
        lines.append([name, *summary_cells(row.summary), settings(row)])
    return table(["row", "ours", "std", "95 %", "n", CHOSEN_SETTINGS], lines)


def settings(row: Row) -> str:
    """What the search chose, and the seeds without a result."""
    if not row.diverged:
        return row.settings
    return f"{row.settings}; diverged with seed {', '.join(map(str, sorted(row.diverged)))}"


def searched(results: Part) -> str:
    """Show every try of every label, by its mean on validation over the seeds of the search."""
    lines = []
    for label, rows in results.tried.items():
        for row in rows:
            figure = "diverged"
            if row.has(results.tuning):
                figure = f"{100 * row.validation(results.tuning)[0]:.1f}"
            mark = "chosen" if row.changes == results.rows[label].changes else ""
            lines.append([label, row.settings, figure, mark])
    return table(["strategy", "settings", "validation", ""], lines)


def figure_cell(row: Row, name: str) -> str:
    """Mean and half of the 95 % interval over seeds of another figure than the metric."""
    summary = summarise(list(row.figures(name).values()))
    mean = f"{100 * summary.mean:.1f}"
    if summary.n < FEWEST:
        return mean
    return f"{mean} ± {100 * (summary.high - summary.mean):.1f}"
