"""The engine that `auto` picks, and the reason that it logs."""

import logging

import pytest
import torch
from torch import Tensor, nn

from attittud import Eta, Guide
from attittud.engine.auto import HOOKS_FROM
from tests.helpers.oracle import error

ETA = Eta(neutral=1, helpful=0.5, harmful=-1)


def wide(*layers: nn.Module) -> tuple[nn.Module, Tensor]:
    """A model that is wide enough for the engine `hooks`."""
    model = nn.Sequential(nn.Linear(20, 150), *layers, nn.Linear(150, 50))
    assert sum(p.numel() for p in model.parameters()) > HOOKS_FROM
    return model, torch.randn(8, 20)


def test_auto_chooses_hooks_if_possible_and_logs_it(caplog):
    model, x = wide(nn.Tanh())
    guide = Guide(model, eta=ETA, rank=3, refresh_every=1)
    with caplog.at_level(logging.INFO, logger="attittud"):
        for _ in range(3):
            guide.backward(primary=lambda: model(x).square().mean(1), auxiliary=model(-x).mean())
    choices = [r.message for r in caplog.records if r.message.startswith("engine:")]
    assert len(choices) == 1 and "'hooks'" in choices[0]


@pytest.mark.parametrize("coupling", ["module", "function"])
def test_auto_chooses_another_engine_and_logs_the_reason(caplog, coupling):
    model, x = wide(nn.BatchNorm1d(150) if coupling == "module" else nn.Tanh())

    def losses() -> Tensor:
        out = model(x).square().mean(1)
        return out - 0.5 * out.mean() if coupling == "function" else out

    grads = []
    for engine in ("loop", "auto"):
        model.zero_grad()
        guide = Guide(model, eta=ETA, rank=3, refresh_every=1, engine=engine)
        with caplog.at_level(logging.INFO, logger="attittud"):
            guide.backward(primary=losses, auxiliary=model(-x).mean())
        grads.append({name: p.grad.clone() for name, p in model.named_parameters()})
    assert error(grads[1], grads[0]) < 1e-5
    assert "engine: 'loop'" in caplog.text
    found = "'1' (BatchNorm1d)" if coupling == "module" else "examples influence each other"
    assert found in caplog.text
