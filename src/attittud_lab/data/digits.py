"""The 1,797 digits that scikit-learn carries: 8 x 8 pixels, ten classes, nothing to download."""

from __future__ import annotations

from functools import cache
from typing import Any, Self

import numpy as np

from attittud_lab.data.source import Columns, Listing, Source
from attittud_lab.errors import optional


class Digits(Source):
    """Embedded images, without splits or columns."""

    @classmethod
    def open(cls, name: str) -> Self | None:
        if name != "digits":
            return None
        return cls()

    def listing(self, split: str | None, columns: Columns) -> Listing:
        """Return all digits, as grey images of 1 x 8 x 8 pixels."""
        bunch = _bunch()
        # scikit-learn's pixels are from 0 to 16.
        pixels = np.round(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
        labels = bunch.target.astype(np.int64)
        return Listing(
            "digits",
            "image",
            len(pixels),
            fetch=lambda rows: list(pixels[rows]),
            labels=labels,
            classes=list("0123456789"),
        )


@cache  # parsing the text file takes longer than training a small model; listings are copies
def _bunch() -> Any:
    return optional(
        "sklearn.datasets", "cli", "the embedded data set", "scikit-learn"
    ).load_digits()
