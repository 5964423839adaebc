"""The Markdown pages of the repository and the code blocks on them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RECORDS = ("portfolio-never-regret.md", "guard-experiment.md")
EVERY = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
QUESTIONS = sorted(path for path in DOCS.glob("*.md") if path.name not in RECORDS)
"""Pages for readers; others are records, as those in docs/appendix are."""
FENCED = re.compile(
    r"^(?:<!-- not run: (?P<reason>.*) -->\n)?```(?P<language>[^\n]*)\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL
)


def blocks(text: str, language: str) -> list[str]:
    return [found["code"] for found in FENCED.finditer(text) if found["language"] == language]


def without_code(text: str) -> str:
    return FENCED.sub("", text)
