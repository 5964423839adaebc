"""The section on Table 1: document classification with masked language modelling on its own and on
swapped text.
"""

from __future__ import annotations

from experiments.reproduce.results import read_lines
from experiments.reproduce.text import FOLDERS, LABELS, part_name

from . import printed
from .claims import Claim, claim_table
from .rows import RESULTS, Part, Row, minutes, part
from .tables import beside_paper, beyond_paper, searched, table

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
MORE = _MORE | {SWAPPED + label: f"{name}, swapped text" for label, name in _MORE.items()}
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
    """Return which row is better than which, on the task's own text and on swapped text: first the
    paper's claims in its order, then claims about rows that the paper does not have.
    """
    every = []
    for pairs in (
        [("pretrain", PLAIN), (OURS, PLAIN), (OURS, "pretrain")],
        [(OURS, "multitask"), ("auto", PLAIN)],
    ):
        for swapped in (False, True):
            every += [claim(task, first, second, swapped=swapped) for first, second in pairs]
    return every


def claim(task: str, first: str, second: str, *, swapped: bool) -> Claim:
    """Claim that one row is better than another, or the opposite if the paper's figures say so.
    Plain fine-tuning reads neither the task's own nor swapped text: it has one row for both.
    """
    prefix = ""
    where = ""
    if swapped:
        prefix = SWAPPED
        where = "swapped text: "
    labels = [prefix + label for label in (first, second)]
    if second == PLAIN:
        labels[1] = PLAIN
    names = [_NAMES[first], _NAMES[second]]
    points = None
    paper = printed.TABLE1[task]
    if paper.keys() >= set(labels):
        points = round(paper[labels[0]][1] - paper[labels[1]][1], 1)
        if points < 0:  # in the paper the second row is the better one
            points = -points
            labels.reverse()
            names.reverse()
    return Claim(f"{where}{names[0]} beats {names[1]}", *labels, points)


def column(task: str, labels: str) -> Part:
    """The rows of a column, those with swapped text among them, and `ours` for each text."""
    file = part_name(task, labels, swapped=False)
    results = part("table1-text", file)
    swapped = part("table1-text", part_name(task, labels, swapped=True), file)
    # Plain fine-tuning reads neither text, so its runs are the same: take the part with more runs.
    plain = max(results, swapped, key=lambda side: len(side.rows[PLAIN].runs))
    for label in swapped.rows:
        if label != PLAIN:
            results.rows[SWAPPED + label] = swapped.rows[label]
            results.tried[SWAPPED + label] = swapped.tried[label]
    results.rows[PLAIN] = plain.rows[PLAIN]
    results.tried[PLAIN] = plain.tried[PLAIN]
    for prefix in ("", SWAPPED):
        results.rows[prefix + OURS] = results.better(*(prefix + label for label in ETAS))
    return results


def columns() -> list[tuple[str, str]]:
    """Task and number of labels of every column."""
    return [(task, labels) for labels in LABELS for task in FOLDERS]


def title(task: str, labels: str) -> str:
    return f"{TASKS[task]}, {SIZES[labels]}"


def groups() -> list[tuple[str, list[Claim], dict[str, Row]]]:
    """All claims with their rows."""
    every = []
    for task, labels in columns():
        where = f"Table 1, smaller encoder: {title(task, labels)}"
        every.append((where, claims(task), column(task, labels).rows))
    return every


def section() -> str:
    parts = ["## Table 1, text", ABOUT]
    for task, labels in columns():
        results = column(task, labels)
        parts += [
            f"### {title(task, labels)}",
            beside_paper(results, printed.TABLE1[task], same_data=False),
            "With the same search:",
            beyond_paper(results, MORE),
            claim_table(claims(task), results.rows),
            f"What the search for {TASKS[task]} with {SIZES[labels]} saw, in macro-F1 on validation of the first seed:",
            searched(results),
        ]
    return "\n\n".join([*parts, "### What it takes", COST, cost(), REFRESH])


def cost() -> str:
    """Minutes of the device by column, runs of the search among them."""
    parts = {}
    for task, labels in columns():
        names = [part_name(task, labels, swapped=swapped) for swapped in (False, True)]
        parts[title(task, labels)] = names
    parts["masked-word heads, once for all columns"] = ["start"]
    lines = read_lines(RESULTS / "table1-text.jsonl")
    rows = []
    for name, members in parts.items():
        # Parts have copies of the runs that they share.
        runs = {line["fingerprint"]: line for line in lines if line["part"] in members}.values()
        devices = sorted({line["made_with"]["device"] for line in runs})
        rows.append([name, str(len(runs)), f"{minutes(runs):.1f}", ", ".join(devices)])
    return table(["column", "runs", "minutes", "device"], rows)
