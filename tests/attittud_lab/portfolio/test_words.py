"""Sentences of a portfolio: which outcome is told when, and that no figure is shown as NaN."""

import math

from attittud_lab.portfolio import words

GAIN = {
    "best": "linear, pooled",
    "reference": "linear, alone",
    "of": 3,
    "difference": 0.0562,
    "low": 0.01,
    "high": 0.09,
}


def test_the_answer_follows_the_interval() -> None:
    answers = {
        words.answer(GAIN | ends) for ends in ({}, {"low": -0.1}, {"low": -0.2, "high": -0.1})
    }
    assert len(answers) == 3
    unknown = GAIN | {"low": math.nan, "high": math.nan}
    assert words.answer(unknown) == words.answer(GAIN | {"low": -0.1})
