"""Image networks: their shapes and their number of parameters."""

import pytest
import torch
from torch import nn

from attittud_lab.data.tasks import per_example_losses
from attittud_lab.models.build import build_model
from tests.helpers.networks import images, model_config


@pytest.mark.parametrize("name", ["mlp", "small-cnn", "wideresnet-16-2"])
def test_image_models_have_the_right_shapes(name):
    data = images()
    model = build_model(model_config(name).model, data, 0)
    for task in (data.primary, *data.auxiliary.values()):
        losses = per_example_losses(model, task, *task.examples.take(torch.arange(4)))
        assert losses.shape == (4,) and losses.isfinite().all()
        losses.mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    # Only the head learns when its features are detached.
    model.zero_grad()
    inputs, targets = data.primary.examples.take(torch.arange(4))
    per_example_losses(model, data.primary, inputs, targets, detach=True).mean().backward()
    expected = {"heads.primary.weight", "heads.primary.bias"}
    assert {n for n, p in model.named_parameters() if p.grad is not None} == expected


def test_the_wide_residual_network_is_that_of_the_paper():
    model = build_model(model_config("wideresnet-22-4").model, images(size=32), 0)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(4.299e6, abs=500)
    found = sum(isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3) for m in model.modules())
    assert found == 1 + 3 * 3 * 2
    stem = next(m for m in model.modules() if isinstance(m, nn.Conv2d))
    # Kaiming, fan-out
    assert float(stem.weight.detach().std()) == pytest.approx((2 / (16 * 9)) ** 0.5, rel=0.2)
