"""Features on disk: what is kept is read again, a stopped run continues, and damage is noticed."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from attittud_lab.features import compute as computing
from attittud_lab.features.base import FeatureMap, Plain
from attittud_lab.features.compute import compute
from attittud_lab.output.progress import Progress


class Lengths(FeatureMap):
    """Stands for an encoder: counts characters, and how many texts it has been asked for."""

    name = "lengths"
    reads = "text"
    worth_keeping = True

    def __init__(self, scale: int = 1) -> None:
        self.scale, self.asked, self.stops_after = scale, 0, 10**9

    def transform(self, inputs: Any, progress: Progress | None = None) -> npt.NDArray[np.float32]:
        if self.asked >= self.stops_after:
            raise KeyboardInterrupt
        self.asked += len(inputs)
        if progress is not None:
            progress.advance(len(inputs), {})
        rows = [[self.scale * len(str(text)), 1] for text in inputs]
        return np.array(rows, dtype=np.float32).reshape(-1, 2)

    def plain(self) -> Plain:
        return {"scale": self.scale}

    @classmethod
    def restore(cls, plain: Mapping[str, Any], _: Mapping[str, Tensor]) -> Self:
        return cls(plain["scale"])


TEXTS = [number * "x" for number in range(600)]
EXPECTED = np.array([[number, 1] for number in range(600)], dtype=np.float32)


def test_rows_are_computed_once(tmp_path):
    first, second = Lengths(), Lengths()
    assert np.array_equal(
        compute(first, [*TEXTS, *TEXTS], tmp_path), np.concatenate([EXPECTED, EXPECTED])
    )
    assert first.asked == 600  # equal inputs share a row
    rows = compute(second, [TEXTS[5], "y" * 700, TEXTS[500]], tmp_path)
    assert rows[:, 0].tolist() == [5, 700, 500]
    assert second.asked == 1
    assert compute(Lengths(), [], tmp_path).shape == (0, 2)


class Weighted(Lengths):
    """The scale is an array that was fitted."""

    def tensors(self) -> dict[str, Tensor]:
        return {"scale": torch.tensor([self.scale])}

    def plain(self) -> Plain:
        return {}


@pytest.mark.parametrize("kind", [Lengths, Weighted])
def test_maps_with_other_settings_or_arrays_have_other_rows(kind, tmp_path):
    compute(kind(), TEXTS, tmp_path)
    assert np.array_equal(compute(kind(3), TEXTS, tmp_path)[:, 0], 3 * EXPECTED[:, 0])


def test_a_stopped_run_continues(tmp_path):
    stopped = Lengths()
    stopped.stops_after = computing.CHUNK
    with pytest.raises(KeyboardInterrupt):
        compute(stopped, TEXTS, tmp_path)
    later = Lengths()
    assert np.array_equal(compute(later, TEXTS, tmp_path), EXPECTED)
    assert later.asked == 600 - computing.CHUNK


def test_a_damaged_file_is_computed_again(tmp_path, caplog):
    compute(Lengths(), TEXTS, tmp_path)
    damaged, truncated, *_ = sorted(tmp_path.rglob("*.safetensors"))
    content = bytearray(damaged.read_bytes())
    content[-200] ^= 1
    damaged.write_bytes(content)
    truncated.write_bytes(truncated.read_bytes()[:100])
    later = Lengths()
    assert np.array_equal(compute(later, TEXTS, tmp_path), EXPECTED)
    assert 0 < later.asked <= 2 * computing.CHUNK
    assert damaged.name in caplog.text and truncated.name in caplog.text
    assert np.array_equal(compute(Lengths(), TEXTS, tmp_path), EXPECTED)
