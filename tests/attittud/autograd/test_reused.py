"""A vector that is filled again and again, without memory in between."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from attittud import Eta, Guide
from attittud.autograd.layout import Layout
from attittud.autograd.reused import ReusedVector
from tests.helpers.on_gpu import DEVICE, NEEDS_GPU

DEVICES = ["cpu", pytest.param(DEVICE, marks=NEEDS_GPU)]


def layout_of(device: str, *, channels_last: bool = False) -> Layout:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(5, 2)).to(device)
    return Layout(
        (model.to(memory_format=torch.channels_last) if channels_last else model).named_parameters()
    )


@pytest.mark.parametrize("device", DEVICES)
@given(
    missing=st.lists(st.sets(st.integers(0, 3)), min_size=1, max_size=5),
    half=st.booleans(),
    channels_last=st.booleans(),
)
@settings(deadline=None, max_examples=25)
def test_it_equals_a_new_vector_however_often_it_is_filled(device, missing, half, channels_last):
    layout, vector = layout_of(device, channels_last=channels_last), ReusedVector()
    for absent in missing:
        gradients = [torch.randn_like(p) for p in layout.parameters]
        given = [
            None if i in absent else g.bfloat16() if half and i % 2 else g
            for i, g in enumerate(gradients)
        ]
        assert torch.equal(vector.filled(layout, given), layout.flatten(given))
        vector.release()


def test_between_steps_it_has_no_memory_and_needs_no_release_twice():
    layout, vector = layout_of("cpu"), ReusedVector()
    vector.release()
    for _ in range(2):
        flat = vector.filled(layout, [torch.ones_like(p) for p in layout.parameters])
        assert flat.untyped_storage().nbytes() == 4 * layout.size
        vector.release()
        vector.release()
        assert flat.untyped_storage().nbytes() == 0


class Trained:
    """Some steps of a guide, on a CPU as if it were a GPU."""

    def __init__(self, device: str, **options: object) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to(device)
        self.x = torch.randn(6, 4, device=device)
        self.guide = Guide(self.model, rank=2, refresh_every=3, **options)

    def step(self, *, broken: bool = False) -> list[torch.Tensor]:
        self.model.zero_grad()
        judge = (lambda: self.model(self.x).sin().mean(1)) if self.guide.eta == "auto" else None
        auxiliary = (
            self.model(-self.x).cos().mean()
            if not broken
            else self.x.clone().requires_grad_().mean()
        )
        self.guide.backward(self.model(self.x).square().mean(1), auxiliary, judge=judge)
        return [p.grad.clone() for p in self.model.parameters()]

    def held(self) -> int:
        parts = self.guide._parts
        return sum(
            v._flat.untyped_storage().nbytes()
            for v in (parts.primary, parts.judges)
            if v._flat is not None
        )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "options", [{"eta": Eta(1, 0.5, -1)}, {"eta": "auto", "judge_every": 2}], ids=["fixed", "auto"]
)
def test_steps_give_the_same_bits_and_hold_nothing_afterwards(device, options, monkeypatch):
    plain = [Trained(device, **options)]
    monkeypatch.setattr(Layout, "on_gpu", False)
    wanted = [plain[0].step() for _ in range(7)]
    monkeypatch.setattr(Layout, "on_gpu", True)
    ours = Trained(device, **options)
    for gradients in wanted:
        assert all(map(torch.equal, ours.step(), gradients))
        assert ours.held() == 0 and ours.guide._parts.primary._flat is not None
