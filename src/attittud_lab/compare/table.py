"""Show a comparison: tables, decision and notes. Works on the content of comparison.json."""

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

from attittud_lab.compare.candidates import MULTITASK, PRIMARY_ONLY
from attittud_lab.compare.decide import SPREAD, few_examples
from attittud_lab.errors import command, counted
from attittud_lab.statistics import FEWEST, ROUNDING, mark

NAMED = 3  # slow runs in a warning
WIDE = 110  # width of a terminal from which all columns fit
DECIDED = " ◀"
NOTHING = "–"  # in a cell that cannot have a figure
_MEANINGS = {
    "▲": f"shown to be better than {PRIMARY_ONLY} (Holm-corrected p below 0.05)",
    "▼": f"shown to be worse than {PRIMARY_ONLY} (Holm-corrected p below 0.05)",
    "=": "no difference shown",
    "?": "too few seeds to tell",
}

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
    """Show the tables, the decision with the next command, and notes. `page` is the report, which has more."""
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
    folder, decision = Path() if page is None else page.parent, result["decision"]
    at = result["tables"][deciding(result)]["name"].lower()
    screen.say(f"Decision at {at}: {decision['text']}", f"bold {_COLORS[decision['outcome']]}")
    if step := next_step(folder, result):  # a command that is broken into two lines cannot be copied
        screen.say(f"Next: {f'`{command}` ' if (command := step.get('command')) else ''}{step['why']}.", wrap=False)
    screen.say("")
    for line in notes(result, folder):
        screen.say(line, wrap="`attittud" not in line)
    if hidden:
        names = ", ".join(name for name in hidden if name in rows[0])
        screen.say(f"A terminal of {WIDE} columns, and the report, also show {names}.")
    if page is not None:
        screen.say(f"Curves: {page}", wrap=False)


def deciding(result: Mapping[str, Any]) -> int:
    """The number of the table that decided: the one at equal seconds, if there is one."""
    names = [table["name"] for table in result["tables"]]
    return names.index(result["decision"]["table"])


def decided_row(result: Mapping[str, Any], table: int) -> str | None:
    """The row of a table that the decision is about; None if no strategy can be compared."""
    decision = result["decision"]
    found = decision.get("row", decision["strategy"])
    unclear = decision["outcome"] == "unclear" and found == PRIMARY_ONLY
    return found if table == deciding(result) and not unclear else None


def badge(result: Mapping[str, Any]) -> str:
    """What the mark at a row means, in the report: without a decision, no row may look decided."""
    return "best on validation" if result["decision"]["outcome"] == "unclear" else "decision"


def about(table: Mapping[str, Any]) -> str:
    return f"{table['about']}. Differences are relative to {PRIMARY_ONLY}, the baseline."


def next_step(folder: Path, result: Mapping[str, Any]) -> dict[str, str] | None:
    """The next command, if there is one, and what it does: test more, or use the recommended model in the `folder`."""
    if "next" in result:
        found: dict[str, str] = result["next"]
        return found
    if (run := recommended_run(result)) is None:
        return None
    why = f"predicts with the model of {result['decision']['strategy']}, seed {run[0]}"
    return {"command": command("predict", folder / run[1], "INPUTS"), "why": why}


def recommended_run(result: Mapping[str, Any]) -> tuple[str, str] | None:
    """The seed and the folder, inside the comparison's, of the run whose model is recommended."""
    strategy, rows = result["decision"]["strategy"], result["tables"][deciding(result)]["rows"]
    runs: Mapping[str, str] = next((row["runs"] for row in rows if row["label"] == strategy), {})
    return next(iter(runs.items()), None)


