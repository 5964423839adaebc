"""Positions in the pictures of a portfolio."""

import pytest

from attittud_lab.report.pictures import ROW, curves, leaderboard

FIRST = {"label": "a", "score": 0.8, "low": 0.7, "high": 0.9, "color": "c2", "remark": "", "baseline": False, "best": 2}
PLAIN = FIRST | {"label": "primary_only", "score": 0.5, "low": 0.4, "high": 0.6, "baseline": True, "best": 1}


def test_intervals_lie_on_one_axis_from_the_lowest_to_the_highest_end() -> None:
    found = leaderboard([FIRST, PLAIN])
    first, plain = found["items"]
    assert (plain["low"], first["high"]) == pytest.approx((3, 97))
    assert first["low"] < first["at"] < first["high"] and found["baseline"] == plain["at"]
    assert plain["at"] == pytest.approx(3 + 94 * 0.2) and first["text"] == "80.0 %"
    assert [item["top"] for item in found["items"]] == [0, ROW] and found["height"] == 2 * ROW
    assert [tick["text"] for tick in found["ticks"]] == ["40 %", "50 %", "60 %", "70 %", "80 %", "90 %"]


@pytest.mark.parametrize("missing", [{"low": None, "high": None}, {"low": 0.8, "high": 0.8}])
def test_no_interval_is_a_dot(missing: dict[str, float | None]) -> None:
    (item,) = leaderboard([FIRST | missing])["items"]
    assert item["low"] == item["at"] == item["high"] == pytest.approx(50)


def test_a_score_that_is_undefined_has_no_line() -> None:
    found = leaderboard([FIRST, PLAIN | {"score": None}])
    assert [item["label"] for item in found["items"]] == ["a"] and found["baseline"] is None
    assert leaderboard([])["items"] == []


def test_curves_share_their_axes_and_end_where_a_candidate_stops() -> None:
    rows = [
        FIRST | {"curve": [[10, 0.2], [20, 0.4], [30, 0.7]]},
        PLAIN | {"curve": [[10, None], [20, 0.45]]},
        FIRST | {"label": "the model: a mean", "curve": []},
    ]
    rungs, phases = [{"step": 10, "text": "2 of 4 go on"}], [{"step": 15, "text": "finetune"}]
    found = curves({"rows": rows, "rungs": rungs, "phases": phases, "steps": 30})
    first, plain = found["lines"]
    assert first["points"].split()[0] == "34.33,97.00" and first["points"].split()[-1] == "97.00,3.00"
    assert first["best"] == pytest.approx((97, 3)) and (first["dash"], plain["dash"]) == ("", "6 4")
    assert plain["points"] == "65.67,50.00" and len(plain["points"].split()) == 1
    assert [mark["text"] for mark in found["marks"]] == ["rung 1: 2 of 4 go on", "next phase: finetune"]
    assert [tick["text"] for tick in found["columns"]] == ["0", "10", "20", "30"]
    assert all(0 <= tick["at"] <= 100 for tick in found["rows"])
