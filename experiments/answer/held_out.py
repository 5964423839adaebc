"""The pairs that are held out in the fourth round of measurements; protocol.md declares them.

No test example is an example of a development pair with one exception: the X-rays, where the
development pairs have used every image, have another task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from .draw import balanced, grouped, joined, randomised, shifted, shuffled
from .folder import DataFolder, row_names
from .images import CIFAR10, pictures, positions, superclass_labels
from .pair import BUILDERS, Examples, Part, builder
from .texts import SENTIMENT, lower_words, with_texts

SIZE, GREY_SIZE, IMAGENET_SIZE, XRAY_SIZE = 32, 32, 64, 64
"""Pixels of a side."""


# -------------------------------------------------------------------------------------- unused rows


class NamesOnly(DataFolder):
    """A data folder that decodes no image, for the names of rows alone."""

    def image(self, dataset: str, split: str, row: int, size: int, mode: str) -> np.ndarray:
        channels = {"RGB": (3,), "L": ()}
        return np.zeros((size, size, *channels[mode]), dtype=np.uint8)


@cache
def development_rows(root: Path) -> frozenset[str]:
    """The names of all examples of all development pairs."""
    from . import earlier, tables  # noqa: F401  # they register builders

    data = NamesOnly(root)
    names: set[str] = set()
    for make in BUILDERS.values():
        if make.__module__ != __name__:
            for part in make(data).parts():
                names.update(part.ids)
    return frozenset(names)


def unused(data: DataFolder, dataset: str, split: str, labels: np.ndarray) -> np.ndarray:
    """The labels of a split, with -1 for rows that a development pair has."""
    names_in_use = development_rows(data.root)
    names = row_names(dataset, split, range(len(labels)))
    in_use = [name in names_in_use for name in names]
    return np.where(in_use, -1, labels)


def row_numbers(part: Part) -> list[int]:
    """The row numbers, in the split, of a part whose examples are all from that split."""
    return [int(name.rpartition("/")[2]) for name in part.ids]


# ------------------------------------------------------------------------------------------- images


def cifar(
    data: DataFolder,
    dataset: str,
    column: str,
    groups: dict[str, Sequence[int]],
    test: int,
    sizes: Sequence[int],
    purpose: str,
) -> list[Part]:
    """`test` images of the test split and training parts of `sizes`, none of them used before."""
    parts: list[Part] = []
    for split, counts in (("test", [test]), ("train", sizes)):
        labels = grouped(data.column(dataset, split, column), groups.values())
        labels = unused(data, dataset, split, labels)
        for rows in balanced(labels, counts, f"{purpose}/{split}")[:-1]:
            parts.append(pictures(data, dataset, split, labels, rows, groups, SIZE))
    return parts


@builder
def animals_renamed(data: DataFolder) -> Examples:
    names = ("automobile", "cat", "deer", "dog")
    groups = dict(zip(names, positions(CIFAR10, names), strict=True))
    test, pool, others = cifar(
        data, "cifar10", "label", groups, 800, (240, 2000), "animals_renamed"
    )
    return Examples(pool, test, {"renamed": shifted(others, 1.0, "animals_renamed/labels")})


DEVICES = {"clock": [22], "keyboard": [39], "lamp": [40], "telephone": [86], "television": [87]}
PEOPLE = {"child": [2, 11, 35], "adult": [46, 98]}
BABY_TO_WOMAN = {"baby": [2], "boy": [11], "girl": [35], "man": [46], "woman": [98]}
"""Fine classes of CIFAR-100."""


@builder
def devices_shifted(data: DataFolder) -> Examples:
    test, pool, others = cifar(
        data, "cifar100", "fine_label", DEVICES, 500, (450, 1500), "devices_shifted"
    )
    return Examples(pool, test, {"shifted": shifted(others, 0.7, "devices_shifted/labels")})


@builder
def people_sources(data: DataFolder) -> Examples:
    """Children and adults. One source tells boys and men from girls and women, one has animals."""
    test, pool = cifar(data, "cifar100", "fine_label", PEOPLE, 260, (360,), "people_sources")
    fine = np.array(data.column("cifar100", "train", "fine_label"))
    free = unused(data, "cifar100", "train", grouped(fine, BABY_TO_WOMAN.values()))
    free[row_numbers(pool)] = -1
    sexes = np.array([-1, 0, 1, 0, 1])[free]  # of baby, boy, girl, man, woman
    sexes[free == -1] = -1
    rows, _ = balanced(sexes, [600], "people_sources/sexes")
    with_sexes = pictures(data, "cifar100", "train", sexes, rows, ("male", "female"), SIZE)
    animals = superclass_labels(data, "train", ("small_mammals", "medium_mammals", "reptiles"))
    rows, _ = balanced(animals, [1200], "people_sources/animals")
    names = ("small_mammal", "medium_mammal", "reptile")
    with_animals = pictures(data, "cifar100", "train", animals, rows, names, SIZE)
    return Examples(pool, test, {"sexes": with_sexes, "animals": with_animals})


KINDS = {
    "vehicle": (103, 107, 108, 115, 116, 121, 133, 145, 153, 164, 166),
    "clothing": (105, 112, 119, 120, 134, 144, 149, 150, 158, 169),
    "food": (178, 179, 180, 181, 182, 183, 184, 186, 187, 188, 189, 190, 191, 192),
    "structure": (102, 124, 154, 157, 162, 165, 170, 173),
}
THINGS = {
    "sport": (100, 138, 143, 171),
    "kitchen": (104, 160, 172, 174, 175, 177),
    "landscape": (194, 195, 196, 197, 198),
}
"""Classes of Tiny ImageNet, all above 99."""


def imagenet(
    data: DataFolder, groups: dict[str, Sequence[int]], sizes: Sequence[int], purpose: str
) -> list[Part]:
    """Parts of the training split of Tiny ImageNet with these sizes."""
    labels = grouped(data.column("tiny_imagenet", "train", "label"), groups.values())
    labels = unused(data, "tiny_imagenet", "train", labels)
    parts = []
    for rows in balanced(labels, sizes, purpose)[:-1]:
        parts.append(imagenet_pictures(data, labels, rows, groups))
    return parts


def imagenet_pictures(
    data: DataFolder, labels: np.ndarray, rows: np.ndarray, classes: Iterable[str]
) -> Part:
    return pictures(data, "tiny_imagenet", "train", labels, rows, classes, IMAGENET_SIZE)


@builder
def kinds_elsewhere(data: DataFolder) -> Examples:
    """The source has the 57 upper classes of Tiny ImageNet that belong to none of the kinds."""
    test, pool = imagenet(data, KINDS, (480, 120), "kinds_elsewhere")
    others = sorted(set(range(100, 200)).difference(*KINDS.values()))
    labels = grouped(data.column("tiny_imagenet", "train", "label"), zip(others))
    rows, _ = balanced(labels, [30 * len(others)], "kinds_elsewhere/auxiliary")
    names = [f"imagenet_{number}" for number in others]
    part = imagenet_pictures(data, labels, rows, names)
    return Examples(pool, test, {"imagenet": part})


@builder
def things_random(data: DataFolder) -> Examples:
    test, pool = imagenet(data, THINGS, (150, 90), "things_random")
    labels = grouped(data.column("tiny_imagenet", "train", "label"), THINGS.values())
    labels[row_numbers(test)] = -1
    labels[row_numbers(pool)] = -1
    rows = shuffled(np.flatnonzero(labels >= 0), "things_random/auxiliary")
    part = imagenet_pictures(data, labels, rows, THINGS)
    return Examples(pool, test, {"random": randomised(part, 1.0, "things_random/labels")})


ATELECTASIS, OTHER_FINDINGS, EFFUSION = 0, slice(1, 4), 4
"""Columns of the X-rays' labels."""


