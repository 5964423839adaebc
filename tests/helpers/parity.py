"""A model that is wide enough for the engine `hooks`."""

import torch
from torch import Tensor, nn

from attittud import Eta
from attittud.engine.auto import HOOKS_FROM

ETA = Eta(neutral=1, helpful=0.5, harmful=-1)


# --------------------------------------------------------------------------------------------- auto


def wide(*layers: nn.Module) -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(nn.Linear(20, 150), *layers, nn.Linear(150, 50))
    assert sum(p.numel() for p in model.parameters()) > HOOKS_FROM
    return model, torch.randn(8, 20)
