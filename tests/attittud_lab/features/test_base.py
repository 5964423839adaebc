"""What every map promises: float32 rows that other rows do not change, and nothing pickled."""

import json
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load, save
from scipy import sparse

from attittud_lab import features
from tests.helpers.texts import reviews

ODD = ["", "nothing else 🎬", "lovely " * 500]
TEXTS = [*ODD, *(row["text"] for row in reviews(17, 0))]
TABLE = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
IMAGES = list(np.random.default_rng(0).integers(0, 256, (20, 3, 16, 16), dtype=np.uint8))
INPUTS: dict[str, Any] = {"text": TEXTS, "table": TABLE, "image": IMAGES}
PLAIN_NAMES = [name for name in features.names() if ":" not in name]


def dense(rows: Any) -> np.ndarray:
    return rows.toarray() if sparse.issparse(rows) else rows


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_a_map_is_restored_from_json_and_arrays(name):
    entry, _ = features.find(name)
    if entry.missing:
        pytest.skip(f"{entry.missing} is not installed")
    kind = entry.reads[0]
    feature_map = features.build(name, kind)
    feature_map.fit(INPUTS[kind])
    plain = json.loads(json.dumps(feature_map.stored()))
    restored = features.restore(name, plain, load(save(feature_map.tensors())))
    rows = feature_map.transform(INPUTS[kind])
    assert rows.dtype == np.float32 and rows.shape[0] == 20
    assert np.array_equal(dense(restored.transform(INPUTS[kind])), dense(rows))
    assert restored.plain() == feature_map.plain()
    # Some rows alone are the same rows, up to rounding in a batch of another size, in bfloat16 by
    # 0.001.
    some = dense(restored.transform(INPUTS[kind][5:8]))
    tolerance = 3e-3 if plain.get("precision") == "bfloat16" else 1e-5
    np.testing.assert_allclose(some, dense(rows)[5:8], rtol=1e-4, atol=tolerance)
    assert restored.transform(INPUTS[kind][:0]).shape == (0, rows.shape[1])
