"""A comparison as a reader sees it: two tables and a decision."""

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

from attittud_lab.compare.decide import MULTITASK
from attittud_lab.compare.timing import SPREAD

NAMED = 6  # slow runs in a warning
WIDE = 110  # columns of a terminal from which on all columns fit

_COLORS = {"use": "green", "no_help": "yellow", "unclear": "yellow"}


def show(result: Mapping[str, Any], console: Console, page: Path | None = None) -> None:
    """Tables by rich on a terminal; elsewhere Markdown, which is plain text. `page` is where to see more."""
    plain = not console.is_terminal
    if plain:
        console = Console(file=console.file, width=200, color_system=None)
    narrow = console.width < WIDE
    for table in result["tables"]:
        console.print(f"{table['name']}: {table['about']}", highlight=False, soft_wrap=plain)
        console.print(_table([cells(result, row) for row in table["rows"]], plain=plain, narrow=narrow))
        labels = by_label(table)
        if labels:
            console.print(f"{result['metric']} by label, {table['name'].lower()}, test %:", highlight=False)
            console.print(_table(labels, plain=plain, narrow=narrow))
    if narrow:
        console.print(
            f"A terminal of {WIDE} columns, and the report, also show {', '.join(_WIDE_ONLY)}.", highlight=False
        )
    for line in notes(result):
        console.print(line, highlight=False, soft_wrap=plain)
    if page is not None:
        console.print(Text(f"Curves: {page}"), soft_wrap=True)  # a path that is broken in two cannot be copied
    console.print()
    decision = result["decision"]
    at = result["tables"][-1]["name"].lower()
    style = "" if plain else f"bold {_COLORS[decision['outcome']]}"
    console.print(Text(f"Decision at {at}: {decision['text']}", style=style), soft_wrap=plain)


def _table(rows: Sequence[Mapping[str, str]], *, plain: bool, narrow: bool) -> Table:
    found = Table(box=box.MARKDOWN if plain else box.SIMPLE_HEAD, padding=(0, 1 if plain else 0), pad_edge=plain)
    shown = [name for name in rows[0] if not (narrow and name in _WIDE_ONLY)]
    for name in shown:
        first = name == "strategy"
        found.add_column(name, justify="left" if first else "right", no_wrap=not first, overflow="fold")
    for row in rows:
        found.add_row(*(Text(row[name]) for name in shown))  # not markup, whatever a strategy is called
    return found


_WIDE_ONLY = ("std", "95 %", "steps", "s/step")


def cells(result: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, str]:
    """A row in words: figures in per cent, differences in points."""
    weight = result["tuning"]["chosen"].get(row["label"])
    test, difference, cost = row["test"], row["to_baseline"] or {}, result["costs"][row["label"]]
    return {
        "strategy": row["label"],
        "weight": "" if weight is None else f"{weight:g}",
        "test %": percent(test["mean"]),
        "std": percent(test["std"]),
        "95 %": interval(test),
        "difference": percent(difference.get("mean"), "+"),
        "95 % of it": interval(difference, "+"),
        "p": p_value(difference.get("p")),
        "steps": str(sum(row["steps"].values())),
        "s/step": f"{cost['seconds_per_step']:.2g}",
        "cost": f"{cost['to_multitask']:.2f}×",
    }


def by_label(table: Mapping[str, Any]) -> list[dict[str, str]]:
    """Of several labels at once: a row for each strategy, mean and half of the 95 % interval of each label; else empty."""
    return [
        {"strategy": row["label"], **{name: _mean_and_half(found) for name, found in row["labels"].items()}}
        for row in table["rows"]
        if row.get("labels")  # comparisons of earlier versions have none
    ]


def _mean_and_half(found: Mapping[str, Any]) -> str:
    mean = percent(found["mean"])
    if not mean:
        return "undefined"
    half = percent(None if found["high"] is None else found["high"] - found["mean"])
    return f"{mean} ± {half}" if half else mean


def notes(result: Mapping[str, Any]) -> list[str]:
    """What one has to know to read the tables."""
    tuning, n = result["tuning"], len(result["seeds"])
    weights = ", ".join(f"{weight:g}" for weight in tuning["weights"])
    searched = "".join(f", {path} among {', '.join(values)}" for path, values in tuning["space"].items())
    lines = [
        (
            f"Mean {result['metric']} on test over {n} paired seeds, its standard deviation and 95 % interval; difference in "
            f"points to the simple baseline that is better on validation ({_baselines(result)}), p Holm-corrected; cost of a "
            "step against multitask. The intervals are about other seeds, not about other data."
        ),
        (
            f"Tuning: every strategy chose its auxiliary weight among {weights}{searched} on validation, {tuning['runs_each']} "
            "runs each; primary_only has no weight."
        ),
        *(f"Settings of {label}: {' '.join(changes)}." for label, changes in tuning["changes"].items()),
    ]
    chosen = tuning["chosen"][MULTITASK]
    if len(tuning["weights"]) > 1 and chosen in (tuning["weights"][0], tuning["weights"][-1]):
        lines.append(
            f"Multitask chose {chosen:g}, at the edge of the weights tried: a wider compare.weights would be fairer to it."
        )
    if result["diverged"]:
        lines.append(f"Left out, as training diverged with every weight: {', '.join(result['diverged'])}.")
    for table in result["tables"]:
        for row in table["rows"]:
            lost = [str(seed) for seed in result["seeds"] if str(seed) not in row["values"]]
            if lost:
                lines.append(
                    f"{row['label']} diverged with seed {', '.join(lost)} at {table['name'].lower()}: its row has the other "
                    "seeds only, and it is not recommended."
                )
    lines += _slow(result.get("slow", {}))  # comparisons of earlier versions do not say
    first, last = result["tables"][0], result["tables"][-1]
    if first["decision"]["outcome"] != last["decision"]["outcome"] or (
        first["decision"]["strategy"] != last["decision"]["strategy"]
    ):
        lines.append(f"At equal steps alone it would be: {first['decision']['text']}")
    return lines


def _slow(runs: Mapping[str, float]) -> list[str]:
    if not runs:
        return []
    named = [f"{path} ({factor:.1f}×)" for path, factor in islice(runs.items(), NAMED)]
    more = f" and {len(runs) - NAMED} more (`slow` in comparison.json)" if len(runs) > NAMED else ""
    text = (
        f"Warning: a step took more than {SPREAD:g} times as long in some runs as in others of the same strategy and length, as "
        "on a machine that is busy with something else, so neither cost nor equal seconds can be relied on. These are "
        f"{', '.join(named)}{more}: delete their folders and give the same command again while nothing else runs."
    )
    return [text]


def _baselines(result: Mapping[str, Any]) -> str:
    first, *others = [str(table["baseline"]) for table in result["tables"]]
    if others == [first]:
        return first
    return ", ".join(f"{table['baseline']} at {table['name'].lower()}" for table in result["tables"])


def percent(value: float | None, sign: str = "") -> str:
    # Adding 0 makes a negative zero positive.
    return "" if value is None or math.isnan(value) else f"{round(100 * value, 1) + 0.0:{sign}.1f}"


def interval(found: Mapping[str, Any], sign: str = "") -> str:
    low, high = percent(found.get("low"), sign), percent(found.get("high"), sign)
    return f"{low} to {high}" if low else ""


def p_value(p: float | None) -> str:
    if p is None or math.isnan(p):
        return ""
    return "<0.001" if p < 0.001 else f"{p:.3f}"
