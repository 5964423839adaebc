"""Write the table of docs/demo.json into docs/appendix/demo.md. After `attittud demo --out
docs/demo.json`.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attittud_lab.compare.candidates import PRIMARY_ONLY
from attittud_lab.demo import MARKS, ROWS, conclusions, grid

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "appendix" / "demo.md"
BEGIN, END = "<!-- from docs/demo.json -->\n", "<!-- end -->\n"


def markdown(result: Mapping[str, Any]) -> str:
    """Return the table of a result."""
    lines = [["", "what it does", *(table["name"] for table in result["tables"])]]
    for label, cells in grid(result).items():
        texts = [f"{own} ({sign} {other})" if sign else own for own, sign, other in cells]
        lines.append([f"`{label}`", ROWS[label][0], *texts])
    return ruled(lines)


def counts(result: Mapping[str, Any]) -> str:
    """Return a table that counts for each column how many rows gain, lose, and do neither."""
    rows = grid(result)
    del rows[PRIMARY_ONLY]
    lines = [[f"of the {len(rows)} other rows", "gain", "lose", "no significant difference"]]
    for column, table in enumerate(result["tables"]):
        count = Counter(cells[column][1] for cells in rows.values())
        lines.append([table["name"], *(str(count[sign]) for sign in "▲▼=")])
    return ruled(lines)


def ruled(lines: list[list[str]]) -> str:
    """Return a Markdown table, of which the first line is the head."""
    head, *rest = lines
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rest])


def section() -> str:
    """Return what the page shows of the committed result."""
    result = json.loads((ROOT / "docs" / "demo.json").read_text(encoding="utf-8"))
    versions, took = result["made_with"], result["took"]
    facts = (
        f"Each cell has the mean ± 95 % t-interval over {len(result['seeds'])} seeds. The brackets have the difference from "
        f"`primary_only`, seed by seed: {MARKS}. The table took {took['processor_seconds']:.0f} s of processor time, shared by "
        f"{took['workers']} processes "
        f"({versions['processor']}, torch {versions['torch']})."
    )
    return "\n\n".join([markdown(result), facts, counts(result), *conclusions(result)[-2:]]) + "\n"


def updated(page: str) -> str:
    """Return a page with the section as the committed result has it."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + section() + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
