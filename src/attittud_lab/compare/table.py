"""Show a comparison: tables, decision and notes. Works on the content of comparison.json.

The command calls `show`; the report takes the same cells, marks and notes. The lines of the
decision come from the outcome that the report shows too. Sentences are in `words.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attittud_lab.compare import words
from attittud_lab.compare.candidates import MULTITASK, PRIMARY_ONLY
from attittud_lab.errors import command, percent
from attittud_lab.statistics import FEWEST, ROUNDING, mark

WIDE = 110
"""Width of a terminal from which all columns fit."""
DECIDED = " ◀"
NOTHING = "–"
"""What stands in a cell that cannot have a figure."""
_COLORS = {"use": "green", "no_help": "yellow", "unclear": "yellow"}
_WIDE_ONLY = ("std", "95 %", "single seeds", "steps", "s/step")


class Screen:
    """Shows text and tables: with rich on a terminal, elsewhere as Markdown, plain text."""

    def __init__(self, console: Console) -> None:
        self.plain = not console.is_terminal
        self.console = console
        if self.plain:
            self.console = Console(file=console.file, width=200, color_system=None)

    def say(self, text: str, style: str = "", *, wrap: bool = True) -> None:
        """Show a line; a command must not `wrap`, since it cannot be copied then."""
        if self.plain:
            style = ""
        self.console.print(Text(text, style=style), soft_wrap=self.plain or not wrap)

    def table(self, rows: Sequence[Mapping[str, str]]) -> None:
        """Show rows of texts by column; only the first column is wrapped."""
        if self.plain:
            table = Table(box=box.MARKDOWN, padding=(0, 1), pad_edge=True)
        else:
            table = Table(box=box.SIMPLE_HEAD, padding=(0, 0), pad_edge=False)
        first, *others = rows[0]
        table.add_column(first, overflow="fold")
        for name in others:
            table.add_column(name, justify="right", no_wrap=True, overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row.values()))  # names of strategies and sources are no markup
        self.console.print(table)


def show(
    result: Mapping[str, Any],
    console: Console,
    decision: Sequence[str] = (),
    page: Path | None = None,
) -> None:
    """Show the tables, the decision, and notes.

    `decision` has its lines: what was decided, and the next command. `page` is the report, which
    has more.
    """
    screen = Screen(console)
    hidden: tuple[str, ...] = ()
    if screen.console.width < WIDE:
        hidden = _WIDE_ONLY
    left_out: list[str] = []
    for number, table in enumerate(result["tables"]):
        left_out = _show_table(screen, result, number, table, hidden)
    if decision:
        screen.say(decision[0], f"bold {_COLORS[result['decision']['outcome']]}")
    for line in decision[1:]:
        screen.say(line, wrap=False)
    screen.say("")
    for line in notes(result):
        screen.say(line, wrap="`attittud" not in line)
    if hidden:
        names = ", ".join(left_out)
        screen.say(f"A terminal of {WIDE} columns, and the report, also show {names}.")
    if page is not None:
        screen.say(f"Curves: {page}", wrap=False)


def _show_table(
    screen: Screen,
    result: Mapping[str, Any],
    number: int,
    table: Mapping[str, Any],
    hidden: Sequence[str],
) -> list[str]:
    """Show a table without the `hidden` columns, and the figures by label where there are several
    labels; return those of the hidden columns that it has.
    """
    screen.say(f"{table['name']}: {about(table)}")
    chosen = decided_row(result, number)
    left_out: list[str] = []
    rows = []
    for row in table["rows"]:
        texts = cells(result, table, row)
        if texts["strategy"] == chosen:
            texts["strategy"] += DECIDED
        left_out = [name for name in hidden if name in texts]
        for name in left_out:
            del texts[name]
        rows.append(texts)
    screen.table(rows)
    labels = by_label(table)
    if labels:
        screen.say(f"{result['metric']} by label, {table['name'].lower()}, test %:")
        screen.table(labels)
    return left_out


# ------------------------------------------------------------------------------------- the decision


def deciding(result: Mapping[str, Any]) -> int:
    """Return the number of the table that decided: at equal seconds, if there is one."""
    names = [table["name"] for table in result["tables"]]
    return names.index(result["decision"]["table"])


def decided_row(result: Mapping[str, Any], table: int) -> str | None:
    """Return the row of a table that the decision is about.

    None in other tables, and if no strategy can be compared.
    """
    decision = result["decision"]
    row: str = decision["row"]
    nothing_compared = decision["outcome"] == "unclear" and row == PRIMARY_ONLY
    if table != deciding(result) or nothing_compared:
        return None
    return row


def badge(result: Mapping[str, Any]) -> str:
    """Return what the mark at a row means in the report.

    Without a decision, no row may look decided.
    """
    if result["decision"]["outcome"] == "unclear":
        return "best on validation"
    return "decision"


def about(table: Mapping[str, Any]) -> str:
    """Return what a table compares."""
    return f"{table['about']}. Differences are relative to {PRIMARY_ONLY}, the baseline."


def next_steps(folder: Path, result: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the next command, if there is one, and what it does.

    It tests more, or uses the recommended model: the first run of the strategy to use, which is
    inside of the `folder` of the comparison.
    """
    if "next" in result:
        return [result["next"]]
    strategy = result["decision"]["strategy"]
    for row in result["tables"][deciding(result)]["rows"]:
        if row["label"] == strategy:
            for seed, path in row["runs"].items():
                why = f"predicts with the model of {strategy}, seed {seed}"
                return [{"command": command("predict", folder / path, "INPUTS"), "why": why}]
    return []


