"""Translated and suspicious labels on a page: matrix or list, and texts of a user that are no
markup.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jinja2 import DictLoader, Environment

from attittud_lab import report
from attittud_lab.portfolio.translations import MOST_NAMES, draw_counts, translate
from attittud_lab.report.translations import suspects, translated
from attittud_lab.uses.base import SourceModels
from attittud_lab.uses.problem import Problem, SourceData

MARKUP = "<b>cat</b>"


def table(classes: int) -> dict[str, Any]:
    """The translations of a source with shifted labels."""
    generator = np.random.default_rng(0)
    right = np.arange(20 * classes) % classes
    features = (np.eye(classes)[right] + 0.1 * generator.normal(size=(len(right), classes))).astype(
        np.float32
    )
    names = [MARKUP, *(f"c{number}" for number in range(1, classes))]
    source = SourceData(MARKUP, features, (right + 1) % classes, names)
    primary = 6 * classes
    problem = Problem(features[:primary], right[:primary], names, False, {MARKUP: source})
    counts = draw_counts(primary, None, 0)
    return translate(problem, source, SourceModels(problem.sources, 0), counts, 0)


def page(board: dict[str, Any]) -> str:
    """The two sections as HTML."""
    template = (Path(report.__file__).parent / "assets" / "portfolio.html").read_text()
    pages = Environment(autoescape=True, loader=DictLoader({"page": template}))
    module: Any = pages.get_template("page").module
    return str(module.translations(translated(board))) + str(module.suspects(suspects(board)))


def suspicious_source(listed: int, **example: str) -> dict[str, Any]:
    top = {
        "example": "row 1",
        "label": MARKUP,
        "proposed": "dog",
        "probability": 0.9,
        "label_probability": 0.01,
    }
    return {
        "source": "web",
        "examined": 10,
        "examples": 20,
        "listed": listed,
        "same_classes": True,
        "rate": 0.1,
        "top": [top | example] if listed else [],
    }


@pytest.mark.parametrize(("classes", "kind"), [(3, "matrix"), (MOST_NAMES + 1, "list")])
def test_many_classes_are_a_list_of_the_largest_entries(classes: int, kind: str) -> None:
    content = table(classes)
    (part,) = translated({"translations": [content]})
    assert part["kind"] == kind
    pairs = {(sentence["label"], sentence["class"]) for sentence in content["sentences"]}
    names = content["classes"]
    assert pairs <= {(names[(number + 1) % classes], names[number]) for number in range(classes)}
    if kind == "list":
        # The row before a column's class in the order of classes: the shift.
        assert all(
            (names.index(row[0]) + 1) % classes == names.index(row[1]) for row in part["rows"]
        )
    else:
        shares = [[cell["share"] for cell in row["cells"]] for row in part["rows"]]
        assert [int(np.argmax(row)) for row in shares] == [1, 2, 0]


def test_names_and_texts_of_a_user_are_no_markup() -> None:
    for classes in (3, MOST_NAMES + 1):
        board = {
            "translations": [table(classes)],
            "suspicious": [suspicious_source(1, text="<script>"), suspicious_source(0)],
        }
        html = page(board)
        assert MARKUP not in html
        assert "<script>" not in html
        assert "&lt;b&gt;cat" in html
        assert html.count("<figure") == 1


def test_a_job_without_labelled_sources_has_neither_section() -> None:
    assert page({"translations": [], "suspicious": [suspicious_source(0)]}).strip() == ""
