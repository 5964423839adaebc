"""Frozen encoders of transformers: rows against the network itself, and refused folders."""

import json

import numpy as np
import pytest
import torch

from attittud_lab import features
from attittud_lab.errors import InputError
from attittud_lab.features import encoder_hf
from attittud_lab.features.encoder_hf import EncoderFeatures
from tests.helpers.texts import reviews, tiny_encoder, tiny_images

transformers = pytest.importorskip("transformers", reason="the extra pretrained is not installed")

TEXTS = ["", *[row["text"] for row in reviews(50, 0)]]
IMAGES = list(np.random.default_rng(0).integers(0, 256, (5, 3, 20, 20), dtype=np.uint8))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_text_is_the_mean_of_its_states(tmp_path, monkeypatch, precision):
    """Whatever padding the folder asks for, and whichever texts share a batch."""
    monkeypatch.setattr(encoder_hf, "precision", lambda _: precision)
    tolerance = 1e-5 if precision == "float32" else 0.05
    folder = tiny_encoder(tmp_path, fixed_padding=50)
    rows = features.build(f"hf:{folder}", "text").transform(TEXTS)
    network = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text, row in zip(TEXTS, rows, strict=True):
        tokens = tokenizer([text], padding=False, truncation=False, return_tensors="pt")
        with torch.no_grad():
            states = network(input_ids=tokens["input_ids"]).last_hidden_state[0]
        mean = states.mean(0)
        np.testing.assert_allclose(row, mean / mean.norm(), atol=tolerance)


def test_long_texts_are_cut(tmp_path):
    """An encoder of 66 positions reads the beginning of a longer text."""
    feature_map = EncoderFeatures(str(tiny_encoder(tmp_path)))
    long, longer = feature_map.transform(["film " * 200, "film " * 200 + "good"])
    assert np.array_equal(long, longer)


def test_an_image_is_scaled_and_pooled(tmp_path):
    folder = tiny_images(tmp_path)
    settings = {"size": {"height": 16, "width": 16}}
    settings |= {"image_mean": [0.2] * 3, "image_std": [0.3] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    small = [image[:, 2:18, 2:18] for image in IMAGES]  # already of the right size
    rows = features.build(f"hf:{folder}", "image").transform(small)
    network = transformers.ViTModel.from_pretrained(folder).eval()
    pixels = torch.tensor(np.stack(small)) / 255
    with torch.no_grad():
        expected = network(pixel_values=(pixels - 0.2) / 0.3).pooler_output
    np.testing.assert_allclose(rows, expected, atol=1e-5)
    assert features.build(f"hf:{folder}", "image").transform(IMAGES).shape == (5, 8)


@pytest.mark.parametrize("damage", ["weights", "pickle"])
def test_damaged_folders_are_refused(tmp_path, damage):
    folder = tiny_encoder(tmp_path / "encoder")
    weights = folder / "model.safetensors"
    weights.unlink()
    if damage == "pickle":
        torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=str(folder)):
        features.build(f"hf:{folder}", "text").transform(TEXTS)
