"""The engine that `auto` picks, and the reason that it logs."""

import pytest
import torch
from torch import nn

from attittud import Eta, Guide
from attittud.autograd.layout import Layout
from attittud.engine import make_engine
from attittud.engine.auto import HOOKS_FROM
from tests.helpers.layers import LIMITS, layer
from tests.helpers.oracle import jacobian


def choices(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines of the log about engines."""
    messages = [record.getMessage() for record in caplog.records]
    return [message for message in messages if message.startswith("engine:")]


def test_auto_chooses_hooks_if_possible_and_logs_it(caplog):
    model, x = nn.Sequential(nn.Linear(20, 150), nn.Tanh(), nn.Linear(150, 50)), torch.randn(8, 20)
    assert sum(p.numel() for p in model.parameters()) > HOOKS_FROM
    guide = Guide(model, eta=Eta(1, 0.5, -1), rank=3, refresh_every=1)
    with caplog.at_level("INFO", logger="attittud"):
        for _ in range(3):
            guide.backward(primary=lambda: model(x).square().mean(1), auxiliary=model(-x).mean())
    (line,) = choices(caplog)
    assert "'hooks'" in line


@pytest.mark.parametrize(
    "name",
    [
        *("batch_norm_on_batch_statistics", "examples_meet_in_a_function"),
        *("lstm", "einsum", "conv_transpose", "linear_positions_first"),
    ],
)
def test_auto_takes_another_engine_and_logs_one_line(name, monkeypatch, caplog):
    monkeypatch.setattr("attittud.engine.auto.HOOKS_FROM", 0)
    case = layer(name)
    engine, layout = make_engine("auto"), Layout(case.model.named_parameters())
    with caplog.at_level("INFO", logger="attittud"):
        for _ in range(2):
            expected = jacobian(case.losses(), case.model, layout.names)
            with engine.watch(case.model):
                rows = engine.jacobian(case.losses(), layout).rows()
            assert torch.allclose(rows, expected)
    (line,) = choices(caplog)
    assert "'loop'" in line and LIMITS[name][2] in line
