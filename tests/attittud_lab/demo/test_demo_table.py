"""The table of the demo, and the conclusions under it."""

from collections.abc import Mapping
from dataclasses import asdict
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from attittud_lab.compare.decide import Scores, decide
from attittud_lab.demo import QUALITIES, ROWS, WIDE, conclusions, grid, own_options, rich_table
from attittud_lab.files import without_nan
from attittud_lab.statistics import paired

# ---------------------------------------------------------------------------------------- the table


def made_up(rows: Mapping[str, list[float]]) -> dict[str, Any]:
    """A result with the same accuracies in every quality."""
    scores = [
        Scores(row, dict(enumerate(values)), dict(enumerate(values)))
        for row, values in rows.items()
    ]
    table = without_nan(asdict(decide(scores, 0.005)))
    seeds = list(range(len(rows["primary_only"])))
    return {
        "seeds": seeds,
        "tables": [{"name": quality, "rows": table["rows"]} for quality in QUALITIES],
    }


BASE = [0.80, 0.85, 0.90, 0.82, 0.87]


EXAMPLE = made_up(
    {
        "primary_only": BASE,
        "multitask": [0.82, 0.871, 0.919, 0.84, 0.89],
        "flip": [0.70, 0.752, 0.798, 0.72, 0.77],
        "auto": [0.83, 0.82, 0.91, 0.85, 0.84],
    }
)


def test_differences_are_paired() -> None:
    """The seeds differ by ten points, the rows by two: only a comparison seed by seed shows the
    difference.
    """
    assert {label: cells[0][1] for label, cells in grid(EXAMPLE).items()} == {
        "primary_only": "",
        "multitask": "▲",
        "flip": "▼",
        "auto": "=",
    }


def test_a_mark_says_no_more_than_the_corrected_p_value() -> None:
    """Each of these rows would be significant alone, but not as one of ten."""
    apart = [0.04, 0.01, 0.03, 0.0, 0.04]
    alone = paired([a + b for a, b in zip(BASE, apart, strict=True)], BASE)
    assert alone.p < 0.05 and alone.low > 0
    names = [row for row in ROWS if row != "primary_only"]
    rows = {
        name: [a + b for a, b in zip(BASE, apart[n % 5 :] + apart[: n % 5], strict=True)]
        for n, name in enumerate(names)
    }
    result = made_up({"primary_only": BASE, **rows})
    assert {sign for label in names for _, sign, _ in grid(result)[label]} == {"="}
    assert f"no significant difference {len(names)}" in conclusions(result)[0]


@pytest.mark.parametrize("width", [80, WIDE])
def test_the_table_is_printed_on_the_terminal(width: int) -> None:
    console = Console(width=width, file=StringIO())
    console.print(rich_table(EXAMPLE))
    text = console.file.getvalue()
    assert "+2.0 ± 0.1" in text and "-10.0 ± 0.2" in text and "84.8 ± 4.9" in text
    assert "over 5 seeds" in text and "corrected by Holm" in " ".join(text.split())
    assert "…" not in text


def test_conclusions_follow_from_the_marks() -> None:
    lines = conclusions(EXAMPLE)
    assert "labels right: of 3 rows, gains 1, losses 1, no significant difference 1." in lines
    assert lines[-1].endswith("multitask, auto.")
    few = made_up({"primary_only": [0.8, 0.8], "multitask": [0.9, 0.91]})
    assert "use more (--seeds)" in conclusions(few)[0] and grid(few)["multitask"][0] == (
        "90.5",
        "?",
        "+10.5",
    )
    caption = str(rich_table(few).caption)
    assert caption == "mean over 2 seeds; ? too few seeds to tell" and "interval" in str(
        rich_table(EXAMPLE).caption
    )


def test_a_decision_names_the_option_of_the_demo() -> None:
    few, open_ = (
        decide(scores(*values), 0.005).decision.text
        for values in ([0.81, 0.85], [0.81, 0.85, 0.83, 0.82])
    )
    assert "compare.seeds to at least 5." in few and "in 80% of cases (compare.seeds=" in open_
    assert own_options(few).endswith(": raise --seeds to at least 5.")
    assert "in 80% of cases (--seeds " in own_options(open_) and "compare" not in own_options(open_)


def scores(*values: float) -> list[Scores]:
    rows = {"primary_only": [0.82] * len(values), "multitask": values}
    return [
        Scores(row, dict(enumerate(found)), dict(enumerate(found))) for row, found in rows.items()
    ]