# ---------------------------------------------------------------------------------------- the cells


def cells(
    result: Mapping[str, Any], table: Mapping[str, Any], row: Mapping[str, Any]
) -> dict[str, str]:
    """Return the texts of a row by column: figures in per cent, differences in points.

    Few seeds have no intervals; their columns show the single seeds and have other names.
    """
    chosen = result["tuning"]["chosen"]
    weight = NOTHING
    if row["label"] in chosen:
        weight = f"{chosen[row['label']]:g}"
    cost = result["costs"][row["label"]]
    test = row["test"]
    tests = [value["test"] for value in row["values"].values()]
    of_test = "95 %"
    of_difference = "its 95 %"
    if len(result["seeds"]) < FEWEST:
        of_test = "single seeds"
        of_difference = "seed by seed"
    texts = {
        "strategy": row["label"],
        "weight": weight,
        "test %": percent(test["mean"]),
        "std": percent(test["std"]),
        of_test: interval(test, tests),
    }
    # A row that shares no seed with the baseline has no difference.
    texts |= {"difference": NOTHING, of_difference: NOTHING, "p": NOTHING}
    difference = row["to_primary_only"]
    if difference:
        texts["difference"] = f"{_mark(difference)} {percent(difference['mean'], '+')}"
        texts[of_difference] = interval(difference, scatter(table, row), "+")
        texts["p"] = _p_value(difference)
    elif row["label"] == PRIMARY_ONLY:
        texts["difference"] = "baseline"
    texts["steps"] = str(sum(row["steps"].values()))
    texts["s/step"] = f"{cost['seconds_per_step']:.2g}"
    texts["cost"] = f"{cost['to_multitask']:.2f}×"
    return texts


def _p_value(difference: Mapping[str, Any]) -> str:
    """Return the corrected p-value, rounded; a dash where there is none."""
    p = difference["p"]
    if difference["n"] < FEWEST or p is None or math.isnan(p):
        return NOTHING
    if p < 0.001:
        return "<0.001"
    return f"{p:.3f}"


def scatter(table: Mapping[str, Any], row: Mapping[str, Any]) -> list[float]:
    """Return the differences of a row to primary_only, seed by seed."""
    values = {other["label"]: other["values"] for other in table["rows"]}
    base = values[PRIMARY_ONLY]
    differences = []
    for seed, value in row["values"].items():
        if seed in base:
            differences.append(value["test"] - base[seed]["test"])
    return differences


