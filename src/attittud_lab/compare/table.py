"""Show a comparison: two tables and a decision. Works on the content of comparison.json, including files of earlier versions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attittud_lab.compare.candidates import MULTITASK
from attittud_lab.compare.decide import SPREAD
from attittud_lab.errors import counted
from attittud_lab.statistics import FEWEST, mark

NAMED = 6  # slow runs in a warning
WIDE = 110  # width of a terminal from which all columns fit
DECIDED = " ◀"

_COLORS = {"use": "green", "no_help": "yellow", "unclear": "yellow"}
_WIDE_ONLY = ("std", "95 %", "single seeds", "steps", "s/step")


class Screen:
    """Shows text and tables: with rich on a terminal, elsewhere as Markdown, which is plain text."""

    def __init__(self, console: Console) -> None:
        self.plain = not console.is_terminal
        self.console = Console(file=console.file, width=200, color_system=None) if self.plain else console

    def say(self, text: str, style: str = "", *, wrap: bool = True) -> None:
        self.console.print(Text(text, style="" if self.plain else style), soft_wrap=self.plain or not wrap)

    def table(self, rows: Sequence[Mapping[str, str]], left: int = 1, *, tight: bool = False) -> None:
        """Show rows of texts by column. The first columns are aligned to the left; a `tight` table wraps only these."""
        padding = (0, 0 if tight and not self.plain else 1)
        found = Table(box=box.MARKDOWN if self.plain else box.SIMPLE_HEAD, padding=padding, pad_edge=self.plain)
        for position, name in enumerate(rows[0]):
            first = position < left
            found.add_column(name, justify="left" if first else "right", no_wrap=tight and not first, overflow="fold")
        for row in rows:
            found.add_row(*map(Text, row.values()))  # names of strategies and sources are not markup
        self.console.print(found)


def show(result: Mapping[str, Any], console: Console, page: Path | None = None) -> None:
    """Show the tables, notes for reading them, and the decision. `page` is the report, which has more."""
    screen = Screen(console)
    hidden = _WIDE_ONLY if screen.console.width < WIDE else ()
    for number, table in enumerate(result["tables"]):
        screen.say(f"{table['name']}: {about(table)}")
        chosen = decided_row(result, number)
        rows = [cells(result, table, row) for row in table["rows"]]
        marked = [row | {"strategy": row["strategy"] + DECIDED * (row["strategy"] == chosen)} for row in rows]
        shown = [{name: text for name, text in row.items() if name not in hidden} for row in marked]
        screen.table(shown, tight=True)
        labels = by_label(table)
        if labels:
            screen.say(f"{result['metric']} by label, {table['name'].lower()}, test %:")
            screen.table(labels, tight=True)
    if hidden:
        names = ", ".join(name for name in hidden if name in rows[0])
        screen.say(f"A terminal of {WIDE} columns, and the report, also show {names}.")
    for line in notes(result):
        screen.say(line)
    if page is not None:
        screen.say(f"Curves: {page}", wrap=False)  # a path that is broken into two lines cannot be copied
    screen.say("")
    decision = result["decision"]
    at = result["tables"][deciding(result)]["name"].lower()
    screen.say(f"Decision at {at}: {decision['text']}", f"bold {_COLORS[decision['outcome']]}")


def deciding(result: Mapping[str, Any]) -> int:
    """The number of the table that decided: the one at equal seconds, if there is one."""
    names = [table["name"] for table in result["tables"]]
    return names.index(result["decision"].get("table", names[-1]))  # older files do not say


def decided_row(result: Mapping[str, Any], table: int) -> str | None:
    """The row of a table that the decision is about."""
    decision = result["decision"]
    return decision.get("row", decision["strategy"]) if table == deciding(result) else None


def about(table: Mapping[str, Any]) -> str:
    return f"{table['about']}. Differences are relative to {table['baseline']}."


def cells(result: Mapping[str, Any], table: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, str]:
    """The texts of a row: figures in per cent, differences in points."""
    weight, cost = result["tuning"]["chosen"].get(row["label"]), result["costs"][row["label"]]
    test, difference = row["test"], row["to_baseline"] or {}
    single = scatter(table, row) if difference else []
    few, p = len(result["seeds"]) < FEWEST, difference["p"] if difference.get("n", 0) >= FEWEST else None
    return {
        "strategy": row["label"],
        "weight": "" if weight is None else f"{weight:g}",
        "test %": percent(test["mean"]),
        "std": percent(test["std"]),
        "single seeds" if few else "95 %": interval(test, [value["test"] for value in row["values"].values()]),
        "difference": f"{_mark(difference)} {percent(difference['mean'], '+')}" if difference else "",
        "seed by seed" if few else "its 95 %": interval(difference, single, "+"),
        "p": "" if p is None or math.isnan(p) else "<0.001" if p < 0.001 else f"{p:.3f}",
        "steps": str(sum(row["steps"].values())),
        "s/step": f"{cost['seconds_per_step']:.2g}",
        "cost": f"{cost['to_multitask']:.2f}×",
    }


def scatter(table: Mapping[str, Any], row: Mapping[str, Any], baseline: str | None = None) -> list[float]:
    """The differences of a row to a baseline, by default the baseline of its table, seed by seed."""
    (base,) = (other["values"] for other in table["rows"] if other["label"] == (baseline or table["baseline"]))
    return [value["test"] - base[seed]["test"] for seed, value in row["values"].items() if seed in base]


def by_label(table: Mapping[str, Any]) -> list[dict[str, str]]:
    """With several labels at once: a row for each strategy with the figures of every label; else empty."""
    return [
        {"strategy": row["label"], **{name: _of_label(found) for name, found in row["labels"].items()}}
        for row in table["rows"]
        if row.get("labels")  # comparisons of earlier versions have none
    ]


def _of_label(found: Mapping[str, Any]) -> str:
    mean, more = percent(found["mean"]), interval(found, found.get("values", ()))
    return f"{mean} ({more})" if mean and more else mean or "undefined"


def notes(result: Mapping[str, Any]) -> list[str]:
    """Notes that are needed to read the tables."""
    tuning, n = result["tuning"], len(result["seeds"])
    weights = ", ".join(f"{weight:g}" for weight in tuning["weights"])
    searched = "".join(f", {path} among {', '.join(values)}" for path, values in tuning["space"].items())
    fixed = "".join(f" and {path} {values[0]}" for path, values in tuning["space"].items())
    scatter = (
        f"With fewer than {FEWEST} seeds there is no interval and no test; the value of each seed is shown instead."
        if n < FEWEST
        else "Intervals show the variation between seeds, not between data sets. Unlike p, they are not corrected for the number "
        "of rows."
    )
    tuned = (
        f"Tuning: every strategy chose its auxiliary weight among {weights}{searched} on validation, with "
        f"{tuning['runs_each']} runs each. primary_only has no weight."
        if tuning["runs_each"] > 1
        else f"Nothing was tuned: every strategy has the auxiliary weight {weights}{fixed}. primary_only has no weight."
    )
    lines = [
        *([result["gave_up"]] if result.get("gave_up") else []),
        (
            f"Figures are means of the test {result['metric']} over {counted(n, 'seed')}. Differences are in points, computed "
            "seed by seed against primary_only or multitask, whichever is better on validation: ▲ shown to be better, "
            "▼ shown to be worse (Holm-corrected p below 0.05), = no difference shown, ? too few seeds to tell."
            f"{DECIDED} marks the row that the decision is about. Cost is the time of a step relative to multitask. {scatter}"
        ),
        tuned,
        *(f"Settings of {label}: {' '.join(changes)}." for label, changes in tuning["changes"].items()),
    ]
    chosen = tuning["chosen"][MULTITASK]
    if len(tuning["weights"]) > 1 and chosen in (tuning["weights"][0], tuning["weights"][-1]):
        lines.append(
            f"Multitask chose {chosen:g}, the smallest or largest weight tried: a wider range in compare.weights would be fairer."
        )
    if result["diverged"]:
        lines.append(f"Left out, because training diverged with every weight: {', '.join(result['diverged'])}.")
    for table in result["tables"]:
        for row in table["rows"]:
            lost = [str(seed) for seed in result["seeds"] if str(seed) not in row["values"]]
            if lost:
                lines.append(
                    f"{row['label']} diverged with seed {', '.join(lost)} at {table['name'].lower()}: its row has only the "
                    "other seeds, and it is not recommended."
                )
    lines += _slow(result.get("slow", {}))  # comparisons of earlier versions do not say
    first, last = result["tables"][0]["decision"], result["decision"]
    if (first["outcome"], first["strategy"]) != (last["outcome"], last["strategy"]):
        lines.append(f"At equal steps alone the decision would be: {first['text']}")
    return lines


def _slow(runs: Mapping[str, float]) -> list[str]:
    if not runs:
        return []
    named = [f"{path} ({factor:.1f}×)" for path, factor in islice(runs.items(), NAMED)]
    more = f" and {len(runs) - NAMED} more (`slow` in comparison.json)" if len(runs) > NAMED else ""
    text = (
        f"Warning: in some runs a step took more than {SPREAD:g} times as long as in others of the same strategy and length, "
        "perhaps because the machine was busy. Neither the costs nor the table at equal seconds are reliable. The slow runs are "
        f"{', '.join(named)}{more}: delete their folders and give the same command again while nothing else runs."
    )
    return [text]


def percent(value: float | None, sign: str = "") -> str:
    # Adding 0 makes a negative zero positive.
    return "" if value is None or math.isnan(value) else f"{round(100 * value, 1) + 0.0:{sign}.1f}"


def interval(found: Mapping[str, Any], values: Sequence[float], sign: str = "") -> str:
    """Format the interval of a proportion in per cent, or with a `sign` of a difference; too few values are listed instead.

    Files of earlier versions also have intervals of two values, and some that go beyond the possible range.
    """
    if found.get("n", 0) < FEWEST:
        return " / ".join(percent(value, sign) for value in values)
    low, high = max(-1.0 if sign else 0.0, found["low"]), min(1.0, found["high"])
    return f"{percent(low, sign)} to {percent(high, sign)}"


def bar(found: Mapping[str, Any] | None, values: Sequence[float]) -> dict[str, Any] | None:
    """Return a difference as the report draws it; the ends are None if there are too few values for an interval."""
    if not found:
        return None
    few = found["n"] < FEWEST
    low, high = (None, None) if few else (max(-1.0, found["low"]), min(1.0, found["high"]))
    return {"mean": found["mean"], "low": low, "high": high, "values": list(values), "mark": _mark(found)}


def _mark(difference: Mapping[str, Any]) -> str:
    return mark(difference["mean"], difference["p"] if difference["n"] >= FEWEST else None)