def xrays(
    data: DataFolder,
    places: Sequence[tuple[str, int]],
    rows: np.ndarray,
    labels: np.ndarray,
    classes: Sequence[str],
) -> Part:
    """Some rows of all X-rays; `places` has the split and the row in it for each, `labels` too."""
    chosen = [places[row] for row in rows]
    pixels = [data.image("nih_chest_xray", *place, XRAY_SIZE, "L") for place in chosen]
    ids = [f"nih_chest_xray/{split}/{row}" for split, row in chosen]
    return Part(ids, np.stack(pixels), labels[rows], tuple(classes))


@builder
def xray_exchanged(data: DataFolder) -> Examples:
    """X-rays with either atelectasis or effusion; no patient is in two of test, pool and sources.
    One source calls each finding by the name of the other; one has other findings.
    """
    places: list[tuple[str, int]] = []
    labels: list[list[int]] = []
    row_patients: list[Any] = []
    for split in ("train", "validation", "test"):
        column = data.column("nih_chest_xray", split, "labels")
        places += zip([split] * len(column), range(len(column)), strict=True)
        labels += column
        row_patients += data.column("nih_chest_xray", split, "patient")
    findings = np.array(labels)
    patients, patient_numbers = np.unique(row_patients, return_inverse=True)
    order = shuffled(range(len(patients)), "xray_exchanged/patients")
    # From 0 to 1: where the patient of each row stands in this order.
    position = np.argsort(order)[patient_numbers] / len(patients)
    effusion = findings[:, EFFUSION]
    task = np.where(findings[:, ATELECTASIS] + effusion == 1, effusion, -1)
    tested = np.where(position < 0.45, task, -1)
    pooled = np.where((position >= 0.45) & (position < 0.65), task, -1)
    test, _ = balanced(tested, [280], "xray_exchanged/test")
    pool, _ = balanced(pooled, [120], "xray_exchanged/pool")
    rest = position >= 0.65
    same = np.flatnonzero(rest & (task >= 0))
    others = shuffled(np.flatnonzero(rest & (task < 0)), "xray_exchanged/others")
    names = ("atelectasis", "effusion")
    exchanged = shifted(xrays(data, places, same, task, names), 1.0, "xray_exchanged/labels")
    other_names = ("cardiomegaly", "consolidation", "edema")
    others_part = xrays(data, places, others, findings[:, OTHER_FINDINGS], other_names)
    pool_part = xrays(data, places, pool, task, names)
    test_part = xrays(data, places, test, task, names)
    return Examples(pool_part, test_part, {"exchanged": exchanged, "others": others_part})


