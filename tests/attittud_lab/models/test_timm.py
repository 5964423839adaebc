"""Networks of the package timm."""

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from attittud_lab.errors import InputError
from attittud_lab.models.build import build_model
from tests.helpers.networks import Payload, images, model_config


def test_timm_models_unpickle_only_tensors(monkeypatch, tmp_path):
    """Some of its versions ask `torch.load` for everything."""
    torch.save({"a": Payload(tmp_path / "ran")}, tmp_path / "weights.bin")

    def create_model(*_: Any, **__: Any) -> nn.Module:
        torch.load(tmp_path / "weights.bin", weights_only=False)
        return nn.Identity()

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    before = dict(os.environ)
    with pytest.raises(InputError, match="timm:with_neck cannot be built"):
        build_model(model_config("'timm:with_neck'").model, images(), 0)
    assert not (tmp_path / "ran").exists() and dict(os.environ) == before
