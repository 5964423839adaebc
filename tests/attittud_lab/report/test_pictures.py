"""Positions in the pictures of scores."""

import pytest

from attittud_lab.report.pictures import REMARK, ROW, curves, leaderboard

FIRST = {
    "label": "a",
    "score": 0.8,
    "low": 0.7,
    "high": 0.9,
    "color": "c2",
    "remark": "",
    "best": 2,
}
FIRST |= {"baseline": False, "dash": ""}
PLAIN = FIRST | {"label": "primary_only", "score": 0.5, "low": 0.4, "high": 0.6, "best": 1}
PLAIN |= {"baseline": True, "dash": "6 4"}


def test_intervals_lie_on_one_axis_from_the_lowest_to_the_highest_end() -> None:
    found = leaderboard([FIRST, PLAIN])
    first, plain = found["items"]
    assert (plain["low"], first["high"]) == pytest.approx((5, 95))
    (own,), (other,) = first["dots"], plain["dots"]
    assert first["low"] < own < first["high"] and found["baseline"] == other
    assert other == pytest.approx(5 + 90 * 0.2) and first["text"] == "80.0 %"
    assert [item["top"] for item in found["items"]] == [0, ROW] and found["height"] == 2 * ROW
    noted = leaderboard([FIRST | {"remark": "stopped"}, PLAIN])  # a remark has a line of its own
    assert [item["top"] for item in noted["items"]] == [0, ROW + REMARK] and noted[
        "height"
    ] == 2 * ROW + REMARK
    assert [tick["text"] for tick in found["ticks"]] == [
        "40 %",
        "50 %",
        "60 %",
        "70 %",
        "80 %",
        "90 %",
    ]


def test_curves_share_their_axes_and_end_where_a_candidate_stops() -> None:
    rows = [
        FIRST | {"curve": [[10, 0.2], [20, 0.4], [30, 0.7]]},
        PLAIN | {"curve": [[10, None], [20, 0.45]]},
        FIRST | {"label": "the model: a mean", "curve": []},
    ]
    rungs, phases = [{"step": 10, "text": "2 of 4 go on"}], [{"step": 15, "text": "finetune"}]
    found = curves({"rows": rows, "rungs": rungs, "phases": phases, "steps": 30})
    first, plain = found["lines"]
    assert (
        first["points"].split()[0] == "35.00,95.00" and first["points"].split()[-1] == "95.00,5.00"
    )
    assert first["best"] == pytest.approx((95, 5)) and (first["dash"], plain["dash"]) == ("", "6 4")
    assert plain["points"] == "65.00,50.00" and len(plain["points"].split()) == 1
    assert [mark["text"] for mark in found["marks"]] == [
        "rung 1: 2 of 4 go on",
        "next phase: finetune",
    ]
    assert [tick["text"] for tick in found["columns"]] == ["0", "10", "20", "30"]
    assert all(0 <= tick["at"] <= 100 for tick in found["rows"])


def test_differences_have_a_baseline_at_zero_and_the_axis_of_all_panels() -> None:
    gain = FIRST | {"score": 0.1, "low": 0.05, "high": 0.15}
    loss = FIRST | {"score": -0.05, "low": None, "high": None, "values": [-0.1, 0.0]}
    found, other = (leaderboard([row], [gain, loss], "+") for row in (gain, loss))
    assert (
        found["baseline"] == other["baseline"] == pytest.approx(5 + 90 * 0.4)
        and found["ticks"] == other["ticks"]
    )
    assert (found["items"][0]["text"], other["items"][0]["text"]) == ("+10.0", "-5.0")
    assert other["items"][0]["dots"] == pytest.approx([5, 41])  # one for each seed
    assert [tick["text"] for tick in found["ticks"]] == ["-10", "-5", "0", "+5", "+10", "+15"]