def framed(pixels: np.ndarray) -> np.ndarray:
    """Images n x s x s, each in the middle of a black square with sides of GREY_SIZE."""
    before = (GREY_SIZE - pixels.shape[1]) // 2
    after = GREY_SIZE - pixels.shape[1] - before
    return np.pad(pixels, ((0, 0), (before, after), (before, after)))


@builder
def handwriting_sources(data: DataFolder) -> Examples:
    """MNIST's digits; scikit-learn's are enlarged to 20 pixels, the size of MNIST's without
    frames.
    """
    names = tuple("0123456789")
    ids: list[str] = []
    images = []
    for name in names:
        pixels = data.archives.digits(int(name))
        ids += row_names("mnist", name, range(len(pixels)))
        images.append(pixels)
    labels = np.repeat(np.arange(10), list(map(len, images)))
    whole = Part(ids, framed(np.concatenate(images)), labels, names)
    drawn = balanced(labels, [800, 120, 1000], "handwriting_sources/parts")
    test, pool, wrong = whole.take_each(drawn[:-1])

    small = []
    digits, digit_labels = load_digits(return_X_y=True)
    for pixels in digits.reshape(-1, 8, 8):
        image = Image.fromarray((pixels * 255 / 16).round().astype(np.uint8))
        small.append(np.asarray(image.resize((20, 20), Image.Resampling.BICUBIC)))
    digit_ids = row_names("scikit-learn", "digits", range(len(small)))
    right = Part(digit_ids, framed(np.stack(small)), digit_labels, names)
    mirrored = wrong.labelled(9 - wrong.labels, names)
    return Examples(pool, test, {"other_hands": right, "mirrored": mirrored})


