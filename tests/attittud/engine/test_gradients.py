"""Per-example gradients in factors: every order of contraction, and the precision of their
products.
"""

from typing import ClassVar

import pytest
import torch
import torch._dynamo
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attittud import Eta, Guide
from attittud.engine import UnsupportedError
from attittud.engine.gradients import Dense
from tests.helpers.comparing import compare
from tests.helpers.layers import layer
from tests.helpers.zoo import problem

ETA = Eta(neutral=1, helpful=0.5, harmful=-1)


class TF32(TorchDispatchMode):
    """What a GPU does to products of float32 matrices, their operands rounded to 10 bits."""

    FIRST: ClassVar = {
        "mm": 0,
        "bmm": 0,
        "addmm": 1,
        "addmm_": 1,
        "baddbmm_": 1,
        "convolution": 0,
        "convolution_backward": 0,
    }

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        at = self.FIRST.get(func.overloadpacket.__name__)
        if at is not None:
            count = 3 if func.overloadpacket is torch.ops.aten.convolution_backward else 2
            args = (*args[:at], *map(self.rounded, args[at : at + count]), *args[at + count :])
        return func(*args, **(kwargs or {}))

    @staticmethod
    def rounded(x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            return x
        return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


@pytest.fixture
def tf32():
    torch.set_float32_matmul_precision("high")
    with TF32():
        yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("name", ["transformer", "cnn_group_norm"])
def test_hooks_works_with_tf32(name):
    """The check of `hooks` allows for the rounding, and its result is the loop's."""
    rows = []
    for engine in ("loop", "hooks"):
        p = problem(name)
        guide = Guide(p.model, eta=ETA, rank=2, engine=engine)
        guide.backward(primary=p.losses, auxiliary=p.loss())
        rows.append(guide.subspace.rows)
    assert 1e-5 < (rows[1] - rows[0]).norm() / rows[0].norm() < 1e-2


def test_without_tf32_the_check_is_as_sharp_as_float32(monkeypatch):
    """An error of a thousandth shows."""
    monkeypatch.setattr(
        Dense, "chunk", lambda self, rows, dtype: 1.001 * self.gradients[rows].to(dtype)
    )
    p = problem("mlp")
    with pytest.raises(UnsupportedError, match=r"body\.0\.bias \(off by 0\.001 of its norm\)"):
        Guide(p.model, eta=ETA, rank=2, engine="hooks").backward(
            primary=p.losses, auxiliary=p.loss()
        )


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize(
    "name",
    ["linear", "linear_over_sequences", "conv2d_channels_last", "conv2d_grouped", "attention"],
)
def test_every_order_of_contraction_gives_the_same_result(name, rows):
    given = layer(name)
    compare("hooks", given.model, given.losses, rows)
