"""Write the table of docs/demo.json into the README. After `attittud demo --out docs/demo.json`."""

import json
from pathlib import Path

from attittud_lab.demo.table import conclusions, markdown

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- from docs/demo.json -->\n", "<!-- end -->\n"


def section() -> str:
    """What the README shows of the committed result."""
    results = json.loads((ROOT / "docs" / "demo.json").read_text(encoding="utf-8"))
    versions = results["made_with"]
    facts = (
        f"Mean ± 95 % t-interval over {len(results['settings']['seeds'])} seeds, in brackets the difference to `primary_only` "
        f"seed by seed: ▲ better, ▼ worse, = no difference seen. {results['processor_seconds']:.0f} s of processor "
        f"time, shared by {results['workers']} processes ({versions['processor']}, torch {versions['torch']})."
    )
    return "\n\n".join([markdown(results), facts, "\n".join(f"- {line}" for line in conclusions(results))]) + "\n"


def updated(readme: str) -> str:
    """The README with the section as the committed result has it."""
    before, rest = readme.split(BEGIN)
    return before + BEGIN + section() + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(updated(path.read_text(encoding="utf-8")), encoding="utf-8")
