"""Where examples come from: scikit-learn's own data sets, and the cache that `prepare` made. Tensors, once per process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

CLASSES_OF_IMDB = 2
DOMAINS = 4


@dataclass(frozen=True)
class Source:
    """Examples with their true labels. Tests are made with the `test` ones, which no seed ever trains on."""

    x: Tensor
    labels: dict[str, Tensor]
    pool: Tensor
    test: Tensor


def arrays(name: str) -> dict[str, np.ndarray]:
    """One file of the cache, checked."""
    from .prepare import CACHE, CHECKSUMS, checksum

    file = CACHE / f"{name}.npz"
    if not file.is_file():
        raise SystemExit(
            f"{file} is missing; make it with: python -m experiments.never-regret.prepare FOLDER_WITH_DATA"
        )
    with np.load(file) as opened:
        found = dict(opened)
    expected = json.loads(CHECKSUMS.read_text(encoding="utf-8"))[name]
    if checksum(found) != expected:
        raise SystemExit(
            f"{file} is not the data that the suite was made with (checksum {checksum(found)}, not {expected})"
        )
    return found


def table(x: np.ndarray, labels: dict[str, np.ndarray], test: int, stratify: np.ndarray | None) -> Source:
    """A small data set of scikit-learn: the same `test` rows for all seeds, columns standardised with the others."""
    from sklearn.model_selection import train_test_split

    pool, held = train_test_split(np.arange(len(x)), test_size=test, stratify=stratify, random_state=0)
    x = (x - x[pool].mean(0)) / (x[pool].std(0) + 1e-9)
    return Source(
        torch.tensor(x, dtype=torch.float32),
        {name: torch.tensor(y) for name, y in labels.items()},
        torch.tensor(pool),
        torch.tensor(held),
    )


@cache
def digits() -> Source:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    found = table(x, {"digit": y, "odd": y % 2}, 500, y)
    # Some pixels never change; all are on one scale anyway.
    return Source(torch.tensor(x / 16, dtype=torch.float32), found.labels, found.pool, found.test)


@cache
def wine() -> Source:
    from sklearn.datasets import load_wine

    x, y = load_wine(return_X_y=True)
    return table(x, {"cultivar": y}, 78, y)


@cache
def cancer() -> Source:
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return table(x, {"benign": y}, 200, y)


@cache
def diabetes() -> Source:
    """Whether the disease progressed more than in the median patient; six blood values are another task."""
    from sklearn.datasets import load_diabetes

    x, progression = load_diabetes(return_X_y=True)
    worse = (progression > np.median(progression)).astype(np.int64)
    blood = x[:, 4:] / x[:, 4:].std(0)
    return table(x, {"worse": worse, "blood": blood.astype(np.float32)}, 160, worse)


def images(name: str) -> Source:
    """Channels first, about zero mean and unit variance."""
    found = arrays(name)
    pool, test = found["pool"], found.get("test", found["pool"][:0])
    x = torch.from_numpy(np.concatenate([pool, test])).float()
    x = x.unsqueeze(1) if x.ndim == 3 else x.permute(0, 3, 1, 2).contiguous()
    x = (x - x[: len(pool)].mean()) / x[: len(pool)].std()
    labels = np.concatenate([found["pool_labels"], found.get("test_labels", found["pool_labels"][:0])])
    order = torch.arange(len(x))
    return Source(x, {"class": torch.from_numpy(labels).long()}, order[: len(pool)], order[len(pool) :])


@cache
def cifar10() -> Source:
    return images("cifar10")


@cache
def tiny_imagenet() -> Source:
    return images("tiny_imagenet")


@cache
def xrays() -> Source:
    found = images("nih_chest_xray")
    return Source(found.x, found.labels | {"any": found.labels["class"].amax(1)}, found.pool, found.test)


def texts(found: dict[str, np.ndarray], labels: dict[str, np.ndarray], test: int) -> Source:
    """TF-IDF of hashed words, rows of about the length that layers are initialised for; the last `test` rows are for testing."""
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import TfidfTransformer

    from .prepare import WORDS

    count = len(found["ends"]) - 1
    parts = found["counts"].astype(np.float32), found["columns"].astype(np.int32), found["ends"]
    counts = csr_matrix(parts, shape=(count, WORDS))
    weights = TfidfTransformer(sublinear_tf=True).fit(counts[: count - test])
    x = torch.tensor(weights.transform(counts).toarray(), dtype=torch.float32) * 8
    order = torch.arange(count)
    tensors = {name: torch.from_numpy(y).long() for name, y in labels.items()}
    return Source(x, tensors, order[: count - test], order[count - test :])


@cache
def imdb() -> Source:
    found = arrays("imdb")
    return texts(found, {"positive": found["labels"]}, 2000)


@cache
def amazon() -> Source:
    found = arrays("amazon_helpful")
    return texts(found, {"domain": found["domain"], "helpful": found["helpful"]}, 1500)
