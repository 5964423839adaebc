"""Guides for inputs at the edge."""

import warnings

import pytest
import torch
from torch import nn

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


def nan_at(losses: torch.Tensor, i: int = 2) -> torch.Tensor:
    factor = torch.ones_like(losses)
    factor[i] = float("nan")
    return losses * factor


class Vector(nn.Module):
    """Losses with any gradients one likes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(size))
