"""Table 2, MultiCifar100: the paper's rows and two beyond it, paired over the 20 superclasses."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from attittud_lab.config.load import load
from attittud_lab.statistics import ALPHA
from experiments.reproduce.experiments import SEARCHED
from experiments.reproduce.results import Line, read_lines

from . import printed
from . import rows as reader
from .claims import (
    MISSING,
    Claim,
    against_multitask,
    claim_table,
    judged,
    leads,
    so_many,
    table,
)
from .plots import shown
from .rows import CONFIGS, Key, Part, Row, minutes, seed_of, tries
from .tables import cells, searched, settings

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
NAMES = {label: name for label, (name, _) in printed.MULTICIFAR.items()} | MORE
SHORT = (
    NAMES
    | {FLIP: "ATTITTUD (1, 1, −1)"}
    | {label: name.partition(", primary")[0] for label, name in MORE.items()}
)
"""What figures and claims call the rows."""
ABOUT = """\
Each of CIFAR-100's superclasses in turn is the primary task; the other 95 classes are auxiliary data. The settings of every row
were searched on four superclasses, by validation. Mean, std and interval are over superclasses, and claims compare rows
superclass by superclass. The interval of a row is wide because superclasses differ. The paper's mean is over the same 20
superclasses, so the interval does not say whether the two means agree. *Best of 5* counts the superclasses on which a row has
the highest test accuracy of the paper's five rows; *of 7* counts the same among all seven rows. Rows with equal accuracy share a
superclass. If all rows were equal, each would be best on {five:.1f} superclasses among 5 rows and on {seven:.1f} among 7."""
COMMAND = f"`python -m experiments.reproduce {NAME} --data FOLDER --seeds 1`"
NOT_RUN = f"Not all runs are there. {COMMAND} runs what is missing; the protocol below says how."
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
    *(Claim(f"{SHORT[label]} beats multitask", label, "multitask") for label in MORE),
]
DECLARED = (
    "The assumption that the protocol declares, that the other two rows are never best, is not true"
)
BEST = "ATTITTUD (1, 1, −1) is best on more superclasses than chance gives"


def lines() -> list[Line]:
    return read_lines(reader.RESULTS / f"{NAME}.jsonl")


def column() -> Part:
    """Return rows whose runs are kept by superclass. A second seed counts once all rows have it for
    all 20 superclasses.
    """
    config = load(CONFIGS / f"{NAME}.yaml", ["data.primary.classes=null"])  # each part has its own
    by_seed: dict[int, list[Line]] = {}
    for line in lines():
        by_seed.setdefault(seed_of(line), []).append(line)
    results = Part(
        config, {}, tries(by_seed.pop(config.seed, []), lambda line: line["part"]), SEARCHED
    )
    results.choose()
    for _, further in sorted(by_seed.items()):
        more = {
            (row.label, row.changes): row
            for rows in tries(further, lambda line: line["part"]).values()
            for row in rows
        }
        same = {label: more.get((label, row.changes)) for label, row in results.rows.items()}
        if all(
            row is not None and len({*row.runs, *row.diverged}) >= SUPERCLASSES
            for row in same.values()
        ):
            for label, row in same.items():
                assert row is not None
                results.rows[label] = _joined(results.rows[label], row)
    return results


def _joined(first: Row, second: Row) -> Row:
    """Return a row with the mean of the test figures of two seeds for every superclass that both
    have.
    """

    def mean(key: Key) -> dict[str, Any]:
        tests = [row.runs[key]["result"]["test"] for row in (first, second)]
        return {
            "result": first.runs[key]["result"]
            | {"test": {n: fmean(t[n] for t in tests) for n in tests[0]}}
        }

    runs = {key: mean(key) for key in first.runs if key in second.runs}
    return Row(first.label, first.changes, runs, first.diverged | second.diverged)


def complete(results: Part) -> bool:
    """Whether all rows have all superclasses."""
    rows = [results.rows[label] for label in NAMES if label in results.rows]
    return len(rows) == len(NAMES) and best_counts(rows)[0] == SUPERCLASSES


def best_counts(rows: Sequence[Row]) -> tuple[int, dict[str, float]]:
    """Return on how many superclasses each row is best, equal ones sharing it, and how many
    superclasses all rows have.
    """
    names = set.intersection(*(set(row.runs) for row in rows)) if rows else set()
    counts = {row.label: 0.0 for row in rows}
    for name in names:
        top = max(row.test[name] for row in rows)
        winners = [row.label for row in rows if row.test[name] == top]
        for label in winners:
            counts[label] += 1 / len(winners)
    return len(names), counts


def chance(count: float, n: int, rows: int) -> float:
    """Return the probability that one of so many equal rows is best on at least so many
    superclasses.
    """
    from scipy.stats import binom

    return float(binom.sf(int(count) - 1, n, 1 / rows))


def chances(results: Part) -> list[str]:
    """Return what chance gives the paper's row where three rows are equal, as declared, and where
    all five are.

    A shared superclass makes a count that no chance gives: the numbers below and above it each have
    a column.
    """
    from scipy.stats import binom

    n, counts = best_counts([results.rows[label] for label in printed.MULTICIFAR])
    low = math.floor(counts[FLIP])
    high = math.ceil(counts[FLIP])
    either = sorted({low, high})
    lines = []
    for about, rows in (
        ("it, PCGrad and multitask are equal, the others never best (declared)", len(JOINT)),
        ("all five rows are equal", len(printed.MULTICIFAR)),
    ):
        tails = [chance(low, n, rows)]
        tails += [float(binom.cdf(most, n, 1 / rows)) for most in either]
        lines.append([about, f"{n / rows:.1f}", *(f"{p:.3f}" for p in tails)])
    head = ["if", "chance gives", f"P(at least {low})", *(f"P(at most {n})" for n in either)]
    others = [
        f"{NAMES[label]} is best on {n:g} superclasses"
        for label, n in counts.items()
        if label not in JOINT and n
    ]
    return [table(head, lines), *([f"{DECLARED}: {', '.join(others)}."] if others else [])]


def best_verdict(results: Part) -> tuple[int, str, str]:
    """Return superclasses, outcome and figures of the paper's claim that its row is best on 11 of
    20.
    """
    if not complete(results):
        return 0, MISSING, ""
    n, counts = best_counts([results.rows[label] for label in printed.MULTICIFAR])
    p = chance(counts[FLIP], n, len(JOINT))
    figures = f"on {counts[FLIP]:g} of {n}, in the paper on {printed.MULTICIFAR_BEST}"
    return n, "holds" if p < ALPHA else "not significant", figures


def outcome(results: Part) -> list[str]:
    """Return what the claims say together, for those who read no table; nothing while runs are
    missing.
    """
    if not complete(results):
        return []
    judgements = judged(CLAIMS, results.claimed)
    differences, better, worse = against_multitask(judgements, (FLIP, *MORE))
    points, outside = leads(judgements, [FLIP])
    means = [
        [SHORT[label], f"{100 * results.rows[label].summary.mean:.1f}", str(paper)]
        for label, (_, paper) in printed.MULTICIFAR.items()
    ]
    name = f"mean on MultiCifar100, % over {SUPERCLASSES} superclasses"
    text = (
        f"* On MultiCifar100, we compare {len(differences)} rows of ATTITTUD with multitask: "
        f"{so_many(better)} significantly better and {so_many(worse)} significantly worse. The "
        "paper's leads of (1, 1, −1) over vanilla pre-training, PCGrad and multitask are above our "
        f"95 % interval in {outside} of {len(points)} comparisons."
    )
    return [
        textwrap.fill(text, WIDTH, subsequent_indent="  "),
        "",
        table([name, "ours", "paper"], means),
    ]


def gaps(results: Part) -> str:
    """Return how far the two rows are from the paper that are furthest from it."""
    none, pretrain = (
        100 * results.rows[label].summary.mean - printed.MULTICIFAR[label][1]
        for label in ("primary_only", "pretrain")
    )
    return GAPS.format(none=none, pretrain=pretrain)


def section() -> str:
    results = column()
    title = "## Table 2, MultiCifar100"
    if not complete(results):
        return f"{title}\n\n{NOT_RUN}"
    _, verdict, figures = best_verdict(results)
    _, of_five = best_counts([results.rows[label] for label in printed.MULTICIFAR])
    _, of_seven = best_counts([results.rows[label] for label in NAMES])
    rows = []
    for label, name in NAMES.items():
        mean = f"{printed.MULTICIFAR[label][1]}" if label in printed.MULTICIFAR else ""
        best = [f"{counts[label]:.3g}" if label in counts else "" for counts in (of_five, of_seven)]
        rows.append([name, mean, *cells(results, label), *best, settings(results, label)])
    head = ["row", "paper", "ours", "std", "95 %", "n", "best of 5", "of 7"]
    figure = "Test accuracy of seven rows on 20 superclasses, and their differences from multitask"
    return "\n\n".join(
        [
            title,
            ABOUT.format(
                five=SUPERCLASSES / len(printed.MULTICIFAR), seven=SUPERCLASSES / len(NAMES)
            ),
            *shown("multicifar100", figure),
            table([*head, "settings chosen on validation"], rows),
            gaps(results),
            claim_table(CLAIMS, results.claimed),
            f"{BEST}: {verdict} ({figures}).",
            *chances(results),
            textwrap.fill(f"{cost()} {ONE_SEED}", WIDTH, break_on_hyphens=False),
            "### What the search on four superclasses saw",
            f"Mean accuracy on the validation images of {', '.join(SEARCHED)}. Each row chose its best; the loss broke ties.",
            searched(results),
            DRAWS,
        ]
    )


def cost() -> str:
    runs = lines()
    return f"All {len(runs)} runs took {minutes(runs):.0f} minutes on the device; runs that shared it count with their shares."
