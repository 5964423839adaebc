"""Tables as features: the same numbers, and no table of another width."""

import numpy as np
import pytest

from attittud_lab.errors import InputError
from attittud_lab.features.columns import ColumnFeatures


def test_columns_stay_as_they_are() -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    feature_map = ColumnFeatures()
    feature_map.fit(table)
    restored = ColumnFeatures.restore(feature_map.plain(), feature_map.tensors())
    assert np.array_equal(restored.transform(table), table)
    with pytest.raises(InputError, match="3 columns"):
        restored.transform(table[:, :2])