# -------------------------------------------------------------------------------------------- texts

PLACES = {
    "tweet": "tweets",
    "film": "movieReviewSnippets",
    "product": "amazonReviewSnippets",
    "editorial": "nytEditorialSnippets",
}
CLEAR = 0.5
"""The least mean rating, from -4 to 4, of a sentence that counts as positive or negative."""


def sentences(data: DataFolder, place: str) -> tuple[Part, np.ndarray]:
    """All different sentences of four words or more from one place, and their ratings, -4 to 4.

    The labels are 0 for negative, 1 for positive and -1 for neither.
    """
    ids = []
    texts = []
    ratings = []
    earlier = set()
    for number, rating, text in data.archives.rated(PLACES[place]):
        words = " ".join(lower_words(text))
        if len(text.split()) >= 4 and words not in earlier:
            earlier.add(words)
            ids.append(f"vaderSentiment/{place}/{number}")
            texts.append(text)
            ratings.append(rating)
    values = np.array(ratings)
    labels = np.select([values >= CLEAR, values <= -CLEAR], [1, 0], -1)
    return Part(ids, texts, labels, SENTIMENT), values


def with_sentiment(data: DataFolder, place: str, sizes: Sequence[int], purpose: str) -> list[Part]:
    """Parts with as many positive as negative sentences."""
    whole, _ = sentences(data, place)
    return whole.take_each(balanced(whole.labels, sizes, purpose)[:-1])


@builder
def tweets_films(data: DataFolder) -> Examples:
    test, pool = with_sentiment(data, "tweet", (800, 180), "tweets_films")
    (films,) = with_sentiment(data, "film", (3000,), "tweets_films/films")
    return Examples(pool, test, {"films": films})


@builder
def tweets_strength(data: DataFolder) -> Examples:
    whole, ratings = sentences(data, "tweet")
    strength = np.select([np.abs(ratings) >= 2, np.abs(ratings) < 1], [1, 0], -1)
    drawn = balanced(strength, [600, 300], "tweets_strength")[:-1]
    test, pool = whole.labelled(strength, ("mild", "strong")).take_each(drawn)
    (films,) = with_sentiment(data, "film", (2000,), "tweets_strength/films")
    return Examples(pool, test, {"sentiment": films})


@builder
def editorials_reversed(data: DataFolder) -> Examples:
    sizes = (600, 300, 1400)
    test, pool, others = with_sentiment(data, "editorial", sizes, "editorials_reversed")
    return Examples(pool, test, {"reversed": shifted(others, 0.8, "editorials_reversed/labels")})


@builder
def products_sources(data: DataFolder) -> Examples:
    test, pool, right = with_sentiment(data, "product", (700, 240, 300), "products_sources")
    films, _ = sentences(data, "film")
    rows = shuffled(range(len(films)), "products_sources/films")[:2000]
    tossed = films.take(rows).labelled(np.zeros(len(rows)), SENTIMENT)
    noise = randomised(tossed, 1.0, "products_sources/labels")
    return Examples(pool, test, {"right": right, "random": noise})


@builder
def places_by_length(data: DataFolder) -> Examples:
    """The source calls a sentence by its length: the shortest quarter are tweets, and so on."""
    names = tuple(PLACES)
    parts = []
    for number, place in enumerate(names):
        part, _ = sentences(data, place)
        parts.append(part.labelled(np.full(len(part), number), names))
    whole = joined(parts)
    drawn = balanced(whole.labels, [800, 120, 2000], "places_by_length")[:-1]
    test, pool, others = whole.take_each(drawn)
    lengths = np.array(list(map(len, others.inputs)))
    return Examples(pool, test, {"length": others.labelled(quantile(lengths, 4), names)})


