"""Frozen networks of timm, with a stand-in for the package, which needs torchvision."""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from attittud_lab.errors import InputError
from attittud_lab.features.timm import TimmFeatures

IMAGES = list(np.random.default_rng(0).integers(0, 256, (5, 3, 8, 8), dtype=np.uint8))


class Colours(nn.Module):
    """The mean of each colour, times a weight."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))
        self.pretrained_cfg: dict[str, Any] = {"input_size": (3, 8, 8)}
        self.pretrained_cfg |= {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.1)}

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.weight * images.mean((2, 3))


def install(monkeypatch: pytest.MonkeyPatch, weight: float) -> None:
    def create_model(name: str, *, pretrained: bool, num_classes: int) -> nn.Module:
        if name != "colours":
            raise RuntimeError(f"Unknown model ({name})")
        assert pretrained and num_classes == 0
        return Colours(weight)

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))


def test_images_have_the_colours_that_the_network_was_trained_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, 2.0)
    feature_map = TimmFeatures("colours")
    means = np.stack(IMAGES).mean((2, 3)) / 255
    expected = 2 * (means - [0.5, 0.4, 0.3]) / [0.2, 0.2, 0.1]
    np.testing.assert_allclose(feature_map.transform(IMAGES), expected, rtol=1e-4)
    plain = feature_map.plain()
    TimmFeatures.restore(plain, {})
    install(monkeypatch, 3.0)
    with pytest.raises(InputError, match="timm:colours"):
        TimmFeatures.restore(plain, {})