def by_label(table: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the figures of every label, where there are several at once; else nothing.

    There is a row for each strategy.
    """
    rows = []
    for row in table["rows"]:
        if row["labels"]:
            texts = {"strategy": row["label"]}
            for name, summary in row["labels"].items():
                texts[name] = _of_label(summary)
            rows.append(texts)
    return rows


def _of_label(summary: Mapping[str, Any]) -> str:
    """Return the mean of a label with its interval, or with single values where seeds are few.

    It is "undefined" if no run has a figure of the label.
    """
    mean = percent(summary["mean"])
    if not mean:
        return "undefined"
    more = interval(summary, summary["values"])
    if not more:
        return mean
    return f"{mean} ({more})"


def flat(summary: Mapping[str, Any]) -> bool:
    """Whether all values are equal: an interval of no width would look like certainty."""
    return bool(summary["n"] >= FEWEST and summary["std"] <= ROUNDING)


def interval(summary: Mapping[str, Any], values: Sequence[float], sign: str = "") -> str:
    """Format the interval of a share in per cent, or with a `sign` of a difference.

    Too few values are listed instead.
    """
    if len(values) == 1:
        return "one seed"
    if summary["n"] < FEWEST:
        return " / ".join(percent(value, sign) for value in values)
    if flat(summary):
        return f"all {summary['n']} equal"
    low = percent(summary["low"], sign)
    high = percent(summary["high"], sign)
    if low == high:  # only after rounding, so half the width is shown instead
        return f"± {50 * (summary['high'] - summary['low']):.1g}"
    return f"{low} to {high}"


def bar(difference: Mapping[str, Any] | None, values: Sequence[float]) -> dict[str, Any] | None:
    """Return a difference as the report draws it.

    The ends are None where there is no interval to draw.
    """
    if not difference:
        return None
    low = None
    high = None
    if difference["n"] >= FEWEST and not flat(difference):
        low = difference["low"]
        high = difference["high"]
    return {
        "mean": difference["mean"],
        "low": low,
        "high": high,
        "values": list(values),
        "mark": _mark(difference),
    }


def _mark(difference: Mapping[str, Any]) -> str:
    """Return the mark of a difference: ▲, ▼ or =, and ? for too few seeds, which have no test."""
    p = None
    if difference["n"] >= FEWEST:
        p = difference["p"]
    return mark(difference["mean"], p)


# ---------------------------------------------------------------------------------------- the notes


def notes(result: Mapping[str, Any]) -> list[str]:
    """Return the notes that are needed to read the tables."""
    tuning = result["tuning"]
    tables = result["tables"]
    decision = result["decision"]
    first_lines = [
        words.instead(result.get("instead"), result["metric"]),
        words.few_examples(result["examples"]["test"], result["metric"]),
        _left_out_by_quick(result),
        _figures(result),
        words.tuned(tuning) + _edge(tuning),
    ]
    lines = list(filter(None, first_lines))
    for label, changes in tuning["changes"].items():
        lines.append(f"Settings of {label}: {' '.join(changes)}.")
    if result["diverged"]:
        lines.append(words.always_diverged(result["diverged"]))
    seeds = list(map(str, result["seeds"]))
    for table in tables:
        for row in table["rows"]:
            lost = [seed for seed in seeds if seed not in row["values"]]
            if lost:
                lines.append(words.lost_seeds(row["label"], lost, table["name"].lower()))
    first = tables[0]["decision"]
    if (first["outcome"], first["strategy"]) != (decision["outcome"], decision["strategy"]):
        lines.append(f"At equal steps alone the decision would be: {first['text']}")
    return lines


def _left_out_by_quick(result: Mapping[str, Any]) -> str:
    """Say what --quick left out, and what the same command without it does."""
    text: str = result.get("gave_up", "")
    whole = result.get("whole")
    if text and whole:
        text += f" The same command without --quick {whole['why']}."
    return text


def _figures(result: Mapping[str, Any]) -> str:
    """Explain the figures and marks of the tables."""
    seeds = len(result["seeds"])
    text = words.figures(result["metric"], seeds)
    if decided_row(result, deciding(result)) is not None:
        decided = result["decision"]["outcome"] != "unclear"
        text += words.arrow(DECIDED, decided=decided)
    return f"{text} {words.cost_and_scatter(seeds)}"


def _edge(tuning: Mapping[str, Any]) -> str:
    """Say if multitask chose the smallest or the largest weight; else return an empty text."""
    chosen = tuning["chosen"][MULTITASK]
    weights = tuning["weights"]
    if len(weights) < 2 or chosen not in (weights[0], weights[-1]):
        return ""
    return words.wider_range(chosen, smallest=chosen == weights[0])
