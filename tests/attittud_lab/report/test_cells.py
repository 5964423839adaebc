"""Cells of tables: undefined figures, missing intervals, and the mark of a bar."""

from attittud_lab.report.cells import bar, difference, ends, milliseconds, percent, sure


def test_figures_that_are_not_there_are_named_not_shown() -> None:
    assert (percent(0.505), percent(None)) == ("50.5 %", "undefined")
    assert (difference(-0.0123), difference(None)) == ("-1.2", "undefined")
    assert ends({"low": 0.1, "high": 0.2}) == "10.0 to 20.0"
    assert ends({"low": -0.1, "high": 0.2}, "+") == "-10.0 to +20.0"
    assert ends({"low": None, "high": None}) == ends({}) == "no interval"
    assert milliseconds(0.00123) == "1.2 ms"


def test_the_mark_says_whether_zero_is_inside_of_the_interval() -> None:
    for low, high, mark, word in [
        (0.01, 0.2, "▲", "helped"),
        (-0.2, -0.01, "▼", "harmed"),
        (-0.1, 0.1, "=", "unclear"),
        (None, None, "?", "unclear"),
    ]:
        gain = {"difference": 0.05, "low": low, "high": high}
        drawn = bar(gain)
        assert drawn is not None
        assert (drawn["mark"], drawn["mean"], sure(gain)) == (mark, 0.05, word)


def test_a_baseline_and_an_undefined_difference_have_no_bar() -> None:
    assert bar(None) is None
    assert bar({"difference": None, "low": None, "high": None}) is None
    assert sure({"difference": None}) == "unclear"
