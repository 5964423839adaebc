"""Frozen image networks in general: batches, colours and progress."""

import numpy as np
import torch

from attittud_lab.features.images import ON_CPU, Preparation, encode_images


def test_each_image_has_its_own_row() -> None:
    images = [np.full((3, 4, 4), value, dtype=np.uint8) for value in range(ON_CPU + 3)]
    preparation = Preparation(4, (10.0, 0.0, 0.0), (2.0, 1.0, 1.0))

    def means(pixels: torch.Tensor) -> torch.Tensor:
        return pixels.mean((2, 3))

    rows = encode_images(means, images, preparation, "cpu", None)
    values = np.arange(ON_CPU + 3)
    np.testing.assert_allclose(rows, np.stack([(values - 10) / 2, values, values], 1), rtol=1e-6)
    assert encode_images(means, [], preparation, "cpu", None).shape == (0, 3)
