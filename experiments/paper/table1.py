"""The section on Table 1: document classification with masked language modelling on its own and on
swapped text.
"""

from __future__ import annotations

import itertools

from experiments.reproduce.text import FOLDERS, LABELS, part_name

from . import printed
from . import rows as reader
from .claims import MISSING, Claim, claim_table, table
from .rows import Part, Row, part
from .tables import beside_paper, beyond_paper, searched

ABOUT = """\
Figures are macro-F1. A MiniLM encoder of 22.7 million parameters replaces RoBERTa. The data are IMDB reviews, and a small
open set of Amazon reviews in place of the paper's 115,000. We ask the paper's question with another encoder and other data,
so the two columns of figures need not agree; only the order of rows should. TAPT trains on the task's own text first, by
masked language modelling. *Swapped* uses the other task's text instead (the paper's Cross-TAPT). *Ours* is the better of the
two Etas (1, 1, −1) and (1, 0, 0), by the mean on validation, separately for own and swapped text. The protocol below says
what else differs."""
TASKS = {"imdb": "IMDB", "amazon": "Amazon helpfulness"}
SIZES = {"500": "500 labels", "full": "all labels"}
SWAPPED = "swapped, "
ETAS = {"flip": "ATTITTUD (1, 1, −1)", "orthogonal": "ATTITTUD (1, 0, 0)"}
_MORE = {**ETAS, "multitask": "multitask", "auto": "`auto`"}
MORE = {**_MORE, **{SWAPPED + label: f"{name}, swapped text" for label, name in _MORE.items()}}
OURS, PLAIN = "ours", "primary_only"
_NAMES = {
    PLAIN: "plain fine-tuning",
    "pretrain": "TAPT",
    OURS: "ours",
    "multitask": "multitask",
    "auto": "`auto`",
}
COST = (
    "A column of the paper's Table 1 is one task with one number of labels. It takes all rows with own and with swapped text, "
    "five seeds, and the search."
)
REFRESH = """\
The next table shows how much longer a step with a refresh takes than a step without one, on an encoder of this size (H200, 32
texts of 128 tokens, rank 10; the benchmark is at revision 69126ad5, in `benchmarks/encoder.py`). The runs above replay CUDA
graphs. Without graphs, launching kernels takes most of the time, and `hooks` launches many small kernels:

| steps | `hooks`, ms | `batched`, ms | `loop`, ms | `loop` / `hooks` |
|---|---|---|---|---|
| eager | 87.0 | 49.9 | 165.4 | 1.9 |
| CUDA graphs | 8.2 | 24.5 | 26.7 | 3.2 |"""


def claims(task: str) -> list[Claim]:
    """The paper's, with its differences and in its order; then what a baseline and `auto` have to
    say.
    """
    means = {label: mean for label, (_, mean, _) in printed.TABLE1[task].items()}

    def better(where: str, first: str, second: str) -> Claim:
        if first in means and second in means:
            points = round(means[first] - means[second], 1)
        else:
            points = None
        if points is not None and points < 0:  # what the paper found is the opposite
            first, second, points = second, first, -points
        names = [_NAMES[label.removeprefix(SWAPPED)] for label in (first, second)]
        return Claim(f"{where}{names[0]} beats {names[1]}", first, second, points)

    pairs = [("pretrain", PLAIN), (OURS, PLAIN), (OURS, "pretrain")]
    more = [(OURS, "multitask"), ("auto", PLAIN)]

    def other(label: str) -> str:
        return label if label == PLAIN else SWAPPED + label

    every = []
    for some in (pairs, more):
        every += [better("", first, second) for first, second in some]
        every += [better("swapped text: ", other(first), other(second)) for first, second in some]
    return every


def column(task: str, labels: str) -> Part:
    """Own and swapped text under one roof, and which rows are ours."""
    file = part_name(task, labels, swapped=False)
    results, other = (
        part("table1-text", part_name(task, labels, swapped=swapped), file)
        for swapped in (False, True)
    )
    plain = [side for side in (results, other) if PLAIN in side.rows]
    if plain:  # it reads neither text, so its runs are the same: take the part with more runs
        further = max(plain, key=lambda side: len(side.rows[PLAIN].runs))
        results.rows[PLAIN], results.tried[PLAIN] = further.rows[PLAIN], further.tried[PLAIN]
    results.rows |= {SWAPPED + label: row for label, row in other.rows.items() if label != PLAIN}
    results.tried |= {
        SWAPPED + label: rows for label, rows in other.tried.items() if label != PLAIN
    }
    for prefix in ("", SWAPPED):
        best = results.best([prefix + label for label in ETAS])
        if best is not None:
            results.rows[prefix + OURS] = best
    return results


def groups() -> list[tuple[str, list[Claim], dict[str, Row]]]:
    """All claims with their rows."""
    return [
        (
            f"Table 1, smaller encoder: {TASKS[task]}, {SIZES[labels]}",
            claims(task),
            column(task, labels).claimed,
        )
        for labels in LABELS
        for task in FOLDERS
    ]


def section() -> str:
    columns = [_column(task, labels) for labels in LABELS for task in FOLDERS]
    return "\n\n".join(
        ["## Table 1, text", ABOUT, *columns, "### What it takes", COST, cost(), REFRESH]
    )


def cost() -> str:
    """Minutes of the device by column, runs of the search among them."""
    lines = reader.read_lines(reader.RESULTS / "table1-text.jsonl")
    columns = {
        f"{TASKS[task]}, {SIZES[labels]}": [
            part_name(task, labels, swapped=swapped) for swapped in (False, True)
        ]
        for labels, task in itertools.product(LABELS, FOLDERS)
    }
    rows = []
    for title, names in {**columns, "masked-word heads, once for all columns": ["start"]}.items():
        runs = {line["fingerprint"]: line for line in lines if line["part"] in names}.values()
        devices = sorted({line["made_with"]["device"] for line in runs})
        if runs:
            cells = [str(len(runs)), f"{reader.minutes(runs):.1f}", ", ".join(devices)]
        else:
            cells = ["0", MISSING, ""]
        rows.append([title, *cells])
    return table(["column", "runs", "minutes", "device"], rows)


def _column(task: str, labels: str) -> str:
    results = column(task, labels)
    return "\n\n".join(
        [
            f"### {TASKS[task]}, {SIZES[labels]}",
            beside_paper(results, printed.TABLE1[task], same_data=False),
            "With the same search:",
            beyond_paper(results, MORE),
            claim_table(claims(task), results.claimed),
            f"What the search for {TASKS[task]} with {SIZES[labels]} saw, in macro-F1 on validation of the first seed:",
            searched(results),
        ]
    )
