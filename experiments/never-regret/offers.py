"""The auxiliary data that are offered to a primary task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .cuts import generator, shuffled
from .sources import Source

Examples = tuple[Tensor, Tensor]
Sources = dict[str, Examples]
"""By name of the source: one, or two of which a user does not know that they differ."""


@dataclass(frozen=True)
class Given:
    """The data that an offer is made from."""

    source: Source
    primary: Examples
    rest: Tensor
    """Rows of the source that neither train nor validate the primary task."""
    seed: int


Offer = Callable[[Given], Sources]


def one(x: Tensor, y: Tensor) -> Sources:
    return {"auxiliary": (x, y)}


def wrong(y: Tensor, classes: int, share: float, kind: str, seed: int) -> Tensor:
    """Exchange a share of the labels: each for the next class (`shifted`), or for any (`random`)."""
    random = generator("labels", seed)
    touched = torch.randperm(len(y), generator=random)[: round(share * len(y))]
    y = y.clone()
    y[touched] = (
        (y[touched] + 1) % classes if kind == "shifted" else torch.randint(classes, touched.shape, generator=random)
    )
    return y


def others(label: str, share: float = 0.0, kind: str = "shifted", count: int | None = None) -> Offer:
    """The other rows (or `count` of them) with this label, a share of which is wrong."""

    def offer(given: Given) -> Sources:
        source, seed = given.source, given.seed
        rows = given.rest if count is None else shuffled(given.rest, "fewer", seed)[:count]
        y = source.labels[label][rows]
        return one(source.x[rows], wrong(y, source.classes(label), share, kind, seed) if share else y)

    return offer


def two(label: str, good: int, bad: int | None, shares: tuple[float, float]) -> Offer:
    """A good source and a bad one of so many other rows (None: all that are left), with shares of shifted labels."""

    def offer(given: Given) -> Sources:
        source, seed = given.source, given.seed
        rest, y = shuffled(given.rest, "sources", seed), source.labels[label]
        parts = {"good": rest[:good], "bad": rest[good:] if bad is None else rest[good : good + bad]}
        return {
            name: (source.x[rows], wrong(y[rows], source.classes(label), share, "shifted", seed))
            for (name, rows), share in zip(parts.items(), shares, strict=True)
        }

    return offer


def copies(count: int, *, wrong_label: bool = False) -> Offer:
    """Only copies of `count` examples of one class, with their own label or the next class's."""

    def offer(given: Given) -> Sources:
        x, y = given.primary
        seed, classes = given.seed, int(y.max()) + 1
        found = shuffled((y == seed % classes).nonzero().flatten(), "copies", seed)[:count]
        return one(x[found], (y[found] + wrong_label) % classes)

    return offer


def elsewhere(other: Callable[[], Source], label: str) -> Offer:
    """All of another source."""

    def offer(_: Given) -> Sources:
        found = other()
        return one(found.x[found.pool], found.labels[label][found.pool])

    return offer


def blood_values(given: Given) -> Sources:
    """Six measures of each other patient, from the rest of what is known."""
    x = given.source.x[given.rest].clone()
    x[:, 4:] = 0
    return one(x, given.source.labels["blood"][given.rest])


def coins(given: Given) -> Sources:
    """A coin toss for each of 500 others."""
    rest = shuffled(given.rest, "fewer", given.seed)[:500]
    return one(given.source.x[rest], torch.randint(2, rest.shape, generator=generator("coins", given.seed)))


def helpfulness(given: Given) -> Sources:
    """Whether a review was found helpful, where anybody voted."""
    helpful = given.source.labels["helpful"]
    rest = given.rest[helpful[given.rest] < 2]
    return one(given.source.x[rest], helpful[rest])


def turns(given: Given) -> Sources:
    """By how many quarter turns each of 4,000 other images was turned."""
    rest = shuffled(given.rest, "fewer", given.seed)[:4000]
    found = torch.randint(4, rest.shape, generator=generator("turns", given.seed))
    x = given.source.x[rest].clone()
    for turn in (1, 2, 3):
        x[found == turn] = x[found == turn].rot90(turn, (2, 3))
    return one(x, found)
