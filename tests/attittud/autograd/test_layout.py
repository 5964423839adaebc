"""The flat vector of gradients: the order of its parts, and the memory format of its views."""

import torch
from torch import nn

from attittud import Eta, Guide
from attittud.autograd.layout import Layout
from tests.helpers.zoo import problem

NOTHING = Eta(0, 0, 0)


def test_gradients_follow_a_new_memory_format():
    p = problem("cnn_batch_norm")
    guide = Guide(p.model, eta=NOTHING, rank=3)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    p.model.zero_grad()
    p.model.to(memory_format=torch.channels_last)
    guide.backward(primary=p.losses(), auxiliary=p.loss(), refresh=False)
    assert all(x.grad.stride() == x.stride() for x in guide.shared_parameters.values())


def test_a_layout_recognises_the_parameters_it_was_made_from():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Linear(3, 2))
    layout = Layout(model.named_parameters())
    assert layout.describes(list(model.named_parameters()))
    assert not layout.describes(list(model.named_parameters())[:-1])
    assert not layout.describes([(f"x.{name}", parameter) for name, parameter in model.named_parameters()])
    model.to(memory_format=torch.channels_last)
    assert not layout.describes(list(model.named_parameters()))
