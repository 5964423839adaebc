"""The embedded digits."""

import numpy as np

from attittud_lab.data.digits import Digits
from attittud_lab.data.source import Columns


def test_digits_are_1797_grey_images_in_ten_classes():
    source = Digits.open("digits")
    assert source is not None and source.splits == [] and source.columns(None) == []
    listing = source.listing(None, Columns())
    assert listing.classes == [str(digit) for digit in range(10)]
    assert listing.labels is not None and len(listing.labels) == 1797
    assert np.bincount(listing.labels).min() > 170
    (first,) = listing.fetch(np.array([0]))
    assert first.shape == (1, 8, 8) and first.dtype == np.uint8 and first.max() > 200
