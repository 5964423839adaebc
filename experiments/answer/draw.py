"""Random choices of rows and labels.

Every choice names its purpose and has random numbers of its own, so that no choice changes with
another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from zlib import crc32

import numpy as np

from .pair import Part


def generator(purpose: str) -> np.random.Generator:
    """Random numbers that no other purpose shares."""
    return np.random.default_rng(crc32(purpose.encode()))


def shuffled(rows: Sequence[int] | np.ndarray, purpose: str) -> np.ndarray:
    return generator(purpose).permutation(np.asarray(rows, dtype=np.int64))


def balanced(labels: np.ndarray, sizes: Sequence[int], purpose: str) -> list[np.ndarray]:
    """Rows with equal counts of each class for every size, and then all other rows.

    Rows with label -1 are left out.
    """
    by_class = []
    for number in sorted(set(labels[labels >= 0].tolist())):
        by_class.append(shuffled(np.flatnonzero(labels == number), f"{purpose}/{number}"))
    counts = list(map(len, by_class))
    parts = []
    start = 0
    for size in sizes:
        end = start + size // len(by_class)
        if (end - start) * len(by_class) != size or min(counts) < end:
            raise ValueError(
                f"{purpose}: {list(sizes)} cannot be taken in equal parts from classes of "
                f"{counts} rows"
            )
        parts.append(np.concatenate([rows[start:end] for rows in by_class]))
        start = end
    rest = np.concatenate([rows[start:] for rows in by_class])
    return [*parts, rest]


def shifted(part: Part, share: float, purpose: str) -> Part:
    """Replace exactly this share of the labels by the next class."""
    labels = part.labels.copy()
    wrong = shuffled(range(len(part)), purpose)[: round(share * len(part))]
    labels[wrong] = (labels[wrong] + 1) % len(part.classes)
    return part.labelled(labels, part.classes)


def randomised(part: Part, share: float, purpose: str) -> Part:
    """Replace exactly this share of the labels by a random class."""
    random = generator(purpose)
    labels = part.labels.copy()
    wrong = random.permutation(len(part))[: round(share * len(part))]
    labels[wrong] = random.integers(len(part.classes), size=len(wrong))
    return part.labelled(labels, part.classes)


def grouped(labels: Sequence[int], groups: Iterable[Sequence[int]]) -> np.ndarray:
    """The number of the group of each label, -1 where it is in none."""
    number_of: dict[int, int] = {}
    for number, group in enumerate(groups):
        number_of |= dict.fromkeys(group, number)
    return np.array([number_of.get(label, -1) for label in labels])


def first_words(texts: Iterable[str], count: int) -> list[str]:
    """Texts cut after so many words; line breaks of web pages become blanks."""
    short = []
    for text in texts:
        words = re.sub(r"<br */?>", " ", text).split()
        short.append(" ".join(words[:count]))
    return short


def joined(parts: Sequence[Part]) -> Part:
    """Parts with texts and the same classes, one after the other."""
    ids: list[str] = []
    texts: list[str] = []
    for part in parts:
        ids += part.ids
        texts += part.inputs
    labels = np.concatenate([part.labels for part in parts])
    return Part(ids, texts, labels, parts[0].classes)
