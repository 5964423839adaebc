"""The table of the demo, and the conclusions under it."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from attittud_lab.compare.decide import Scores, decide
from attittud_lab.demo import QUALITIES, conclusions, grid, rich_table
from attittud_lab.files import without_nan

# ---------------------------------------------------------------------------------------- the table


def made_up(rows: Mapping[str, list[float]]) -> dict[str, Any]:
    """A result with the same accuracies in every quality."""
    scores = [
        Scores(row, dict(enumerate(values)), dict(enumerate(values)))
        for row, values in rows.items()
    ]
    table = without_nan(asdict(decide(scores, 0.005)))
    seeds = list(range(len(rows["primary_only"])))
    for row in table["rows"]:
        row["values"] = {str(seed): {"test": rows[row["label"]][seed]} for seed in seeds}
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


def test_the_portfolio_is_compared_with_the_simple_learner_seed_by_seed() -> None:
    same = ("primary_only", "multitask", "simple_learner")
    rows = dict.fromkeys(same, BASE) | {"portfolio": [value + 0.03 for value in BASE]}
    assert "labels right +3.0;" in conclusions(made_up(rows))[-2]
