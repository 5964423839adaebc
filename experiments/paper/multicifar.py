"""Table 2, MultiCifar100: the paper's rows and two beyond it, paired over the 20 superclasses."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from scipy.stats import binom

from attittud_lab.config.load import load
from attittud_lab.statistics import ALPHA
from experiments.reproduce.experiments import SEARCHED
from experiments.reproduce.results import Line, read_lines

from . import printed
from .claims import Claim, against_multitask, claim_table, judged, leads, so_many
from .plots import shown
from .rows import CONFIGS, HERE, RESULTS, Part, Row, minutes, searched_part, seed_of, tries
from .tables import CHOSEN_SETTINGS, searched, settings, summary_cells, table

NAME = "table2-multicifar100"
SUPERCLASSES = 20
WIDTH = 128
FLIP = "flip-primary_weight=0.1"
JOINT = ("pcgrad", "multitask", FLIP)
"""Rows of the paper that use both kinds of data at once; the other two are far below in its
table.
"""
MORE = {
    "orthogonal-primary_weight=0.1": "ATTITTUD (1, 0, 0), primary_weight 0.1",
    "drop_harmful-primary_weight=0.1": "ATTITTUD (1, 1, 0), primary_weight 0.1",
}
NAMES = printed.names(printed.MULTICIFAR) | MORE
SHORT = NAMES | {
    FLIP: "ATTITTUD (1, 1, −1)",
    "orthogonal-primary_weight=0.1": "ATTITTUD (1, 0, 0)",
    "drop_harmful-primary_weight=0.1": "ATTITTUD (1, 1, 0)",
}
"""What figures and claims call the rows."""
ABOUT = """\
Each of CIFAR-100's superclasses in turn is the primary task; the other 95 classes are auxiliary data. The settings of every row
were searched on four superclasses, by validation. Mean, std and interval are over superclasses, and claims compare rows
superclass by superclass. The interval of a row is wide because superclasses differ. The paper's mean is over the same 20
superclasses, so the interval does not say whether the two means agree. *Best of 5* counts the superclasses on which a row has
the highest test accuracy of the paper's five rows; *of 7* counts the same among all seven rows. Rows with equal accuracy share a
superclass. If all rows were equal, each would be best on {five:.1f} superclasses among 5 rows and on {seven:.1f} among 7."""
COMMAND = f"`python -m experiments.reproduce {NAME} --data FOLDER --seeds 1`"
ONE_SEED = f"""\
One seed was run; the remaining minutes went to the portfolio below and to other measurements. {COMMAND} finds all of
these runs. Without `--seeds 1` the same command adds the second seed."""
DRAWS = """\
Every row chose the first draw. The draws do not separate `primary_weight` from the rates: a `primary_weight` of 1 was tried only
together with lr 3e-4, dropout 0.3 and fine-tuning lr 5e-4, which are worse in every row."""
GAPS = """\
Our mean is {none:.1f} points above the paper's without pre-training, and {pretrain:.1f} above it with vanilla pre-training. These
are the largest gaps of the table; we did not examine their cause."""
CLAIMS = [
    Claim("vanilla pre-training beats none", "pretrain", "primary_only", 12.6),
    Claim("multitask beats vanilla pre-training", "multitask", "pretrain", 5.3),
    Claim("PCGrad beats vanilla pre-training", "pcgrad", "pretrain", 5.4),
    Claim("ATTITTUD (1, 1, −1) beats vanilla pre-training", FLIP, "pretrain", 5.9),
    Claim("ATTITTUD (1, 1, −1) beats PCGrad", FLIP, "pcgrad", 0.5),
    Claim("ATTITTUD (1, 1, −1) beats multitask", FLIP, "multitask", 0.6),
    Claim("ATTITTUD (1, 0, 0) beats multitask", "orthogonal-primary_weight=0.1", "multitask"),
    Claim("ATTITTUD (1, 1, 0) beats multitask", "drop_harmful-primary_weight=0.1", "multitask"),
]
DECLARED = (
    "The assumption that the protocol declares, that the other two rows are never best, is not true"
)
BEST = "ATTITTUD (1, 1, −1) is best on more superclasses than chance gives"

PORTFOLIO = HERE / "paper" / "multicifar100-portfolio.md"
"""A record of the portfolio of an earlier revision, which the section on it names. Its runs are in
`experiments/results`, so that the page counts their minutes.
"""


def lines() -> list[Line]:
    return read_lines(RESULTS / f"{NAME}.jsonl")


def column() -> Part:
    """Return rows whose runs are kept by superclass, with the first seed alone."""
    config = load(CONFIGS / f"{NAME}.yaml", ["data.primary.classes=null"])  # each part has its own
    first_seed = [line for line in lines() if seed_of(line) == config.seed]
    tried = tries(first_seed, lambda line: line["part"])
    return searched_part(NAME, config, tried, SEARCHED)


def papers_rows(results: Part) -> list[Row]:
    """The five rows that the paper has too."""
    return [results.rows[label] for label in printed.MULTICIFAR]


def best_counts(rows: Sequence[Row]) -> dict[str, float]:
    """Return on how many superclasses each row is best. Equal rows share a superclass."""
    counts = dict.fromkeys([row.label for row in rows], 0.0)
    for name in rows[0].test:
        top = max(row.test[name] for row in rows)
        winners = [row.label for row in rows if row.test[name] == top]
        for label in winners:
            counts[label] += 1 / len(winners)
    return counts


def chance(count: float, rows: int) -> float:
    """Return the probability that one of so many equal rows is best on at least so many
    superclasses.
    """
    return float(binom.sf(int(count) - 1, SUPERCLASSES, 1 / rows))


def chances(results: Part) -> list[str]:
    """Return what chance gives the paper's row where three rows are equal, as declared, and where
    all five are.

    A shared superclass makes a count that no chance gives: the numbers below and above it each have
    a column.
    """
    counts = best_counts(papers_rows(results))
    low = math.floor(counts[FLIP])
    either = sorted({low, math.ceil(counts[FLIP])})
    lines = []
    for about, rows in (
        ("it, PCGrad and multitask are equal, the others never best (declared)", len(JOINT)),
        ("all five rows are equal", len(printed.MULTICIFAR)),
    ):
        cells = [about, f"{SUPERCLASSES / rows:.1f}", f"{chance(low, rows):.3f}"]
        for most in either:
            cells.append(f"{binom.cdf(most, SUPERCLASSES, 1 / rows):.3f}")
        lines.append(cells)
    head = ["if", "chance gives", f"P(at least {low})", *(f"P(at most {n})" for n in either)]
    paragraphs = [table(head, lines)]
    others = []
    for label, count in counts.items():
        if label not in JOINT and count:
            others.append(f"{NAMES[label]} is best on {count:g} superclasses")
    if others:
        paragraphs.append(f"{DECLARED}: {', '.join(others)}.")
    return paragraphs


def best_outcome(results: Part) -> tuple[str, str]:
    """Return outcome and figures of the paper's claim that its row is best on 11 of 20."""
    count = best_counts(papers_rows(results))[FLIP]
    figures = f"on {count:g} of {SUPERCLASSES}, in the paper on {printed.MULTICIFAR_BEST}"
    if chance(count, len(JOINT)) < ALPHA:
        return "holds", figures
    return "not significant", figures


