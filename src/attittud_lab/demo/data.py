"""scikit-learn's digits: 100 clean labels (primary), all others in three qualities (auxiliary), a test set apart."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from zlib import crc32

import torch
from torch import Tensor

CLASSES = 10
LABELS_PER_CLASS = 10
TEST_IMAGES = 500
TEST_SEED = 0  # one test set for all seeds, so that nothing can be chosen with images that another seed tests on

QUALITIES = {
    "right": "labels right",
    "random": "50 % random",
    "shifted": "50 % shifted to the next class",
}


@dataclass(frozen=True)
class Split:
    """Indices into the 1797 images, disjoint and together all of them."""

    primary: Tensor
    auxiliary: Tensor
    test: Tensor


@dataclass(frozen=True)
class Digits:
    """One seed's data in one quality: images (n x 64, in [0, 1]) and labels."""

    primary: tuple[Tensor, Tensor]
    auxiliary: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def generator(purpose: str, seed: int) -> torch.Generator:
    """Random numbers of one purpose: with one stream for all, which labels are wrong would depend on the split."""
    return torch.Generator().manual_seed(crc32(f"{purpose} {seed}".encode()))


@cache
def images() -> tuple[Tensor, Tensor]:
    """All images and their true labels; they come with scikit-learn, nothing is downloaded."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)


@cache
def split(seed: int) -> Split:
    """Ten labels per class are drawn anew for every seed; the test images never change."""
    from sklearn.model_selection import train_test_split

    labels = images()[1]
    pool, test = train_test_split(
        torch.arange(len(labels)).numpy(), test_size=TEST_IMAGES, stratify=labels.numpy(), random_state=TEST_SEED
    )
    order = torch.as_tensor(pool)[torch.randperm(len(pool), generator=generator("split", seed))]
    by_class = [order[labels[order] == c] for c in range(CLASSES)]
    return Split(
        primary=torch.cat([found[:LABELS_PER_CLASS] for found in by_class]),
        auxiliary=torch.cat([found[LABELS_PER_CLASS:] for found in by_class]),
        test=torch.as_tensor(test),
    )


def corrupt(labels: Tensor, quality: str, seed: int) -> Tensor:
    """Replace exactly half of the labels: by a random class (which may be the right one), or by the next class."""
    random = generator("labels", seed)
    touched = torch.randperm(len(labels), generator=random)[: len(labels) // 2]
    labels = labels.clone()
    if quality == "random":
        labels[touched] = torch.randint(CLASSES, touched.shape, generator=random)
    elif quality == "shifted":
        labels[touched] = (labels[touched] + 1) % CLASSES
    elif quality != "right":
        raise ValueError(f"unknown quality {quality!r}; choose one of {', '.join(map(repr, QUALITIES))}")
    return labels


def digits(quality: str, seed: int) -> Digits:
    """The data of one run."""
    pixels, labels = images()
    part = split(seed)
    return Digits(
        primary=(pixels[part.primary], labels[part.primary]),
        auxiliary=(pixels[part.auxiliary], corrupt(labels[part.auxiliary], quality, seed)),
        test=(pixels[part.test], labels[part.test]),
    )
