"""A tiny image network of transformers in a folder."""

from pathlib import Path
from typing import Any

import pytest
import torch


def tiny_images(folder: Path, kind: str = "ViTModel") -> Path:
    """The folder of a network for images of 16 pixels."""
    transformers = pytest.importorskip(
        "transformers", reason="the extra transformers is not installed"
    )
    sizes: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.ViTConfig(image_size=16, patch_size=8, intermediate_size=8, **sizes)
    with torch.random.fork_rng(devices=[]):  # the same weights whatever ran before
        torch.manual_seed(1)
        getattr(transformers, kind)(config).save_pretrained(folder)
    return folder
