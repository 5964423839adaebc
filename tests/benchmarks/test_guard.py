"""What protecting costs: every kind of step runs in tiny form, and the page says what was measured."""

import json

import pytest

pytest.importorskip("peft", reason="needs peft")
pytest.importorskip("transformers", reason="needs the extra 'transformers'")

from benchmarks.guard import ALONE, BEGIN, END, MODELS, OFTEN, PAGE, PAIRS, SKIPPING, SUM, measure, section
from benchmarks.results import load


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_step_is_measured(name: str) -> None:
    point = measure(name, device="cpu", quick=True, seed=0, seconds=0.0)
    assert {ALONE, SUM, *PAIRS, *SKIPPING} == set(point["seconds"]) and point["rounds"] == 2
    # The first of two rounds has every kind of step, the second the steps with a goal.
    assert all(found["n"] == (2 if label in OFTEN else 1) for label, found in point["ratios"].items())
    assert all(found["median"] > 0 for found in point["ratios"].values())
    assert {"ogpsa, mean of 30", "gru every 30, mean of 30"} <= point["ratios"].keys()
    about = {"hardware": {"device": "cpu"}}
    point["ratios"]["a_gem"]["median"], point["ratios"]["ogpsa"]["median"] = 1.08, 1.2
    point["ratios"]["gru every 30"]["median"] = 1.0
    point["ratios"]["ogpsa, mean of 30"]["median"], point["ratios"]["gru every 30, mean of 30"]["median"] = 1.09, 1.11
    text = section(
        {"guard": {"provenance": about, "points": {name: json.loads(json.dumps(point)) | {"revision": "abc"}}}}
    )
    assert "losses: 1.080, met" in text and "alone: 1.200, missed" in text and "revision abc" in text
    assert "with new data alone: 1.110, missed" in text
    assert text.count("| a_gem |") == 1


def test_the_page_says_what_was_measured() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert section(load()) in text and text.count(BEGIN) == text.count(END) == 1, "run `python -m benchmarks.page`"
