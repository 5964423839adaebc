"""The primary/auxiliary pairs. Which of them are for development was declared in split.json before a rule was chosen."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import sources
from .cuts import cut
from .offers import (
    Examples,
    Given,
    Offer,
    Sources,
    blood_values,
    coins,
    copies,
    elsewhere,
    helpfulness,
    others,
    turns,
    two,
)
from .sources import Source

HELPS, HURTS, OPEN = "helps", "hurts", "open"
SPLIT = json.loads((Path(__file__).parent / "split.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Data:
    """The data of one seed."""

    primary: Examples
    validation: Examples
    test: Examples
    auxiliary: Sources
    classes: int
    """Classes of the primary task."""
    outputs: int | None = None
    """Classes of a head of their own for the auxiliary tasks; None: they predict the primary classes with the primary head."""


@dataclass(frozen=True)
class Pair:
    """A scarce primary task and the auxiliary data offered to it. Real-valued auxiliary targets are regressed."""

    name: str
    kind: str
    built_to: str
    """What one expects of plain multitask training: `helps`, `hurts`, or `open`."""
    about: str
    source: Callable[[], Source]
    label: str
    """Name of the primary task's labels in the source."""
    labels: int
    """For primary training; all are of equal counts of each class."""
    validation: int
    offer: Offer
    outputs: int | None = None
    model: str = "mlp"
    optimizer: str = "sgd"
    steps: int = 300
    sources: int = 1
    """How many auxiliary sources."""

    @property
    def held_out(self) -> bool:
        return self.name in SPLIT["held_out"]

    def build(self, seed: int) -> Data:
        source = self.source()
        y = source.labels[self.label]
        train, held, rest = cut(source.pool, y, (self.labels, self.validation), seed)
        primary, validation, test = ((source.x[rows], y[rows]) for rows in (train, held, source.test))
        auxiliary = self.offer(Given(source, primary, rest, seed))
        return Data(primary, validation, test, auxiliary, source.classes(self.label), self.outputs)


