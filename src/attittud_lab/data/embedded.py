"""The 1,797 digits that scikit-learn carries: 8 x 8 pixels, ten classes, nothing to download."""

from __future__ import annotations

import numpy as np

from attittud_lab.data.listing import Listing
from attittud_lab.errors import needs


def digits() -> Listing:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise needs("cli", "scikit-learn", "the embedded data set") from None
    bunch = load_digits()
    pixels = np.round(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    names = [str(digit) for digit in range(10)]
    return Listing(
        "digits", "image", len(pixels), lambda rows: list(pixels[rows]), bunch.target.astype(np.int64), names
    )
