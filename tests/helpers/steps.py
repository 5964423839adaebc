"""One step of a guide, and the basis that it stored."""

import torch

from attittud import Guide
from tests.helpers.zoo import Problem


def step(p: Problem, **options):
    """One step of a fresh guide."""
    guide = Guide(p.model, **options)
    p.model.zero_grad()
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    return guide


def stored_basis(guide: Guide, names: list[str]) -> torch.Tensor:
    """V in float64, its columns in the order of ``names``."""
    shared = guide.shared_parameters
    pieces = guide.state_dict()["basis"].double().split([x.numel() for x in shared.values()], dim=1)
    by_name = dict(zip(shared, pieces, strict=True))
    return torch.cat([by_name[name] for name in names], dim=1)
