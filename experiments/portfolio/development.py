"""The 28 pairs of the first two rounds as jobs of the product. They are spent, so defaults may be decided on them.

They keep their data, label counts and auxiliary offers. What differs from the earlier rounds: the product's own models read
texts as texts, at most 1,000 examples are tested on, the labels of a seed come from a pool of three times as many, copies
of examples are changed a little (the product leaves exact ones out), and regressed targets became above or below the median.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch

from .declare import Pair, facts
from .examples import Built, Folder, Part, balanced, first_words, generator, grouped, names, shuffled

old: Any = import_module("experiments.never-regret.pairs")
sources: Any = import_module("experiments.never-regret.sources")
offers: Any = import_module("experiments.never-regret.offers")
cut: Callable[..., Any] = import_module("experiments.never-regret.cuts").cut

MOST_TESTED, POOL, WORDS = 1000, 3, 100
MODELS = {"image": {"name": "small-cnn", "width": 16}, "text": {"name": "text-cnn", "width": 32}}
TABLE = {"name": "mlp", "width": 64}
_TEXTS = {  # as the earlier rounds' cache has them, row by row
    "imdb": [("imdb", "train", 0, 7000), ("imdb", "test", 0, 2000)],
    "reviews": [("imdb", "train", 7000, 12_000), ("imdb", "test", 2000, 5000)],
    "amazon": [("amazon_helpful", part, 0, None) for part in ("train", "validation", "test", "unsupervised")],
}


def _row_numbers(found: dict[str, np.ndarray], labels: dict[str, np.ndarray], test: int) -> Any:
    """Instead of counts of words: the number of the row, by which its text is found."""
    count = len(found["ends"]) - 1
    order = torch.arange(count)
    tensors = {name: torch.from_numpy(y).long() for name, y in labels.items()}
    return sources.Source(order[:, None].float(), tensors, order[: count - test], order[count - test :])


@cache
def _texts(data: Folder, name: str) -> list[str]:
    found: list[str] = []
    for folder, split, start, end in _TEXTS[name]:
        found += data.column(folder, split, "text")[start:end]
    return first_words(found, WORDS)


CATS = "cat_vs_dog"


def cat_vs_dog(data: Folder) -> Built:
    """The paper's cats and dogs of CIFAR-10 at 16 pixels; 4,000 images of the other eight classes."""
    labels = {split: np.array(data.column("cifar10", split, "label")) for split in ("train", "test")}
    parts = []
    for split, size in (("train", 600), ("test", MOST_TESTED)):
        own = grouped(labels[split], [[3], [5]])
        if split == "test":
            own[5000:7500] = -1  # a held-out pair is tested on some of these
        rows = balanced(own, [size], f"{CATS}/{split}")[0]
        parts.append(Part(*data.images("cifar10", split, rows, 16), own[rows], ("cat", "dog")))
    others = grouped(labels["train"], [[number] for number in (0, 1, 2, 4, 6, 7, 8, 9)])
    rows = balanced(others, [4000], f"{CATS}/others")[0]
    classes = ("airplane", "automobile", "bird", "deer", "frog", "horse", "ship", "truck")
    return Built(*parts, {"others": Part(*data.images("cifar10", "train", rows, 16), others[rows], classes)})


def kind_of(name: str) -> str:
    """Digits and other vectors are tables to the product."""
    pair = old.PAIRS[name]
    return str(pair.kind) if pair.model == "cnn" or pair.kind == "text" else "table"


def made(name: str, data: Folder) -> Built:
    if name == CATS:
        return cat_vs_dog(data)
    sources.texts = _row_numbers
    pair, kind = old.PAIRS[name], kind_of(name)
    source = pair.source()
    y, wanted = source.labels[pair.label], pair.labels + pair.validation
    most = min(POOL * wanted, max(wanted, len(source.pool) // 2))
    pool, rest = cut(source.pool, y, (most,), 0)
    test = source.test[torch.from_numpy(np.sort(shuffled(range(len(source.test)), f"{name}/test")[:MOST_TESTED]))]
    classes = tuple(f"class_{number}" for number in range(source.classes(pair.label)))
    offered = pair.offer(offers.Given(source, (source.x[pool], y[pool]), rest, 0))
    copied = name.endswith("_duplicated")

    def part(x: Any, labels: Any, known: tuple[str, ...], place: str, *, changed: bool = False) -> Part:
        found: Any
        if kind == "text":
            group = {"imdb": "imdb", "reviews": "reviews"}.get(pair.source.__name__, "amazon")
            found = [_texts(data, group)[int(row)] + (" ." if changed else "") for row in x[:, 0]]
        elif kind == "image":
            x = (x - source.x.min()) / (source.x.max() - source.x.min())
            pixels = (x.clamp(0, 1) * 255).round().byte().numpy()
            found = pixels[:, 0] if pixels.shape[1] == 1 else pixels.transpose(0, 2, 3, 1)
        else:
            noise = generator(f"{name}/noise").standard_normal(x.shape) if changed else 0.0
            found = {"x": (x.numpy() + 0.01 * noise).astype(np.float32)}
        return Part(names(name, place, np.arange(len(x))), found, labels.numpy().astype(np.int64), known)

    auxiliary = {}
    for label, (x, targets) in offered.items():
        found = targets
        if found.is_floating_point():  # regressed, or findings that are 0 or 1
            found = (found > (0.5 if set(found.unique().tolist()) <= {0.0, 1.0} else found.median(0).values)).long()
        several = found.ndim == 2
        count = found.shape[1] if several else pair.outputs
        known = classes if pair.outputs is None else tuple(f"{label}_{number}" for number in range(count))
        auxiliary[label] = part(x, found, known, label, changed=copied)
    return Built(
        part(source.x[pool], y[pool], classes, "pool"), part(source.x[test], y[test], classes, "test"), auxiliary
    )


def described(name: str, built: Built) -> Pair:
    """In the form of the declaration."""
    if name == CATS:
        about, labels = "cat or dog of CIFAR-10; its other eight classes", {"train": 100, "validation": 100}
        return Pair(
            CATS, "image", "helps", about, "the paper's task, small", MODELS["image"], labels=labels, **facts(built)
        )
    pair, kind = old.PAIRS[name], kind_of(name)
    labels = {"train": pair.labels, "validation": pair.validation}
    why = f"of the first two rounds ({'held out' if pair.held_out else 'development'} there)"
    model = MODELS.get(kind, TABLE)
    return Pair(name, kind, pair.built_to, pair.about, why, model, labels=labels, **facts(built))
