"""The tables of what each default and each other candidate adds on development pairs.

`RECORD` has for each pair and row a list for the seeds 0, 1, ...: test accuracy (%), and seconds of
the processor. The rows of a seed shared their work: a candidate was tried once, and each row chose
among its own. So an accuracy is that of `run`; the seconds are those of the row's candidates on the
folds and of its final fits. `reading` has the seconds in which all examples became features.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np

from attittud_lab.statistics import summarise

from .run import PORTFOLIOS, portfolio_rows
from .table import table
from .write import ROOT

RECORD = ROOT / "experiments/results/answer-candidates.json"
PAGE = ROOT / "docs/appendix/answer-development.md"
MARK = "<!-- made by python -m experiments.answer page -->\n"
KINDS = ("table", "text", "image")

Pair = dict[str, Any]
"""What `RECORD` has of a pair: `kind`, `rows`, `reading`, and the `models` of seed 0."""


def page() -> str:
    """The page about the development pairs: its words, and the tables of `RECORD`."""
    words, _, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    pairs: dict[str, Pair] = record["pairs"]
    tables = {name: pair for name, pair in pairs.items() if pair["kind"] == "table"}
    others: dict[str, Pair] = record["other_tables"]
    rows = set.intersection(*(set(pair["rows"]) for pair in others.values()))
    parts = [
        differences(pairs, PORTFOLIOS),
        f"With {len(others)} more development pairs that are tables:",
        differences(tables | others, [row for row in PORTFOLIOS if row in rows]),
        "Medians over pairs, of a processor that does nothing else:",
        costs(pairs.values()),
    ]
    return f"{words}{MARK}\n" + "\n\n".join(parts) + "\n"


def differences(pairs: dict[str, Pair], rows: Sequence[str]) -> str:
    """For each of these rows accuracy and time beside those of the default, on the same seeds."""
    groups: dict[str, dict[str, tuple[float, float, float]]] = {}
    for row, (name, pair) in product(rows, pairs.items()):
        if row in pair["rows"]:
            settings = portfolio_rows(pair["kind"], shares=True)[row]
            groups.setdefault(in_words(settings), {})[name] = beside_default(pair, row, settings)
    lines = []
    for words, figures in groups.items():
        gains, later, first = zip(*figures.values(), strict=True)
        ours = summarise(gains)
        kinds = {pairs[name]["kind"] for name in figures}
        worst = min(figures, key=lambda name: figures[name][0])
        lines.append(
            [
                words,
                ", ".join(f"{kind}s" for kind in KINDS if kind in kinds),
                f"{ours.mean:+.2f} ({ours.low:+.2f} to {ours.high:+.2f})",
                f"{min(gains):+.1f} ({worst})",
                str(ours.n),
                f"{np.median(later):+.0%}",
                f"{np.median(first):+.0%}",
            ]
        )
    head = ("setting", "on", "accuracy", "worst pair", "pairs", "time", "time of a first run")
    return table(head, lines[1:])  # without the default


def beside_default(pair: Pair, row: str, settings: dict[str, Any]) -> tuple[float, float, float]:
    """Accuracy minus that of the default; the share of further time, and that of a first run."""
    ours = np.array(pair["rows"][row])
    default = np.array(pair["rows"]["default"])[: len(ours)]
    gain, seconds = (ours - default).mean(axis=0)
    before = default[:, 1].mean()
    reading = sum(pair["reading"].values())
    read = sum(pair["reading"][name] for name in settings.get("features", pair["reading"]))
    return float(gain), seconds / before, (seconds + read - reading) / (before + reading)


def in_words(settings: dict[str, Any]) -> str:
    """What a row changes in the settings of the portfolio, as a configuration has it."""
    changes = [f"`{name}: {json.dumps(value)}`" for name, value in settings.items() if value]
    return ", ".join(changes).replace('"', "")


def costs(pairs: Iterable[Pair]) -> str:
    """By kind of data: seconds of features and of the default, and its two final models."""
    lines = []
    for kind in KINDS:
        of_kind = [pair for pair in pairs if pair["kind"] == kind]
        reading = np.median([sum(pair["reading"].values()) for pair in of_kind])
        tried = np.median([np.mean(pair["rows"]["default"], axis=0)[1] for pair in of_kind])
        line = [f"{kind}s", f"{reading:.1f}", f"{tried:.1f}"]
        for final in ("ensemble", "single"):
            size, time = np.median([pair["models"][final] for pair in of_kind], axis=0)
            line += [f"{size:.2g}", f"{time:.2g}"]
        lines.append(line)
    head = ("on", "s for features", "s for candidates")
    return table((*head, "ensemble, MB", "ms", "single, MB", "ms"), lines)