def film_reviews(data: DataFolder, split: str, size: int, purpose: str) -> Part:
    labels = unused(data, "imdb", split, np.array(data.column("imdb", split, "label")))
    rows, _ = balanced(labels, [size], purpose)
    return with_texts(data, "imdb", split, rows, labels[rows], SENTIMENT)


@builder
def reviews_coins(data: DataFolder) -> Examples:
    test = film_reviews(data, "test", 800, "reviews_coins/test")
    pool = film_reviews(data, "train", 120, "reviews_coins/train")
    labels = np.zeros(2000, dtype=np.int64)
    part = with_texts(data, "imdb", "unsupervised", np.arange(2000), labels, SENTIMENT)
    coins = randomised(part, 1.0, "reviews_coins/labels")
    return Examples(pool, test, {"coins": coins})


@builder
def reviews_strangers(data: DataFolder) -> Examples:
    """Other film reviews than `reviews_coins` has."""
    parts = {}
    for split, of_coins, count in (("test", 800, 800), ("train", 120, 600)):
        part = film_reviews(data, split, of_coins + count, "reviews_strangers")
        avoid = set(film_reviews(data, split, of_coins, f"reviews_coins/{split}").ids)
        free = [name not in avoid for name in part.ids]
        labels = np.where(free, part.labels, -1)
        rows, _ = balanced(labels, [count], f"reviews_strangers/{split}")
        parts[split] = part.take(rows)
    helpful = np.array(data.column("amazon_helpful", "train", "label"))
    rows = np.arange(len(helpful))
    votes = with_texts(data, "amazon_helpful", "train", rows, helpful, ("unhelpful", "helpful"))
    (tweets,) = with_sentiment(data, "tweet", (1200,), "reviews_strangers/tweets")
    sources = {"tweets": tweets, "votes": votes}
    return Examples(parts["train"], parts["test"], sources)


# ------------------------------------------------------------------------------------------- tables


def table(
    data: DataFolder, package: str, name: str, inputs: Sequence[str], targets: Sequence[str]
) -> tuple[Part, dict[str, np.ndarray]]:
    """A table without labels, and its columns of targets; of rows with equal inputs the first."""
    columns = data.archives.table(package, name)
    keys = zip(*(columns[column].tolist() for column in inputs), strict=True)
    first_row: dict[tuple[Any, ...], int] = {}
    for row, key in enumerate(keys):
        first_row.setdefault(key, row)
    rows = np.array([*first_row.values()])
    ids = row_names(package, name.rpartition("/")[2].removesuffix(".csv"), rows)
    values = {column: columns[column][rows] for column in inputs}
    part = Part(ids, values, np.full(len(rows), -1), ())
    return part, {column: columns[column][rows] for column in targets}


def quantile(values: np.ndarray, count: int) -> np.ndarray:
    """The number of the part, of `count` equal parts, in which each value lies."""
    inner = np.linspace(0, 1, count + 1)[1:-1]
    return np.searchsorted(np.quantile(values, inner), values)


def divided(whole: Part, sizes: Sequence[int], purpose: str) -> list[Part]:
    """Parts of these sizes with equal counts of each class; last, the rest in random order."""
    *drawn, rest = balanced(whole.labels, sizes, purpose)
    return whole.take_each([*drawn, shuffled(rest, f"{purpose}/rest")])


MARRIAGE = ("very_poor", "poor", "fair", "good", "very_good")


