"""What the paper says about its numbers, and whether ours bear it out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev

from attittud_lab.statistics import ALPHA, FEWEST, ROUNDING, Difference, Summary, holm

from .rows import Row

MISSING = "not run yet"
DIVERGED = "diverged"


@dataclass(frozen=True)
class Claim:
    """`first` is better than `second`; `points` is the paper's difference, where it prints one.

    With `flat` the claim is that they do not differ.
    """

    text: str
    first: str
    second: str
    points: float | None = None
    flat: bool = False


def judged(
    claims: Sequence[Claim], rows: Mapping[str, Row]
) -> list[tuple[Claim, Difference | None, str]]:
    """Every claim with our paired difference and its outcome; p-values are Holm-corrected over the
    claims that were tested.
    """
    differences = [
        rows[c.first].minus(rows[c.second]) if c.first in rows and c.second in rows else None
        for c in claims
    ]
    adjusted = iter(holm([difference.p for difference in differences if difference is not None]))
    corrected = [
        None if d is None else Difference(**(vars(d) | {"p": next(adjusted)})) for d in differences
    ]
    return [
        (claim, d, DIVERGED if d is None and _lost(claim, rows) else verdict(d, flat=claim.flat))
        for claim, d in zip(claims, corrected, strict=True)
    ]


def _lost(claim: Claim, rows: Mapping[str, Row]) -> bool:
    """Whether there is nothing to wait for: a row has no run at all, or both were run with seeds of
    which too few are left.
    """
    pair = [rows[name] for name in (claim.first, claim.second) if name in rows]
    if len(pair) == 2:
        common = set.intersection(*({*row.runs, *row.diverged} for row in pair))
    else:
        common = ()
    return any(not row.runs for row in pair) or len(common) >= FEWEST


def verdict(difference: Difference | None, *, flat: bool = False) -> str:
    if difference is None:
        return MISSING
    if difference.p >= ALPHA:
        return "not significant, as the paper has it" if flat else "not significant"
    if flat:
        return "does not hold: the difference is significant"
    return "holds" if difference.mean > 0 else "does not hold: the opposite is significant"


def spread_falls(rows: Mapping[int, Row]) -> tuple[int, str, str]:
    """Whether the standard deviation over seeds is smaller in the last row than in the first:
    seeds, verdict, figures.

    Both rows have the same seeds, so the test is Pitman and Morgan's for paired values: where two
    variances are equal, sum and difference are uncorrelated.
    """
    if len(rows) < 2:
        return 0, MISSING, ""
    (at, first), *_, (end, last) = ((m, row.test) for m, row in rows.items())
    seeds = [seed for seed in first if seed in last]
    if len(seeds) < 3:
        return len(seeds), MISSING, ""
    a, b = ([values[seed] for seed in seeds] for values in (first, last))
    sums = [x + y for x, y in zip(a, b, strict=True)]
    differences = [x - y for x, y in zip(a, b, strict=True)]
    p = 1.0  # of values that are all the same, or differ by the same
    if min(stdev(sums), stdev(differences)) > ROUNDING:
        from scipy.stats import pearsonr

        p = float(pearsonr(sums, differences)[1])
    verdict = "not significant"
    if p < ALPHA:
        verdict = "holds" if stdev(b) < stdev(a) else "does not hold: the opposite is significant"
    figures = f"std {100 * stdev(a):.1f} at {at}, {100 * stdev(b):.1f} at {end}"
    return (
        len(seeds),
        verdict,
        f"{figures}; Pitman-Morgan test over {len(seeds)} common seeds, p = {p:.3f}",
    )


def against_paper(ours: Summary, mean: float, half: float) -> str:
    """Whether the two 95 % intervals overlap."""
    if ours.n < FEWEST:
        return "one seed" if ours.n == 1 else f"{ours.n} seeds"
    if 100 * ours.low > mean + half:
        return "above"
    return "below" if 100 * ours.high < mean - half else "agrees"


Judgement = tuple[Claim, Difference | None, str]


def against_multitask(
    judgements: Iterable[Judgement], ours: Collection[str]
) -> tuple[list[float], int, int]:
    """How many points our rows are better than multitask, and how many of them are significantly
    better, and worse.
    """
    compared = [
        (100 * difference.mean, verdict)
        for claim, difference, verdict in judgements
        if claim.first in ours and claim.second == "multitask" and difference is not None
    ]
    better = sum(verdict.startswith("holds") for _, verdict in compared)
    worse = sum(verdict.startswith("does not hold") for _, verdict in compared)
    return [points for points, _ in compared], better, worse


def leads(judgements: Iterable[Judgement], ours: Collection[str]) -> tuple[list[float], int]:
    """The points by which our rows lead others in the paper, and how many of these leads lie above
    our intervals.
    """
    points = []
    outside = 0
    for claim, difference, _ in judgements:
        if claim.first in ours and claim.points is not None and difference is not None:
            points.append(claim.points)
            outside += 100 * difference.high < claim.points
    return points, outside


def so_many(count: int) -> str:
    """A number of rows as the subject of a sentence, with its verb."""
    return f"{count or 'none'} {'is' if count < 2 else 'are'}"


def claim_table(claims: Sequence[Claim], rows: Mapping[str, Row]) -> str:
    lines = []
    for claim, difference, verdict in judged(claims, rows):
        paper = "" if claim.points is None else f"{claim.points:+.1f}"
        lines.append([claim.text, paper, *difference_cells(difference), verdict])
    return table(["claim", "paper", "ours, points", "95 %", "n", "p", "outcome"], lines)


def difference_cells(difference: Difference | None) -> list[str]:
    if difference is None:
        return ["", "", "", ""]
    interval = f"{100 * difference.low:+.1f} to {100 * difference.high:+.1f}"
    return [
        f"{100 * difference.mean:+.1f}",
        interval,
        str(difference.n),
        "< 0.001" if difference.p < 0.001 else f"{difference.p:.3f}",
    ]


def summary_cells(summary: Summary | None) -> list[str]:
    """Mean, standard deviation, 95 % t-interval and n."""
    if summary is None:
        return [MISSING, "", "", "0"]
    if summary.n < FEWEST:
        return [f"{100 * summary.mean:.1f}", "", "", str(summary.n)]
    return [
        f"{100 * summary.mean:.1f}",
        f"{100 * summary.std:.1f}",
        f"{100 * summary.low:.1f} to {100 * summary.high:.1f}",
        str(summary.n),
    ]


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *rows])
