"""What the paper says about its numbers, and whether ours bear it out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev

from attittud.recipes.statistics import ALPHA, Difference, Summary, holm

from .rows import Row

MISSING = "not run yet"


@dataclass(frozen=True)
class Claim:
    """`first` is better than `second`; `points` is the paper's difference, where it prints one."""

    text: str
    first: str
    second: str
    points: float | None = None


def judged(claims: Sequence[Claim], rows: Mapping[str, Row]) -> list[tuple[Claim, Difference | None, str]]:
    """Every claim with our paired difference and a verdict; p-values are Holm-corrected over the claims that were tested."""
    found = [rows[c.first].minus(rows[c.second]) if c.first in rows and c.second in rows else None for c in claims]
    adjusted = iter(holm([difference.p for difference in found if difference is not None]))
    corrected = [None if d is None else Difference(**(vars(d) | {"p": next(adjusted)})) for d in found]
    return [(claim, d, verdict(d)) for claim, d in zip(claims, corrected, strict=True)]


def verdict(difference: Difference | None) -> str:
    if difference is None:
        return MISSING
    if difference.p >= ALPHA:
        return "not significant"
    return "holds" if difference.mean > 0 else "does not hold: the opposite is significant"


def spread_falls(rows: Mapping[int, Row]) -> str:
    """Whether the standard deviation over seeds is smaller in the last row than in the first, and that is no accident."""
    values = [list(row.test.values()) for row in rows.values()]
    if len(values) < 2 or min(len(some) for some in values) < 3:
        return MISSING
    from scipy.stats import levene

    p = float(levene(*values, center="median").pvalue)
    first, last = values[0], values[-1]
    said = "not significant" if not p < ALPHA else "holds" if stdev(last) < stdev(first) else "does not hold"
    return (
        f"{said} (std {100 * stdev(first):.1f} to {100 * stdev(last):.1f}; Brown-Forsythe test over all, p = {p:.3f})"
    )


def against_paper(ours: Summary, mean: float, half: float) -> str:
    """Whether the two 95 % intervals meet."""
    if ours.n < 2:
        return "one seed"
    if 100 * ours.low > mean + half:
        return "above"
    return "below" if 100 * ours.high < mean - half else "agrees"


def claim_table(claims: Sequence[Claim], rows: Mapping[str, Row]) -> str:
    lines = ["| claim | paper | ours, points | 95 % | n | p | verdict |", "|---|---|---|---|---|---|---|"]
    for claim, found, said in judged(claims, rows):
        paper = "" if claim.points is None else f"{claim.points:+.1f}"
        lines.append(f"| {claim.text} | {paper} | {' | '.join(difference_cells(found))} | {said} |")
    return "\n".join(lines)


def difference_cells(found: Difference | None) -> list[str]:
    if found is None:
        return ["", "", "", ""]
    interval = f"{100 * found.low:+.1f} to {100 * found.high:+.1f}"
    return [f"{100 * found.mean:+.1f}", interval, str(found.n), "< 0.001" if found.p < 0.001 else f"{found.p:.3f}"]


def summary_cells(found: Summary | None) -> list[str]:
    """Mean, standard deviation, 95 % t-interval and n."""
    if found is None:
        return [MISSING, "", "", "0"]
    if found.n < 2:
        return [f"{100 * found.mean:.1f}", "", "", "1"]
    return [
        f"{100 * found.mean:.1f}",
        f"{100 * found.std:.1f}",
        f"{100 * found.low:.1f} to {100 * found.high:.1f}",
        str(found.n),
    ]


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *rows])
