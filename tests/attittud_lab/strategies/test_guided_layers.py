"""Parts by layer against `decompose` on plain vectors, and against the Guide's own report."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attittud import Eta, Guide, decompose
from attittud_lab.strategies.guided import PARTS, layer_norms


class Losses:
    """Two sources and a primary task on one convolutional body."""

    auxiliary_examples = 8

    def __init__(self, *, norm: bool = False) -> None:
        middle = nn.BatchNorm2d(4) if norm else nn.Identity()
        layers = (nn.Conv2d(2, 4, 3), middle, nn.Flatten(), nn.Linear(16, 6), nn.Tanh())
        self.body = nn.Sequential(*layers)
        self.model = nn.ModuleDict({"body": self.body, "head": nn.Linear(6, 3)}).double()
        self.model.to(memory_format=torch.channels_last)
        self.x = torch.randn(3, 8, 2, 4, 4, dtype=torch.float64)
        self.y = torch.randint(3, (8,))

    def primary(self, *, detach: bool = False, count: int | None = None) -> Tensor:
        return F.cross_entropy(self.model["head"](self.body(self.x[0])), self.y, reduction="none")

    def auxiliary(self) -> dict[str, Tensor]:
        one, two = self.body(self.x[1]), self.body(self.x[2])
        return {"one": one.square().mean(), "two": two.sum(1).mean()}

    def basis(self) -> Tensor:
        return self.primary()


@pytest.mark.parametrize("basis", ["sketch", "canonical"])
@pytest.mark.filterwarnings("ignore:.*rank=3 is not used")
def test_the_parts_of_every_layer_equal_the_definition(basis):
    losses = Losses()
    include_mean = basis != "canonical"
    settings = {"rank": 3, "basis": basis, "include_mean": include_mean, "engine": "loop"}
    guide = Guide(losses.model, eta=Eta(1, 1, 0), refresh_every=5, **settings)
    assert layer_norms(guide, losses) == {}
    report = guide.backward(losses.primary(), losses.auxiliary())
    found = layer_norms(guide, losses)
    names = list(guide.shared_parameters)
    assert set(found) == {f"{group}/{part}" for group in ("body.0", "body.3") for part in PARTS}

    # All layers together are what the step reported.
    for part in PARTS:
        total = sum(value**2 for name, value in found.items() if name.endswith(part)) ** 0.5
        # (the neutral norm there is the root of a difference of squares)
        assert total == pytest.approx(float(getattr(report, part)), rel=1e-9, abs=1e-6)

    # Each layer alone, from the pure maths.
    def flat(loss: Tensor) -> Tensor:
        gradients = torch.autograd.grad(loss, list(guide.shared_parameters.values()))
        return torch.cat([g.reshape(-1) for g in gradients])

    size = flat(losses.primary().mean()).numel()
    saved = guide.state_dict()["basis"]
    rows = torch.eye(size, dtype=torch.float64) if saved is None else saved
    start = 0
    squares: dict[str, float] = {}
    for name, parameter in guide.shared_parameters.items():
        piece = slice(start, start + parameter.numel())
        start = piece.stop
        for loss in losses.auxiliary().values():
            primary = flat(losses.primary().mean())
            parts = decompose(flat(loss), primary, rows, include_mean=include_mean)
            for part in PARTS:
                key = f"{name.rpartition('.')[0]}/{part}"
                square = float(getattr(parts, part)[piece].square().sum())
                squares[key] = squares.get(key, 0) + square
    assert start == size and len(names) == 4
    shown = {name: value**2 for name, value in found.items()}
    assert shown == pytest.approx(squares, rel=1e-9, abs=1e-12)


def test_measuring_layers_has_no_side_effects():
    losses = Losses(norm=True)
    guide = Guide(losses.model, eta=Eta(1, 1, 0), rank=3, engine="loop")
    guide.backward(losses.primary(), losses.auxiliary())

    def state() -> list[Tensor]:
        gradients = [p.grad for p in losses.model.parameters() if p.grad is not None]
        return [torch.get_rng_state(), *losses.model.buffers(), *gradients]

    before = [tensor.clone() for tensor in state()]
    assert layer_norms(guide, losses)
    assert len(before) == len(state()) and all(map(torch.equal, before, state()))
    assert losses.model.training