def cells(result: Mapping[str, Any], table: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, str]:
    """The texts of a row: figures in per cent, differences in points."""
    weight, cost = result["tuning"]["chosen"].get(row["label"]), result["costs"][row["label"]]
    test, difference = row["test"], row["to_primary_only"] or {}
    single = scatter(table, row) if difference else []
    few, p = len(result["seeds"]) < FEWEST, difference["p"] if difference.get("n", 0) >= FEWEST else None
    # A row that shares no seed with the baseline has no difference either.
    without = "baseline" if row["label"] == PRIMARY_ONLY else NOTHING
    return {
        "strategy": row["label"],
        "weight": NOTHING if weight is None else f"{weight:g}",
        "test %": percent(test["mean"]),
        "std": percent(test["std"]),
        "single seeds" if few else "95 %": interval(test, [value["test"] for value in row["values"].values()]),
        "difference": f"{_mark(difference)} {percent(difference['mean'], '+')}" if difference else without,
        "seed by seed" if few else "its 95 %": interval(difference, single, "+") if difference else NOTHING,
        "p": NOTHING if p is None or math.isnan(p) else "<0.001" if p < 0.001 else f"{p:.3f}",
        "steps": str(sum(row["steps"].values())),
        "s/step": f"{cost['seconds_per_step']:.2g}",
        "cost": f"{cost['to_multitask']:.2f}×",
    }


def scatter(table: Mapping[str, Any], row: Mapping[str, Any]) -> list[float]:
    """The differences of a row to primary_only, seed by seed."""
    (base,) = (other["values"] for other in table["rows"] if other["label"] == PRIMARY_ONLY)
    return [value["test"] - base[seed]["test"] for seed, value in row["values"].items() if seed in base]


def by_label(table: Mapping[str, Any]) -> list[dict[str, str]]:
    """With several labels at once: a row for each strategy with the figures of every label; else empty."""
    return [
        {"strategy": row["label"], **{name: _of_label(found) for name, found in row["labels"].items()}}
        for row in table["rows"]
        if row["labels"]
    ]


def _of_label(found: Mapping[str, Any]) -> str:
    mean, more = percent(found["mean"]), interval(found, found.get("values", ()))
    return f"{mean} ({more})" if mean and more else mean or "undefined"


def notes(result: Mapping[str, Any], folder: Path) -> list[str]:
    """Notes that are needed to read the tables; `folder` is where the comparison is."""
    tuning, n = result["tuning"], len(result["seeds"])
    weights = ", ".join(f"{weight:g}" for weight in tuning["weights"])
    searched = "".join(f", {path} among {', '.join(values)}" for path, values in tuning["space"].items())
    fixed = "".join(f" and {path} {values[0]}" for path, values in tuning["space"].items())
    rows = [row for table in result["tables"] for row in table["rows"]]
    found = [row["to_primary_only"] for row in rows if row["to_primary_only"]]
    used = {_mark(difference) for difference in found}
    marks = "".join(f" {sign} {meaning}." for sign, meaning in _MEANINGS.items() if sign in used)
    scatter = (
        f"With fewer than {FEWEST} seeds there is no interval and no test; each seed is shown instead."
        if n < FEWEST
        else "Intervals show how much results would vary with other seeds, not with other data sets."
    )
    tuned = (
        f"Every strategy with auxiliary data chose its weight on validation among {weights}{searched}, in "
        f"at most {tuning['runs_each']} runs."
        if tuning["runs_each"] > 1
        else f"Nothing was tuned: every strategy has the weight {weights}{fixed}."
    )
    tuned += _edge(tuning)
    decision, quick = result["decision"], result.get("gave_up")
    if quick and (whole := result.get("whole")):
        quick += f" The same command without --quick {whole['why']}."
    # A decision that asks for more test examples has said it.
    few = "" if decision.get("few_examples") else few_examples(result["examples"]["test"], result["metric"])
    marked = "the row of the decision"
    if decision["outcome"] == "unclear":
        marked = "the strategy with auxiliary data that is best on validation"
    arrow = "" if decided_row(result, deciding(result)) is None else f"{DECIDED} marks {marked}."
    lines = [
        *filter(None, [few, quick]),
        (
            f"Figures are means of the test {result['metric']} over {counted(n, 'seed')}. Differences are in points; each "
            f"compares runs with the same seed.{marks}{arrow} Cost is the time of a step relative to multitask. {scatter}"
        ),
        tuned,
        *(f"Settings of {label}: {' '.join(changes)}." for label, changes in tuning["changes"].items()),
    ]
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
    slow = {str(folder / path): factor for path, factor in result["slow"].items()}
    timed = [table["name"].lower() for table in result["tables"][1:]]
    lines += _slow(slow, timed, several=result["at_once"] > 1)
    first, last = result["tables"][0]["decision"], result["decision"]
    if (first["outcome"], first["strategy"]) != (last["outcome"], last["strategy"]):
        lines.append(f"At equal steps alone the decision would be: {first['text']}")
    return lines