def summed_up(results: Part) -> list[str]:
    """Return what the claims say together, for those who read no table."""
    judgements = judged(CLAIMS, results.rows)
    differences, better, worse = against_multitask(judgements, (FLIP, *MORE))
    points, outside = leads(judgements, [FLIP])
    means = []
    for label, (_, paper) in printed.MULTICIFAR.items():
        ours = results.rows[label].summary
        means.append([SHORT[label], f"{100 * ours.mean:.1f}", str(paper)])
    name = f"mean on MultiCifar100, % over {SUPERCLASSES} superclasses"
    text = (
        f"* On MultiCifar100, we compare {len(differences)} rows of ATTITTUD with multitask: "
        f"{so_many(better)} significantly better and {so_many(worse)} significantly worse. The "
        "paper's leads of (1, 1, −1) over vanilla pre-training, PCGrad and multitask are above our "
        f"95 % interval in {outside} of {len(points)} comparisons."
    )
    wrapped = textwrap.fill(text, WIDTH, subsequent_indent="  ")
    return [wrapped, "", table([name, "ours", "paper"], means)]


def gap(results: Part, label: str) -> float:
    """Return how many points a row is above the paper's."""
    return 100 * results.rows[label].summary.mean - printed.MULTICIFAR[label][1]


def section() -> str:
    results = column()
    outcome, figures = best_outcome(results)
    of_five = best_counts(papers_rows(results))
    of_seven = best_counts([results.rows[label] for label in NAMES])
    lines_of_rows = []
    for label, name in NAMES.items():
        row = results.rows[label]
        paper = ["", ""]
        if label in printed.MULTICIFAR:
            paper = [str(printed.MULTICIFAR[label][1]), f"{of_five[label]:.3g}"]
        counts = [paper[1], f"{of_seven[label]:.3g}"]
        lines_of_rows.append([name, paper[0], *summary_cells(row.summary), *counts, settings(row)])
    head = ["row", "paper", "ours", "std", "95 %", "n", "best of 5", "of 7", CHOSEN_SETTINGS]
    figure = "Test accuracy of seven rows on 20 superclasses, and their differences from multitask"
    none = gap(results, "primary_only")
    sections = [
        "## Table 2, MultiCifar100",
        ABOUT.format(five=SUPERCLASSES / len(printed.MULTICIFAR), seven=SUPERCLASSES / len(NAMES)),
        shown("multicifar100", figure),
        table(head, lines_of_rows),
        GAPS.format(none=none, pretrain=gap(results, "pretrain")),
        claim_table(CLAIMS, results.rows),
        f"{BEST}: {outcome} ({figures}).",
        *chances(results),
        textwrap.fill(f"{cost()} {ONE_SEED}", WIDTH, break_on_hyphens=False),
        "### What the search on four superclasses saw",
        f"Mean accuracy on the validation images of {', '.join(SEARCHED)}. Each row chose its best; the loss broke ties.",
        searched(results),
        DRAWS,
        PORTFOLIO.read_text(encoding="utf-8").rstrip(),
    ]
    return "\n\n".join(sections)


def cost() -> str:
    runs = lines()
    return f"All {len(runs)} runs took {minutes(runs):.0f} minutes on the device; runs that shared it count with their shares."