@builder
def affairs_marriage(data: DataFolder) -> Examples:
    inputs = ("age", "yrs_married", "children", "religious", "educ")
    inputs += ("occupation", "occupation_husb")
    name = "statsmodels/datasets/fair/fair"
    whole, targets = table(data, "statsmodels", name, inputs, ("affairs", "rate_marriage"))
    any_affair = (targets["affairs"] > 0).astype(np.int64)
    *drawn, rest = balanced(any_affair, [900, 300], "affairs_marriage")
    test, pool = whole.labelled(any_affair, ("no", "yes")).take_each(drawn)
    rest = shuffled(rest, "affairs_marriage/rest")[:2000]
    rated = whole.labelled(targets["rate_marriage"] - 1, MARRIAGE)
    return Examples(pool, test, {"marriage": rated.take(rest)})


@builder
def diamonds_shifted(data: DataFolder) -> Examples:
    inputs = ("carat", "cut", "color", "clarity", "depth", "table", "x", "y", "z")
    whole, targets = table(data, "pydataset", "ggplot2/diamonds", inputs, ("price",))
    names = ("cheapest", "cheap", "dear", "dearest")
    whole = whole.labelled(quantile(targets["price"], 4), names)
    test, pool, rest = divided(whole, (1000, 360), "diamonds_shifted")
    others = shifted(rest.take(range(2000)), 1.0, "diamonds_shifted/labels")
    return Examples(pool, test, {"shifted": others})


@builder
def computers_exchanged(data: DataFolder) -> Examples:
    """The source calls the cheapest third the dearest, and the other way round."""
    inputs = ("speed", "hd", "ram", "screen", "cd", "multi", "premium", "ads", "trend")
    whole, targets = table(data, "pydataset", "Ecdat/Computers", inputs, ("price",))
    whole = whole.labelled(quantile(targets["price"], 3), ("low", "middle", "high"))
    test, pool, rest = divided(whole, (900, 90), "computers_exchanged")
    others = rest.take(range(1500))
    exchanged = others.labelled(2 - others.labels, others.classes)
    return Examples(pool, test, {"exchanged": exchanged})


@builder
def mortgages_random(data: DataFolder) -> Examples:
    inputs = ("dir", "hir", "lvr", "ccs", "mcs", "pbcr", "dmi", "self", "single", "uria")
    whole, targets = table(data, "pydataset", "Ecdat/Hdma", inputs, ("deny",))
    whole = whole.labelled(targets["deny"] == "yes", ("granted", "denied"))
    test, pool, rest = divided(whole, (300, 120), "mortgages_random")
    others = randomised(rest.take(range(1500)), 1.0, "mortgages_random/labels")
    return Examples(pool, test, {"random": others})


@builder
def traits_sources(data: DataFolder) -> Examples:
    """Answers to 25 questions about one's personality."""
    inputs = [f"{trait}{number}" for trait in "ACENO" for number in range(1, 6)]
    whole, targets = table(data, "pydataset", "psych/bfi", inputs, ("gender", "education", "age"))
    sex = targets["gender"].astype(np.int64) - 1
    *drawn, rest = balanced(sex, [500, 600], "traits_sources")
    test, pool = whole.labelled(sex, ("man", "woman")).take_each(drawn)
    rest = shuffled(rest, "traits_sources/rest")
    half = len(rest) // 2
    with_age = whole.labelled(quantile(targets["age"], 3), ("young", "middle", "old"))
    levels = [f"level_{number}" for number in range(5)]
    with_education = whole.labelled(targets["education"] - 1, levels)
    sources = {"age": with_age.take(rest[:half]), "education": with_education.take(rest[half:])}
    return Examples(pool, test, sources)


@builder
def wages_sources(data: DataFolder) -> Examples:
    inputs = ("education", "age", "sex", "language")
    whole, targets = table(data, "pydataset", "car/SLID", inputs, ("wages",))
    whole = whole.labelled(targets["wages"] > np.median(targets["wages"]), ("low", "high"))
    test, pool, right, rest = divided(whole, (600, 300, 200), "wages_sources")
    wrong = shifted(rest.take(range(1000)), 1.0, "wages_sources/labels")
    return Examples(pool, test, {"right": right, "reversed": wrong})
