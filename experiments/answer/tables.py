"""Pairs of tables, made in the third round of measurements."""

from __future__ import annotations

import re
from zlib import crc32

import numpy as np
import torch
from sklearn.datasets import make_friedman2, make_friedman3
from torch.nn import functional as F

from .draw import balanced, generator, randomised, shifted, shuffled
from .folder import DataFolder, row_names
from .images import cifar10, fine_classes, superclasses
from .pair import Examples, Part, builder
from .texts import reviews

FILTERS = 48
HASHED = 256


def embedded(part: Part) -> Part:
    """Images become a list column of 192 features.

    They are 48 fixed random filters of 5 x 5 pixels, ReLU, and means over the four quarters.
    """
    numbers = generator("filters").standard_normal((FILTERS, 3, 5, 5), dtype=np.float32)
    filters = torch.from_numpy(numbers)
    filters -= filters.mean((1, 2, 3), keepdim=True)
    features = []
    for start in range(0, len(part), 256):
        pixels = torch.from_numpy(part.inputs[start : start + 256]).float()
        x = pixels.permute(0, 3, 1, 2) / 128 - 1
        features.append(F.adaptive_avg_pool2d(F.relu(F.conv2d(x, filters)), 2).flatten(1))
    column = torch.cat(features).numpy().round(4)
    return Part(part.ids, {"embedding": column}, part.labels, part.classes)


def hashed_words(part: Part) -> Part:
    """Texts become a list column: log counts of words, hashed into 256 numbers."""
    counts = np.zeros((len(part), HASHED), dtype=np.float32)
    for row, text in enumerate(part.inputs):
        for word in re.findall(r"\w+", text.lower()):
            counts[row, crc32(word.encode()) % HASHED] += 1
    return Part(part.ids, {"words": np.log1p(counts).round(4)}, part.labels, part.classes)


@builder
def embedded_groups(data: DataFolder) -> Examples:
    classes = (
        "food_containers",
        "large_carnivores",
        "non-insect_invertebrates",
        "vehicles_2",
        "medium_mammals",
    )
    pool, test, _ = superclasses(data, classes, 1000, 800, "embedded_groups")
    others = fine_classes(data, classes, 40, "embedded_groups/auxiliary")
    return Examples(embedded(pool), embedded(test), {"fine": embedded(others)})


@builder
def embedded_coins(data: DataFolder) -> Examples:
    groups = {name: (name,) for name in ("airplane", "deer", "truck")}
    test, parts = cifar10(data, groups, 600, (7500, 10_000), (240, 399), "embedded_coins")
    pool, others = parts
    coins = generator("embedded_coins/labels").integers(20, size=len(others))
    tossed = embedded(others).labelled(coins, [f"side_{number}" for number in range(20)])
    return Examples(embedded(pool), embedded(test), {"coins": tossed})


@builder
def words_sources(data: DataFolder) -> Examples:
    test = reviews(data, "test", (8400, 10_000), 800, "words_sources/test")
    pool = reviews(data, "train", (19_500, 20_500), 450, "words_sources/train")
    right = reviews(data, "train", (20_500, 22_000), 600, "words_sources/right")
    wrong = reviews(data, "train", (22_000, 25_000), 2000, "words_sources/wrong")
    reversed_labels = shifted(wrong, 1.0, "words_sources/labels")
    sources = {"right": hashed_words(right), "reversed": hashed_words(reversed_labels)}
    return Examples(hashed_words(pool), hashed_words(test), sources)


@builder
def rules_random(_: DataFolder) -> Examples:
    """One label in twelve of the primary task is random too."""
    count = 4000
    random = generator("rules_random")
    numbers = random.standard_normal((count, 6)).round(4)
    colour = random.choice(["red", "green", "blue", "grey"], count)
    place = random.choice(["north", "south", "east"], count)
    size = random.choice(["small", "large"], count)
    first = numbers[:, 0] + np.where(colour == "red", 1.0, -0.4) * numbers[:, 1]
    second = np.abs(numbers[:, 2]) - 0.8 + 0.7 * (place == "north") - 0.5 * (size == "large")
    labels = np.where(first > 0.4, 0, np.where(second > 0, 1, 2))
    noisy = random.random(count) < 1 / 12
    labels[noisy] = random.integers(3, size=int(noisy.sum()))
    columns = {f"x{number}": numbers[:, number] for number in range(6)}
    columns |= {"colour": colour, "place": place, "size": size}
    whole = Part(row_names("rules", "made", range(count)), columns, labels, ("a", "b", "c"))
    test_rows, pool_rows, rest = balanced(labels, [999, 399], "rules_random/parts")
    others = whole.take(shuffled(rest, "rules_random/auxiliary")[:1500])
    others = randomised(others, 1.0, "rules_random/labels")
    return Examples(whole.take(pool_rows), whole.take(test_rows), {"random": others})


@builder
def friedman_other(_: DataFolder) -> Examples:
    """Both functions use the same four columns; four more columns are noise."""
    parts = []
    functions = (("friedman3", make_friedman3, 3000), ("friedman2", make_friedman2, 1500))
    for name, function, count in functions:
        x, y = function(count, noise=0.0, random_state=crc32(name.encode()) % 2**31)
        noise = generator(f"friedman_other/{name}").standard_normal((count, 4))
        values = np.concatenate([x, noise], 1).T
        columns = {f"x{number}": column.round(4) for number, column in enumerate(values)}
        labels = (y > np.median(y)).astype(np.int64)
        ids = row_names(name, "made", range(count))
        parts.append(Part(ids, columns, labels, ("below", "above")))
    primary, other = parts
    test_rows, pool_rows, _ = balanced(primary.labels, [1000, 320], "friedman_other/parts")
    return Examples(primary.take(pool_rows), primary.take(test_rows), {"other": other})
