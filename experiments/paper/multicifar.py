"""Table 2, MultiCifar100: the paper's rows and two beyond it, paired over the 20 superclasses."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from attittud_lab.config.load import load
from attittud_lab.statistics import ALPHA
from experiments.reproduce.experiments import SEARCHED
from experiments.reproduce.results import Line, read_lines

from . import printed
from . import rows as reader
from .claims import MISSING, Claim, claim_table, table
from .plots import shown
from .rows import CONFIGS, Key, Part, Row, seed_of, tries
from .tables import cells, searched, settings

NAME = "table2-multicifar100"
SUPERCLASSES = 20
FLIP = "flip-primary_weight=0.1"
JOINT = ("pcgrad", "multitask", FLIP)
"""Rows of the paper that use both kinds of data at once; the other two are far below in its table."""
MORE = {
    "orthogonal-primary_weight=0.1": "ATTITTUD (1, 0, 0), primary_weight 0.1",
    "drop_harmful-primary_weight=0.1": "ATTITTUD (1, 1, 0), primary_weight 0.1",
}
NAMES = {label: name for label, (name, _) in printed.MULTICIFAR.items()} | MORE
SHORT = NAMES | {FLIP: "ATTITTUD (1, 1, −1)"} | {label: name.partition(", primary")[0] for label, name in MORE.items()}
"""What figures and claims call the rows."""
ABOUT = """\
Each of CIFAR-100's superclasses in turn is the primary task, the other 95 classes are auxiliary data. The settings of every row
were searched on four superclasses, by validation; mean, std and interval are over superclasses, and so are the pairs of the
claims. *Best of 5* counts the superclasses on which a row has the highest test accuracy of the paper's five rows, *of 7* of all;
rows with equal accuracy share a superclass."""
NOT_RUN = "`python -m experiments.reproduce table2-multicifar100 --data FOLDER` runs it; the protocol below says how."
CLAIMS = [
    Claim("vanilla pre-training beats none", "pretrain", "primary_only", 12.6),
    Claim("multitask beats vanilla pre-training", "multitask", "pretrain", 5.3),
    Claim("PCGrad beats vanilla pre-training", "pcgrad", "pretrain", 5.4),
    Claim("ATTITTUD (1, 1, −1) beats vanilla pre-training", FLIP, "pretrain", 5.9),
    Claim("ATTITTUD (1, 1, −1) beats PCGrad", FLIP, "pcgrad", 0.5),
    Claim("ATTITTUD (1, 1, −1) beats multitask", FLIP, "multitask", 0.6),
    *(Claim(f"{SHORT[label]} beats multitask", label, "multitask") for label in MORE),
]
SO_FAR = "**{done} of {all} superclasses have all their runs so far; figures and verdicts may still move.**"
BEST = "ATTITTUD (1, 1, −1) is best on more superclasses than chance gives"


def lines() -> list[Line]:
    return read_lines(reader.RESULTS / f"{NAME}.jsonl")


def column() -> Part:
    """Return rows whose runs are kept by superclass. A second seed counts once all rows have it for all superclasses."""
    config = load(CONFIGS / f"{NAME}.yaml", ["data.primary.classes=null"])  # each part has its own
    by_seed: dict[int, list[Line]] = {}
    for line in lines():
        by_seed.setdefault(seed_of(line), []).append(line)
    found = Part(config, {}, tries(by_seed.pop(config.seed, []), lambda line: line["part"]), SEARCHED)
    found.choose()
    for _, further in sorted(by_seed.items()):
        more = {
            (row.label, row.changes): row for rows in tries(further, lambda line: line["part"]).values() for row in rows
        }
        same = {label: more.get((label, row.changes)) for label, row in found.rows.items()}
        if all(row is not None and row.over(found.rows[label].runs) for label, row in same.items()):
            for label, row in same.items():
                assert row is not None
                found.rows[label] = _joined(found.rows[label], row)
    return found


def _joined(first: Row, second: Row) -> Row:
    """Return a row with the mean of the test figures of two seeds for every superclass that both have."""

    def mean(key: Key) -> dict[str, Any]:
        tests = [row.runs[key]["result"]["test"] for row in (first, second)]
        return {"result": first.runs[key]["result"] | {"test": {n: fmean(t[n] for t in tests) for n in tests[0]}}}

    runs = {key: mean(key) for key in first.runs if key in second.runs}
    return Row(first.label, first.changes, runs, first.diverged | second.diverged)


def best_counts(rows: Sequence[Row]) -> tuple[int, dict[str, float]]:
    """Return on how many superclasses each row is best, equal ones sharing it, and how many superclasses all rows have."""
    names = set.intersection(*(set(row.runs) for row in rows)) if rows else set()
    counts = {row.label: 0.0 for row in rows}
    for name in names:
        top = max(row.test[name] for row in rows)
        winners = [row.label for row in rows if row.test[name] == top]
        for label in winners:
            counts[label] += 1 / len(winners)
    return len(names), counts


def chance(count: float, n: int, rows: int) -> float:
    """Return the probability that one of so many equal rows is best on at least so many superclasses."""
    from scipy.stats import binom

    return float(binom.sf(int(count) - 1, n, 1 / rows))


def best_verdict(found: Part) -> tuple[int, str, str]:
    """Return superclasses, outcome and figures of the paper's claim that its row is best on 11 of 20."""
    rows = [found.rows[label] for label in printed.MULTICIFAR if label in found.rows]
    n, counts = best_counts(rows)
    if len(rows) < len(printed.MULTICIFAR) or n < SUPERCLASSES:
        return n, MISSING, ""
    p = chance(counts[FLIP], n, len(JOINT))
    figures = (
        f"on {counts[FLIP]:g} of {n}, in the paper on {printed.MULTICIFAR_BEST}; if it, PCGrad and multitask were equal and the "
        f"others never best, chance would give {n / len(JOINT):.1f}, and at least {int(counts[FLIP])} with probability {p:.3f}"
    )
    return n, "holds" if p < ALPHA else "not significant", figures


