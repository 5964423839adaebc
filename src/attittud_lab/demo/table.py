"""The demo's table for a terminal and the README: a row for each strategy, a column for each quality."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from attittud_lab.compare.candidates import PRIMARY_ONLY
from attittud_lab.compare.table import percent
from attittud_lab.statistics import mark

WIDE = 112  # columns of a terminal that the table fills without two lines to a row
STYLES = {"▲": "green", "▼": "red"}
MARKS = "▲ better, ▼ worse, = not significant (p corrected by Holm for the rows of a column)"


def grid(result: Mapping[str, Any]) -> dict[str, list[tuple[str, str, str]]]:
    """Return the cells of each row: accuracy, and mark and difference to primary_only, empty for that row itself."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for row in (row for table in result["tables"] for row in table["rows"]):
        difference = row["to_primary_only"]
        other = ("", "") if difference is None else (mark(difference["mean"], difference["p"]), _text(difference, "+"))
        found.setdefault(row["label"], []).append((_text(row["test"]), *other))
    return found


def _text(found: Mapping[str, Any], sign: str = "") -> str:
    mean, low, high = (found[name] for name in ("mean", "low", "high"))
    return percent(mean, sign) + ("" if low is None else f" ± {percent(max(high - mean, mean - low))}")


def rich_table(result: Mapping[str, Any]) -> Table:
    """Return the table for a terminal; in a narrow one the difference comes below the accuracy."""
    title = f"Test accuracy (%) with 10 clean labels per class; behind the sign the difference to {PRIMARY_ONLY}"
    caption = f"mean ± 95 % interval over {len(result['seeds'])} seeds; {MARKS}"
    names = [table["name"] for table in result["tables"]]
    found = Table("auxiliary labels:", *names, title=title, caption=caption, box=box.SIMPLE_HEAD)
    for label, cells in grid(result).items():
        texts = (Text(f"{own}  {sign} {other}".rstrip(), STYLES.get(sign, "")) for own, sign, other in cells)
        found.add_row(label, *texts)
    return found


def conclusions(result: Mapping[str, Any]) -> list[str]:
    """Say what the table shows, in words that follow from its marks alone."""
    marks = {label: [sign for _, sign, _ in cells] for label, cells in grid(result).items() if label != PRIMARY_ONLY}
    if any("?" in signs for signs in marks.values()):
        return ["So few seeds have no interval: take more (--seeds) before you conclude anything."]
    lines = []
    for column, table in enumerate(result["tables"]):
        gain, same, lose = (sum(signs[column] == sign for signs in marks.values()) for sign in "▲=▼")
        lines.append(
            f"{table['name']}: {gain} of {len(marks)} rows gain, {lose} lose, {same} do not differ significantly."
        )
    unharmed = [label for label, signs in marks.items() if "▼" not in signs]
    return [*lines, f"Rows that no column shows to lose, which is no proof of it: {', '.join(unharmed) or 'none'}."]
