"""A Trainer logs the losses and the shares of the parts."""

from unittest.mock import Mock

import pytest
import torch

from attittud.integrations import Latest
from tests.helpers.trainers import SUM, WARNINGS, guided, sequences

pytestmark = WARNINGS


def test_shares_and_losses_are_logged(tmp_path):
    data = {"one": sequences(12, [1], 2), "two": sequences(12, [-1], 3)}
    guide = {**SUM, "primary_weight": 0.5, "auxiliary_weight": {"one": 1.0, "two": 0.25}}
    trainer = guided(tmp_path, {"logging_steps": 2}, auxiliary_datasets=data, guide=guide)
    trainer.train()
    first = trainer.state.log_history[0]
    for prefix in ("", "one/", "two/"):
        shares = [
            first[f"attittud/{prefix}share_{part}"] for part in ("neutral", "helpful", "harmful")
        ]
        assert sum(shares) == pytest.approx(1, abs=1e-6)
        assert all(0 <= share <= 1 for share in shares)
    assert first["loss"] == pytest.approx(
        0.5 * first["loss_primary"] + first["loss_one"] + 0.25 * first["loss_two"], rel=1e-5
    )


def test_a_logged_loss_is_averaged_over_the_steps_that_computed_it():
    latest = Latest()
    for step in range(4):
        if step in (0, 3):
            latest.add("protected", torch.tensor(6.0))
        for _ in range(2):  # micro-batches
            latest.add("new", torch.tensor(1.0))
        latest.take(Mock(refreshed=False))
    expected = {"loss_protected": 6, "loss_new": 2}
    assert {name: float(mean) for name, mean in latest.losses().items()} == expected
    assert latest.losses() == {}
