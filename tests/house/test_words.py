"""Docstrings and comments of the source, and pages of docs use plain words: no private metaphor, no docstring with "Of" first."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.pages import QUESTIONS, without_code
from tests.helpers.rooms import ROOT

FILES = sorted((ROOT / "src").rglob("*.py"))
METAPHORS = re.compile(
    r"\b(hearings?|heard|verdicts?|meets?|meetings?|places|pieces?|beside|anew|mended|knots?|in office|said of|the same of"
    r"|for the sake of|what of it)\b",
    re.IGNORECASE,
)
QUOTED = re.compile(r"`[^`]*`")
"""Names of code and of file formats may have any words."""


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Texts that stand alone as a statement: the docstrings of modules, classes, functions and attributes, with their lines."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def metaphors(text: str) -> list[str]:
    found = [*docstrings(text), *comments(text)]
    return [f"line {line}: {word[0]}" for line, words in found for word in METAPHORS.finditer(QUOTED.sub("", words))]


def begins_with_of(text: str) -> list[int]:
    return [line for line, words in docstrings(text) if words.lstrip().startswith("Of ")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_source_uses_plain_words(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not metaphors(text)
    assert not begins_with_of(text)


@pytest.mark.parametrize("path", [ROOT / "README.md", *QUESTIONS], ids=lambda path: path.name)
def test_a_page_uses_plain_words(path: Path) -> None:
    text = QUOTED.sub("", without_code(path.read_text(encoding="utf-8")))
    assert [word[0] for word in METAPHORS.finditer(text)] == []


def test_a_metaphor_is_found_in_docstrings_and_comments_only() -> None:
    text = '"""Of a step.\n\nThe hearing, not `verdict`."""\nheard = "verdict"  # computed anew\n'
    assert metaphors(text) == ["line 1: hearing", "line 4: anew"]
    assert begins_with_of(text) == [1]
