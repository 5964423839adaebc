"""The canonical basis compares single coordinates, and is never stored."""

import pytest

from attittud import Eta, Guide
from tests.helpers.steps import step
from tests.helpers.zoo import problem


def test_canonical_basis_is_never_stored():
    p = problem("mlp")
    guide = step(p, eta=Eta(1, 0, 0), basis="canonical")
    V = guide.state_dict()["basis"]
    assert V is None or V.numel() == 0


def test_scores_do_not_depend_on_the_chunks_in_which_coordinates_are_compared(monkeypatch):
    """The scores of eta="auto" compare the judges' gradient with each part of an auxiliary one."""

    def scores() -> list[float]:
        p = problem("mlp")
        guide = Guide(p.model, eta="auto", basis="canonical")
        judge = slice(0, 3)
        report = guide.backward(
            primary=p.losses(), auxiliary=p.loss(), judge=lambda: p.losses(judge)
        )
        earned = report.tasks["auxiliary"].earned
        return earned.score.tolist()

    whole = scores()
    monkeypatch.setattr("attittud.basis.canonical.chunk_size", lambda _: 7)
    assert scores() == pytest.approx(whole)
