"""The Markdown pages of the repository and the code blocks on them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EVERY = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
QUESTIONS = sorted(DOCS.glob("*.md"))
"""Pages for readers; those in docs/appendix are records."""
FENCED = re.compile(
    r"^(?:<!-- not run: (?P<reason>.*) -->\n)?```(?P<language>[^\n]*)\n(?P<code>.*?)^```",
    re.MULTILINE | re.DOTALL,
)


def blocks(text: str, language: str) -> list[str]:
    return [found["code"] for found in FENCED.finditer(text) if found["language"] == language]


def without_code(text: str) -> str:
    return FENCED.sub("", text)