def _edge(tuning: Mapping[str, Any]) -> str:
    """Say if multitask was best with the smallest or the largest weight, and not as good with any other."""
    chosen, weights = tuning["chosen"][MULTITASK], tuning["weights"]
    tries = [tried for tried in tuning["validation"].get(MULTITASK, ()) if tried["mean"] is not None]
    best = max((tried["mean"] for tried in tries), default=None)
    alone = {tried["weight"] for tried in tries if tried["mean"] == best} == {chosen}
    if len(weights) < 2 or chosen not in (weights[0], weights[-1]) or not alone:
        return ""
    end = "smallest" if chosen == weights[0] else "largest"
    return f" Multitask chose {chosen:g}, the {end} weight tried: a wider range in compare.weights would be fairer."


def _slow(runs: Mapping[str, float], timed: Sequence[str], *, several: bool) -> list[str]:
    """Warn of slow runs; `timed` are the tables that depend on seconds, `several` runs were trained at a time."""
    if not runs:
        return []
    if not timed:
        return ["The costs are not reliable: a step of the same strategy did not always take the same time."]
    wrong = " and ".join(["the costs", *(f"the table at {name}" for name in timed)])
    if several:
        return [f"Warning: several runs were trained at a time, so {wrong} are not reliable."]
    named = [f"{path} ({factor:.1f}×)" for path, factor in islice(runs.items(), NAMED)]
    more = f" and {len(runs) - NAMED} more (`slow` in comparison.json)" if len(runs) > NAMED else ""
    text = (
        f"Warning: in some runs a step took more than {SPREAD:g} times as long as in others of the same strategy and length, "
        f"perhaps because the machine was busy. So {wrong} are not reliable. Delete the folders of the slow runs, and give the "
        f"same command again while nothing else runs: {', '.join(named)}{more}."
    )
    return [text]


def percent(value: float | None, sign: str = "") -> str:
    # Adding 0 makes a negative zero positive.
    return "" if value is None or math.isnan(value) else f"{round(100 * value, 1) + 0.0:{sign}.1f}"


def flat(found: Mapping[str, Any]) -> bool:
    """Whether all values are equal: their interval has no width, which would look like certainty."""
    return bool(found["n"] >= FEWEST and found["std"] <= ROUNDING)


def interval(found: Mapping[str, Any], values: Sequence[float], sign: str = "") -> str:
    """Format the interval of a proportion in per cent, or with a `sign` of a difference; too few values are listed instead."""
    if len(values) == 1:
        return "one seed"
    if found["n"] < FEWEST:
        return " / ".join(percent(value, sign) for value in values)
    if flat(found):
        return f"all {found['n']} equal"
    low, high = found["low"], found["high"]
    ends = percent(low, sign), percent(high, sign)
    return f"± {50 * (high - low):.1g}" if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def bar(found: Mapping[str, Any] | None, values: Sequence[float]) -> dict[str, Any] | None:
    """Return a difference as the report draws it; the ends are None where there is no interval to draw."""
    if not found:
        return None
    low, high = (None, None) if found["n"] < FEWEST or flat(found) else (found["low"], found["high"])
    return {"mean": found["mean"], "low": low, "high": high, "values": list(values), "mark": _mark(found)}


def _mark(difference: Mapping[str, Any]) -> str:
    return mark(difference["mean"], difference["p"] if difference["n"] >= FEWEST else None)
