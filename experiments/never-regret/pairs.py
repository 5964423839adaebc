"""The primary/auxiliary pairs. Which of them are for development was declared in split.json before the rule was known."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import torch
from torch import Tensor

from . import sources
from .sources import Source

Examples = tuple[Tensor, Tensor]
HELPS, HURTS, OPEN = "helps", "hurts", "open"
SPLIT = json.loads((Path(__file__).parent / "split.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Data:
    """The data of one seed."""

    primary: Examples
    validation: Examples
    test: Examples
    auxiliary: dict[str, Examples]
    """By name of the source: one, or two of which a user does not know that they differ."""
    classes: int
    """Of the primary task."""
    outputs: int | None = None
    """Of an own head for the auxiliary tasks; None: they predict the primary classes with the primary head."""


@dataclass(frozen=True)
class Pair:
    """A scarce primary task and what is offered beside it. Real-valued auxiliary targets are regressed."""

    name: str
    kind: str
    built_to: str
    """What one expects of plain multitask training: `helps`, `hurts`, or `open`."""
    about: str
    build: Callable[[int], Data]
    model: str = "mlp"
    optimizer: str = "sgd"
    steps: int = 300
    sources: int = 1
    """How many auxiliary sources."""

    @property
    def held_out(self) -> bool:
        return self.name in SPLIT["held_out"]


PAIRS: dict[str, Pair] = {}


def pair(kind: str, built_to: str, about: str, **settings: str | int) -> Callable[[Callable[[int], Data]], Pair]:
    """Make the function that builds its data a pair of that name."""

    def add(build: Callable[[int], Data]) -> Pair:
        PAIRS[build.__name__] = made = Pair(build.__name__, kind, built_to, about, build, **settings)  # type: ignore[arg-type]
        return made

    return add


def generator(purpose: str, seed: int) -> torch.Generator:
    """Random numbers of one purpose, so that one choice does not move with another."""
    return torch.Generator().manual_seed(crc32(f"{purpose} {seed}".encode()))


def shuffled(rows: Tensor, purpose: str, seed: int) -> Tensor:
    return rows[torch.randperm(len(rows), generator=generator(purpose, seed))]


def cut(rows: Tensor, labels: Tensor, sizes: tuple[int, ...], seed: int) -> list[Tensor]:
    """Parts of the given sizes with equal counts of each class, and the rest."""
    rows = shuffled(rows, "split", seed)
    classes = labels[rows].unique().tolist()
    by_class = [rows[labels[rows] == c] for c in classes]
    parts, start = [], 0
    for size in sizes:
        end = start + -(-size // len(classes))
        parts.append(shuffled(torch.cat([own[start:end] for own in by_class]), "part", seed)[:size])
        start = end
    return [*parts, torch.cat([own[start:] for own in by_class])]


def split(source: Source, label: str, labels: int, validation: int, seed: int) -> tuple[dict[str, Examples], Tensor]:
    """Primary training, validation and test examples, and the rows that are left for the auxiliary task."""
    y = source.labels[label]
    train, held, rest = cut(source.pool, y, (labels, validation), seed)
    rows = {"primary": train, "validation": held, "test": source.test}
    return {name: (source.x[part], y[part]) for name, part in rows.items()}, rest


def wrong(y: Tensor, classes: int, share: float, kind: str, seed: int) -> Tensor:
    """Exchange a share of the labels: each for the next class (`shifted`), or for any (`random`)."""
    random = generator("labels", seed)
    touched = torch.randperm(len(y), generator=random)[: round(share * len(y))]
    y = y.clone()
    y[touched] = (
        (y[touched] + 1) % classes if kind == "shifted" else torch.randint(classes, touched.shape, generator=random)
    )
    return y


def one(x: Tensor, y: Tensor) -> dict[str, Examples]:
    """A single auxiliary source."""
    return {"auxiliary": (x, y)}


def copies(examples: Examples, count: int, classes: int, seed: int, *, wrong_label: bool = False) -> Examples:
    """Only copies of `count` examples of one class, with the label they have or that of the next class."""
    x, y = examples
    # At random: the first ones of a class are those that `train.run` makes judges.
    found = shuffled((y == seed % classes).nonzero().flatten(), "copies", seed)[:count]
    return x[found], (y[found] + wrong_label) % classes


@pair("image", HELPS, "scikit-learn's digits, 100 labels; the other images with their right labels")
def digits_right(seed: int) -> Data:
    source = sources.digits()
    own, rest = split(source, "digit", 100, 100, seed)
    return Data(**own, auxiliary=one(source.x[rest], source.labels["digit"][rest]), classes=10)


@pair("image", HURTS, "the same, with half of the auxiliary labels shifted to the next class")
def digits_shifted(seed: int) -> Data:
    source = sources.digits()
    own, rest = split(source, "digit", 100, 100, seed)
    y = wrong(source.labels["digit"][rest], 10, 0.5, "shifted", seed)
    return Data(**own, auxiliary=one(source.x[rest], y), classes=10)


@pair("image", HELPS, "odd or even digit, 60 labels; which digit it is, for the other images")
def digits_parity(seed: int) -> Data:
    source = sources.digits()
    own, rest = split(source, "odd", 60, 60, seed)
    return Data(**own, auxiliary=one(source.x[rest], source.labels["digit"][rest]), classes=2, outputs=10)


@pair("image", OPEN, "digits, 100 labels; one source of right labels, one of shifted ones", sources=2)
def digits_sources(seed: int) -> Data:
    source = sources.digits()
    own, rest = split(source, "digit", 100, 100, seed)
    rest, y = shuffled(rest, "sources", seed), source.labels["digit"]
    right, shifted = rest[:400], rest[400:]
    both = {
        "right": (source.x[right], y[right]),
        "shifted": (source.x[shifted], wrong(y[shifted], 10, 1.0, "shifted", seed)),
    }
    return Data(**own, auxiliary=both, classes=10)


@pair("table", HURTS, "cultivar of a wine, 40 labels; the other wines with random labels")
def wine_random(seed: int) -> Data:
    source = sources.wine()
    own, rest = split(source, "cultivar", 40, 24, seed)
    y = wrong(source.labels["cultivar"][rest], 3, 1.0, "random", seed)
    return Data(**own, auxiliary=one(source.x[rest], y), classes=3)


@pair("table", HURTS, "breast cancer, 40 labels; nothing but copies of 8 patients of one class, in the other one")
def cancer_duplicated(seed: int) -> Data:
    own, _ = split(sources.cancer(), "benign", 40, 40, seed)
    return Data(**own, auxiliary=one(*copies(own["primary"], 8, 2, seed, wrong_label=True)), classes=2)


@pair("table", HURTS, "breast cancer, 40 labels; the other patients, half of their labels exchanged", optimizer="adam")
def cancer_shifted(seed: int) -> Data:
    source = sources.cancer()
    own, rest = split(source, "benign", 40, 40, seed)
    y = wrong(source.labels["benign"][rest], 2, 0.5, "shifted", seed)
    return Data(**own, auxiliary=one(source.x[rest], y), classes=2)


@pair("table", OPEN, "diabetes worse than the median, 80 labels; blood values of other patients from age, sex, weight")
def diabetes_measures(seed: int) -> Data:
    source = sources.diabetes()
    own, rest = split(source, "worse", 80, 60, seed)
    x = source.x[rest].clone()
    x[:, 4:] = 0
    return Data(**own, auxiliary=one(x, source.labels["blood"][rest]), classes=2, outputs=6)


@pair(
    "text",
    HELPS,
    "sentiment of film reviews, 100 labels; 4,000 more, of which a fifth have wrong labels",
    optimizer="adam",
)
def imdb_noisy(seed: int) -> Data:
    source = sources.imdb()
    own, rest = split(source, "positive", 100, 100, seed)
    rest = shuffled(rest, "fewer", seed)[:4000]
    y = wrong(source.labels["positive"][rest], 2, 0.2, "shifted", seed)
    return Data(**own, auxiliary=one(source.x[rest], y), classes=2)


@pair(
    "text",
    OPEN,
    "sentiment of film reviews, 100 labels; one source a fifth wrong, one seven tenths wrong",
    optimizer="adam",
    sources=2,
)
def imdb_sources(seed: int) -> Data:
    source = sources.imdb()
    own, rest = split(source, "positive", 100, 100, seed)
    rest, y = shuffled(rest, "sources", seed), source.labels["positive"]
    both = {}
    for name, rows, share in (("good", rest[:2000], 0.2), ("bad", rest[2000:4000], 0.7)):
        both[name] = source.x[rows], wrong(y[rows], 2, share, "shifted", seed)
    return Data(**own, auxiliary=both, classes=2)


@pair(
    "text",
    HURTS,
    "sentiment of film reviews, 200 labels; a coin toss for each of 500 other reviews, to be learnt by heart",
)
def imdb_unrelated(seed: int) -> Data:
    source = sources.imdb()
    own, rest = split(source, "positive", 200, 100, seed)
    rest = shuffled(rest, "fewer", seed)[:500]
    coins = torch.randint(2, (len(rest),), generator=generator("coins", seed))
    return Data(**own, auxiliary=one(source.x[rest], coins), classes=2, outputs=2)


@pair("text", OPEN, "which of four shops a product review is from, 100 labels; whether others found the review helpful")
def domains_helpfulness(seed: int) -> Data:
    source = sources.amazon()
    own, rest = split(source, "domain", 100, 100, seed)
    helpful = source.labels["helpful"]
    rest = rest[helpful[rest] < 2]
    return Data(**own, auxiliary=one(source.x[rest], helpful[rest]), classes=4, outputs=2)


@pair(
    "text",
    HURTS,
    "the four shops again, 120 labels; nothing but copies of 10 of them, all of one shop",
    optimizer="adam",
)
def domains_duplicated(seed: int) -> Data:
    own, _ = split(sources.amazon(), "domain", 120, 100, seed)
    return Data(**own, auxiliary=one(*copies(own["primary"], 10, 4, seed)), classes=4)


@pair(
    "image",
    OPEN,
    "CIFAR-10 at 16 pixels, 200 labels; by how much other images were turned",
    model="cnn",
    optimizer="adam",
)
def cifar_rotation(seed: int) -> Data:
    source = sources.cifar10()
    own, rest = split(source, "class", 200, 200, seed)
    rest = shuffled(rest, "fewer", seed)[:4000]
    turns = torch.randint(4, (len(rest),), generator=generator("turns", seed))
    x = source.x[rest].clone()
    for turn in (1, 2, 3):
        x[turns == turn] = x[turns == turn].rot90(turn, (2, 3))
    return Data(**own, auxiliary=one(x, turns), classes=10, outputs=4)


@pair("image", HELPS, "CIFAR-10 at 16 pixels, 200 labels; 100 classes of Tiny ImageNet", model="cnn")
def cifar_imagenet(seed: int) -> Data:
    other = sources.tiny_imagenet()
    own, _ = split(sources.cifar10(), "class", 200, 200, seed)
    return Data(**own, auxiliary=one(other.x, other.labels["class"]), classes=10, outputs=100)


@pair(
    "image",
    OPEN,
    "any finding on a chest X-ray, 200 labels; five findings on those of other patients",
    model="cnn",
    optimizer="adam",
)
def xray_findings(seed: int) -> Data:
    source = sources.xrays()
    own, rest = split(source, "any", 200, 100, seed)
    test = cut(source.test, source.labels["any"], (2 * int(source.labels["any"][source.test].sum()),), 0)[0]
    own["test"] = source.x[test], source.labels["any"][test]
    return Data(**own, auxiliary=one(source.x[rest], source.labels["class"][rest].float()), classes=2, outputs=5)


def choose(names: list[str], *, held_out: bool) -> list[Pair]:
    """Pairs by name; those that are held out only for who says so."""
    for name in names:
        if name not in PAIRS:
            raise SystemExit(f"unknown pair {name!r}; there are {', '.join(PAIRS)}")
        if PAIRS[name].held_out and not held_out:
            raise SystemExit(f"{name} is held out: it is run once, when the rule is frozen, with --held-out")
    return [PAIRS[name] for name in names]