def section() -> str:
    found = column()
    _, verdict, figures = best_verdict(found)
    done, _ = best_counts([*found.rows.values()])
    of_five, of_seven = (
        best_counts([found.rows[label] for label in labels if label in found.rows])[1]
        for labels in (printed.MULTICIFAR, NAMES)
    )
    rows = []
    for label, name in NAMES.items():
        mean = f"{printed.MULTICIFAR[label][1]}" if label in printed.MULTICIFAR else ""
        best = [f"{counts[label]:.3g}" if label in counts else "" for counts in (of_five, of_seven)]
        rows.append([name, mean, *cells(found, label), *best, settings(found, label)])
    seen = [
        cost(),
        "### What the search on four superclasses saw",
        f"Mean accuracy on the validation images of {', '.join(SEARCHED)}; each row chose its best, ties by loss.",
        searched(found),
    ]
    return "\n\n".join(
        [
            "## Table 2, MultiCifar100",
            ABOUT,
            *([SO_FAR.format(done=done, all=SUPERCLASSES)] if 0 < done < SUPERCLASSES else []),
            *shown("multicifar100"),
            table(
                ["row", "paper", "ours", "std", "95 %", "n", "best of 5", "of 7", "settings chosen on validation"], rows
            ),
            claim_table(CLAIMS, found.claimed),
            f"{BEST}: {verdict}{f' ({figures})' if figures else ''}.",
            *(seen if found.tried else [NOT_RUN]),
        ]
    )


def cost() -> str:
    runs = lines()
    minutes = sum(line["seconds"] / line["made_with"].get("side_by_side", 1) for line in runs) / 60
    return f"In all {len(runs)} runs, {minutes:.0f} minutes of the device; of runs side by side, each has its share."
