"""Networks of the package timm."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attittud_lab.data.tasks import per_example_losses
from attittud_lab.errors import InputError
from attittud_lab.models.network import build_model
from tests.helpers.networks import Payload, images, model_config


def test_timm_models_unpickle_only_tensors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Some of its versions ask `torch.load` for everything."""
    torch.save({"a": Payload(tmp_path / "ran")}, tmp_path / "weights.bin")

    def create_model(*_: Any, **__: Any) -> nn.Module:
        torch.load(tmp_path / "weights.bin", weights_only=False)
        return WithNeck(3)

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    before = dict(os.environ)
    with pytest.raises(InputError, match="timm:with_neck cannot be built"):
        build_model(model_config("'timm:with_neck'").model, images(), 0)
    assert not (tmp_path / "ran").exists() and dict(os.environ) == before


class WithNeck(nn.Module):
    """What timm's MobileNetV3 and VGG do: the output without a classifier is wider than
    `num_features`.
    """

    num_features = 5

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.neck = nn.Conv2d(channels, 5, 3), nn.Linear(5, 9)

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[2] == 16, f"Input height ({x.shape[2]}) doesn't match model (16)."
        return self.neck(self.conv(x).mean((2, 3)))


def test_a_timm_model_becomes_a_body_with_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the package, which needs torchvision; `create_model` has the arguments of
    timm 1.0.
    """
    asked: list[dict[str, Any]] = []

    def create_model(model_name: str, pretrained: bool = False, **arguments: Any) -> nn.Module:
        asked.append({"name": model_name, "pretrained": pretrained, **arguments})
        if model_name != "with_neck":
            raise RuntimeError(f"Unknown model ({model_name})")
        return WithNeck(arguments["in_chans"])

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    data = images(channels=1)
    model = build_model(
        model_config("{name: 'timm:with_neck', pretrained: false, dropout: 0.1}").model, data, 0
    )
    assert asked == [
        {
            "name": "with_neck",
            "pretrained": False,
            "num_classes": 0,
            "in_chans": 1,
            "drop_rate": 0.1,
        }
    ]
    assert model.training and model.heads["primary"].in_features == 9
    inputs, targets = data.primary.examples.take(torch.arange(4))
    assert per_example_losses(model, data.primary, inputs, targets).shape == (4,)
    with pytest.raises(InputError, match=r"Unknown model \(other\)\); check the name"):
        build_model(model_config("'timm:other'").model, data, 0)
    with pytest.raises(
        InputError, match=r"images of size 3x8x8 .*doesn't match model \(16\).*data\.image_size"
    ):
        build_model(model_config("'timm:with_neck'").model, images(size=8), 0)
