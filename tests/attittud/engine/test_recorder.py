"""What is recorded of a forward pass: overwritten data are an error, and nothing is left behind."""

import pytest
import torch
from torch import nn

from attittud import Eta, Guide
from attittud.autograd.layout import Layout
from attittud.engine import UnsupportedError, make_engine
from tests.helpers.zoo import problem

ETA = Eta(neutral=1, helpful=0.5, harmful=-1)


def test_data_overwritten_in_place_raise_an_error():
    """It raises instead of giving a gradient of other numbers."""
    model = nn.Linear(3, 2)
    engine, layout = make_engine("hooks"), Layout(model.named_parameters())
    with engine.watch(model):
        x = torch.randn(4, 3).clone()
        losses = model(x).square().sum(1)
        x.add_(1)
        with pytest.raises(UnsupportedError, match=r"weight, bias in linear.* overwritten"):
            engine.jacobian(losses, layout)


def test_no_tensor_is_kept_after_the_pass():
    p = problem("cnn_group_norm")
    before = {name: vars(module).copy() for name, module in p.model.named_modules()}
    guide = Guide(p.model, eta=ETA, rank=3, engine="hooks")
    guide.backward(primary=p.losses, auxiliary=p.loss())
    assert guide.engine.record is None
    for name, module in p.model.named_modules():
        assert vars(module).keys() == before[name].keys()
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._backward_hooks
    assert all(parameter._backward_hooks is None for parameter in p.model.parameters())