ADAM, CNN = {"optimizer": "adam"}, {"model": "cnn"}
# fmt: off
_ALL = (
    # In development since the first rule.
    Pair("digits_right", "image", HELPS, "scikit-learn's digits, 100 labels; the other images with their right labels",
         sources.digits, "digit", 100, 100, others("digit")),
    Pair("digits_shifted", "image", HURTS, "the same, with half of the auxiliary labels shifted to the next class",
         sources.digits, "digit", 100, 100, others("digit", 0.5)),
    Pair("digits_parity", "image", HELPS, "odd or even digit, 60 labels; which digit it is, for the other images",
         sources.digits, "odd", 60, 60, others("digit"), outputs=10),
    Pair("digits_sources", "image", OPEN, "digits, 100 labels; one source of right labels, one of shifted ones",
         sources.digits, "digit", 100, 100, two("digit", 400, None, (0.0, 1.0)), sources=2),
    Pair("wine_random", "table", HURTS, "cultivar of a wine, 40 labels; the other wines with random labels",
         sources.wine, "cultivar", 40, 24, others("cultivar", 1.0, "random")),
    Pair("cancer_duplicated", "table", HURTS,
         "breast cancer, 40 labels; nothing but copies of 8 patients of one class, labelled as the other class",
         sources.cancer, "benign", 40, 40, copies(8, wrong_label=True)),
    Pair("cancer_shifted", "table", HURTS, "breast cancer, 40 labels; the other patients, half of their labels exchanged",
         sources.cancer, "benign", 40, 40, others("benign", 0.5), **ADAM),
    Pair("diabetes_measures", "table", OPEN,
         "diabetes worse than the median, 80 labels; blood values of other patients from age, sex, weight",
         sources.diabetes, "worse", 80, 60, blood_values, outputs=6),
    Pair("imdb_noisy", "text", HELPS, "sentiment of film reviews, 100 labels; 4,000 more, of which a fifth have wrong labels",
         sources.imdb, "positive", 100, 100, others("positive", 0.2, count=4000), **ADAM),
    Pair("imdb_sources", "text", OPEN, "sentiment of film reviews, 100 labels; one source a fifth wrong, one seven tenths wrong",
         sources.imdb, "positive", 100, 100, two("positive", 2000, 2000, (0.2, 0.7)), sources=2, **ADAM),
    Pair("imdb_unrelated", "text", HURTS,
         "sentiment of film reviews, 200 labels; a coin toss for each of 500 other reviews, to be learnt by heart",
         sources.imdb, "positive", 200, 100, coins, outputs=2),
    Pair("domains_helpfulness", "text", OPEN,
         "which of four shops a product review is from, 100 labels; whether others found the review helpful",
         sources.amazon, "domain", 100, 100, helpfulness, outputs=2),
    Pair("domains_duplicated", "text", HURTS,
         "the four shops again, 120 labels; nothing but copies of 10 of them, all of one shop",
         sources.amazon, "domain", 120, 100, copies(10), **ADAM),
    Pair("cifar_rotation", "image", OPEN, "CIFAR-10 at 16 pixels, 200 labels; by how much other images were turned",
         sources.cifar10, "class", 200, 200, turns, outputs=4, **CNN, **ADAM),
    Pair("cifar_imagenet", "image", HELPS, "CIFAR-10 at 16 pixels, 200 labels; 100 classes of Tiny ImageNet",
         sources.cifar10, "class", 200, 200, elsewhere(sources.tiny_imagenet, "class"), outputs=100, **CNN),
    Pair("xray_findings", "image", OPEN,
         "any finding on a chest X-ray, 200 labels; five findings on other images, some of the same patients",
         sources.xrays, "any", 200, 100, others("findings"), outputs=5, **CNN, **ADAM),
    # Held out for the second rule: larger validation and test sets, examples that no other pair is tested on.
    Pair("vehicles_animals", "image", OPEN, "four vehicles of CIFAR-10, 200 labels; its six animals",
         sources.vehicles, "class", 200, 400, elsewhere(sources.animals, "class"), outputs=6, **CNN, **ADAM),
    Pair("animals_shifted", "image", HURTS,
         "six animals of CIFAR-10, 300 labels; more of them, six tenths with the label of the next animal",
         sources.animals, "class", 300, 400, others("class", 0.6), **CNN, **ADAM),
    Pair("tiny_animals", "image", HELPS, "animal or thing of Tiny ImageNet, 200 labels; which of 100 classes, for other images",
         sources.living, "animal", 200, 400, others("class"), outputs=100, **CNN, **ADAM),
    Pair("xray_mirrored", "image", OPEN,
         "whether a chest X-ray is mirrored, 200 labels; five findings on other images, some of the same patients",
         sources.mirrored_xrays, "mirrored", 200, 400, others("findings"), outputs=5, **CNN),
    Pair("digits_large", "image", OPEN,
         "digit of five or more, 80 labels; which digit it is, for the other images, with a quarter of these labels random",
         sources.other_digits, "large", 80, 100, others("digit", 0.25, "random"), outputs=10),
    Pair("reviews_right", "text", HELPS, "sentiment of film reviews, 150 labels; 3,000 more with their right labels",
         sources.reviews, "positive", 150, 400, others("positive", count=3000), **ADAM),
    Pair("reviews_reversed", "text", HURTS, "sentiment of film reviews, 200 labels; 2,000 more, good ones said to be bad",
         sources.reviews, "positive", 200, 400, others("positive", 1.0, count=2000), **ADAM),
    Pair("helpful_shops", "text", OPEN,
         "whether a product review was found helpful, 300 labels; which of four shops others are from",
         sources.helpful, "helpful", 300, 400, elsewhere(sources.shops, "domain"), outputs=4),
    Pair("hastie_random", "table", HURTS,
         "scikit-learn's Hastie data (is a point far out?), 200 labels; 2,000 more with random labels",
         sources.hastie, "far", 200, 400, others("far", 1.0, "random", 2000)),
    Pair("friedman_terms", "table", HELPS,
         "scikit-learn's Friedman data, above the median or not, 150 labels; the three terms of the sum, for others",
         sources.friedman, "above", 150, 400, others("terms"), outputs=3),
    Pair("clusters_duplicated", "table", HURTS,
         "scikit-learn's clusters of four classes, 160 labels; nothing but copies of 16 of them, all of one class",
         sources.clusters, "class", 160, 400, copies(16)),
    Pair("clusters_sources", "table", OPEN, "the clusters, 160 labels; one source of right labels, one of shifted ones",
         sources.clusters, "class", 160, 400, two("class", 1000, 1000, (0.0, 1.0)), sources=2),
)
# fmt: on
PAIRS: dict[str, Pair] = {pair.name: pair for pair in _ALL}


def choose(names: list[str], *, held_out: bool) -> list[Pair]:
    """Pairs by name; held-out pairs only on request."""
    for name in names:
        if name not in PAIRS:
            raise SystemExit(f"unknown pair {name!r}; there are {', '.join(PAIRS)}")
        if PAIRS[name].held_out and not held_out:
            raise SystemExit(f"{name} is held out: it is run once, when the rule is frozen, with --held-out")
    return [PAIRS[name] for name in names]
