"""How the same cell of a table is spelt in files of different formats."""

from __future__ import annotations

import re
import unicodedata

import numpy as np
import pyarrow as pa

NUMBER = r"(?i)^[-+]?(inf(inity)?|([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?)$"
"""Which texts are numbers; pyarrow and Python read it alike."""
HALF = re.compile("[\ud800-\udfff]")
"""Half a character: a lone surrogate, which no encoding of text has."""
_LONG_FRACTION = re.compile(r"^[-+]?[0-9]+\.[0-9]{9,}(e[-+]?[0-9]{1,2})?$")
_NO_FRACTION = re.compile(r"^([-+]?[0-9]+)\.0*$")
_IGNORED = re.compile(
    # joiners, fillers of Hangul, vowels of Khmer, and selectors of variants
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]")
_TRUTH = {"true": "True", "false": "False"}


def folded(text: str) -> str:
    """Return the spelling that all file formats share.

    A csv file has TRUE and 1.0 where a parquet file has a truth value and 1. The number 0.1 in
    single precision turns into 0.10000000149011612 in Python and in jsonl files.
    """
    if _LONG_FRACTION.match(text):
        # If the number is one of single precision, its shortest spelling counts.
        with np.errstate(over="ignore"):
            single = np.float32(text)
        if float(single) == float(text):
            return str(pa.scalar(single).cast(pa.string()))
    if text[:1] in "tTfF":
        return _TRUTH.get(text.casefold(), text)
    return _NO_FRACTION.sub(r"\1", text)


def looks(text: str) -> str:
    """Return the same for all texts that look the same: one Unicode form (NFKC), without characters
    that have no width.
    """
    text = _CONTROLS.sub("", text)
    if text.isascii():
        return text
    plain = _IGNORED.sub("", unicodedata.normalize("NFKC", text))
    visible = (letter for letter in plain if unicodedata.category(letter) != "Cf")
    return unicodedata.normalize("NFKC", "".join(visible))
