"""Guides for inputs at the edge."""

import warnings

import pytest

from attittud import AccumulationWarning, Eta, Guide

ETA = (1, 0.5, -1)


@pytest.fixture(autouse=True)
def few_warnings():
    """At most one warning in a test, however many steps it takes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", AccumulationWarning)  # there is no optimizer here
        yield caught
    assert len(caught) <= 1, [str(w.message) for w in caught]


def guide_for(p, **options) -> Guide:
    return Guide(
        p.model,
        **{"eta": Eta(*ETA), "rank": 4, "primary_weight": 0.1, "refresh_every": 3} | options,
    )
