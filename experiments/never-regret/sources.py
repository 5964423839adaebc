"""The sources of examples: scikit-learn's data sets, and the cache that `prepare` made. Tensors are made once per process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from .cuts import cut, generator, shuffled


@dataclass(frozen=True)
class Source:
    """Examples with their true labels. Tests are made with the `test` ones, which no seed ever trains on."""

    x: Tensor
    labels: dict[str, Tensor]
    pool: Tensor
    test: Tensor

    def classes(self, label: str) -> int:
        return int(self.labels[label][self.pool].max()) + 1


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
def other_digits() -> Source:
    """The images that `digits` does not test on, 600 of them to test on here."""
    found = digits()
    test, pool = cut(found.pool, found.labels["digit"], (600,), 0)
    return Source(found.x, found.labels | {"large": (found.labels["digit"] >= 5).long()}, pool, test)


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


GENERATED, GENERATED_TEST = 7000, 4000


@cache
def hastie() -> Source:
    """Whether a point of ten dimensions is farther out than the median one."""
    from sklearn.datasets import make_hastie_10_2

    x, y = make_hastie_10_2(GENERATED, random_state=0)
    far = (y > 0).astype(np.int64)
    return table(x, {"far": far}, GENERATED_TEST, far)


@cache
def friedman() -> Source:
    """A sum of three terms and noise, from five of ten columns."""
    from sklearn.datasets import make_friedman1

    x, y = make_friedman1(GENERATED, noise=1.0, random_state=0)
    terms = np.stack([np.sin(np.pi * x[:, 0] * x[:, 1]), (x[:, 2] - 0.5) ** 2, 2 * x[:, 3] + x[:, 4]], 1)
    terms = ((terms - terms.mean(0)) / terms.std(0)).astype(np.float32)
    above = (y > np.median(y)).astype(np.int64)
    return table(x, {"above": above, "terms": terms}, GENERATED_TEST, above)


@cache
def clusters() -> Source:
    """Four classes of two clusters each, one label in twenty at random."""
    from sklearn.datasets import make_classification

    x, y = make_classification(
        GENERATED, 20, n_informative=8, n_redundant=4, n_classes=4, flip_y=0.05, class_sep=1.2, random_state=0
    )
    return table(x, {"class": y}, GENERATED_TEST, y)


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


def some_classes(of: Source, kept: tuple[int, ...]) -> Source:
    """Examples of these classes alone, numbered from 0."""
    numbers = torch.full((of.classes("class"),), -1)
    numbers[list(kept)] = torch.arange(len(kept))
    y = numbers[of.labels["class"]]
    return Source(of.x, {"class": y}, of.pool[y[of.pool] >= 0], of.test[y[of.test] >= 0])


@cache
def more_cifar10() -> Source:
    return images("cifar10_more")


@cache
def vehicles() -> Source:
    return some_classes(more_cifar10(), (0, 1, 8, 9))


@cache
def animals() -> Source:
    return some_classes(more_cifar10(), (2, 3, 4, 5, 6, 7))


@cache
def tiny_imagenet() -> Source:
    return images("tiny_imagenet")


ANIMALS_OF_IMAGENET = 59
"""The first of its classes."""


@cache
def living() -> Source:
    """Animals and things, 1,500 of them to test on."""
    found = tiny_imagenet()
    rows, y = shuffled(found.pool, "test", 0), found.labels["class"]
    return Source(found.x, found.labels | {"animal": (y < ANIMALS_OF_IMAGENET).long()}, rows[1500:], rows[:1500])


@cache
def xrays() -> Source:
    """Five findings, and whether there is any: tested on as many with as without."""
    found = images("nih_chest_xray")
    findings, y = found.labels["class"], found.labels["class"].amax(1)
    test = cut(found.test, y, (2 * int(y[found.test].sum()),), 0)[0]
    return Source(found.x, {"findings": findings.float(), "any": y}, found.pool, test)


@cache
def mirrored_xrays() -> Source:
    """A random half of them."""
    found = images("nih_chest_xray")
    mirrored = torch.rand(len(found.x), generator=generator("mirrored", 0)) < 0.5
    x = torch.where(mirrored[:, None, None, None], found.x.flip(3), found.x)
    return Source(x, {"mirrored": mirrored.long(), "findings": found.labels["class"].float()}, found.pool, found.test)


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
def reviews() -> Source:
    """Other reviews than in `imdb`."""
    found = arrays("imdb_more")
    return texts(found, {"positive": found["labels"]}, 3000)


@cache
def amazon() -> Source:
    found = arrays("amazon_helpful")
    return texts(found, {"domain": found["domain"], "helpful": found["helpful"]}, 1500)


LABELLED = 2347, 3847
"""End of those to train on, and of those to test on, where somebody voted; what follows has no votes."""


@cache
def helpful() -> Source:
    """Tested on as many reviews that were found helpful as not."""
    found = amazon()
    rows, y = torch.arange(LABELLED[1]), found.labels["helpful"]
    test = rows[LABELLED[0] :]
    test = cut(test, y, (2 * int((y[test] == 0).sum()),), 0)[0]
    return Source(found.x, found.labels, rows[: LABELLED[0]], test)


@cache
def shops() -> Source:
    """Reviews without votes."""
    found = amazon()
    rows = torch.arange(LABELLED[1], len(found.x))
    return Source(found.x, found.labels, rows, rows[:0])
