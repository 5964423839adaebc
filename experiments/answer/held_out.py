"""The pairs that are held out in the fourth round of measurements; protocol.md declares them.

No test example is an example of a development pair with one exception: the X-rays, where the
development pairs have used every image, have another task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from .draw import balanced, grouped, joined, randomised, shifted, shuffled
from .draw import first_words as cut_words
from .folder import DataFolder, row_names
from .images import CIFAR10, SUPERCLASSES
from .pair import BUILDERS, Examples, Part, builder
from .texts import SENTIMENT, WORDS, lower_words

SIZE, GREY_SIZE, IMAGENET_SIZE, XRAY_SIZE = 32, 32, 64, 64
"""Pixels of a side."""


# -------------------------------------------------------------------------------------- unused rows


class NamesOnly(DataFolder):
    """A data folder that decodes no image, for the names of rows alone."""

    def image(self, dataset: str, split: str, row: int, size: int, mode: str) -> np.ndarray:
        return np.zeros((size, size, 3) if mode == "RGB" else (size, size), dtype=np.uint8)


@cache
def development_rows(root: Path) -> frozenset[str]:
    """The names of all examples of all development pairs."""
    from . import earlier, tables  # noqa: F401  # they register builders

    data = NamesOnly(root)
    names: set[str] = set()
    for make in BUILDERS.values():
        if make.__module__ != __name__:
            examples = make(data)
            for part in (examples.pool, examples.test, *examples.auxiliary.values()):
                names.update(part.ids)
    return frozenset(names)


def unused(data: DataFolder, dataset: str, split: str, labels: np.ndarray) -> np.ndarray:
    """The labels, with -1 for rows that a development pair has."""
    used = development_rows(data.root)
    names = row_names(dataset, split, range(len(labels)))
    is_used = np.array([name in used for name in names])
    return np.where(is_used, -1, labels)


# ------------------------------------------------------------------------------------------- images


def pictures(
    data: DataFolder, dataset: str, split: str, labels: np.ndarray, rows: np.ndarray, names: Any
) -> Part:
    """Colour images of some rows at their full size."""
    size = IMAGENET_SIZE if dataset == "tiny_imagenet" else SIZE
    return Part(*data.images(dataset, split, rows, size), labels[rows], tuple(names))


def cifar(
    data: DataFolder,
    dataset: str,
    column: str,
    groups: dict[str, Sequence[int]],
    test: int,
    sizes: Sequence[int],
    purpose: str,
) -> list[Part]:
    """`test` images of the test split, and parts of the training split with these sizes."""
    parts: list[Part] = []
    for split, counts in (("test", [test]), ("train", sizes)):
        labels = grouped(data.column(dataset, split, column), [*groups.values()])
        labels = unused(data, dataset, split, labels)
        drawn = balanced(labels, counts, f"{purpose}/{split}")[:-1]
        parts += [pictures(data, dataset, split, labels, rows, groups) for rows in drawn]
    return parts


@builder
def animals_renamed(data: DataFolder) -> Examples:
    groups = {name: [CIFAR10.index(name)] for name in ("automobile", "cat", "deer", "dog")}
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
    """Boys and men are male; the source of ages leaves babies out."""
    test, pool = cifar(data, "cifar100", "fine_label", PEOPLE, 260, (360,), "people_sources")
    fine = np.array(data.column("cifar100", "train", "fine_label"))
    taken = {int(name.rpartition("/")[2]) for name in pool.ids}
    free = unused(data, "cifar100", "train", grouped(fine, [*BABY_TO_WOMAN.values()]))
    free[list(taken)] = -1
    sexes = np.array([-1, 0, 1, 0, 1])[free]
    sexes[free == -1] = -1
    rows = balanced(sexes, [600], "people_sources/sexes")[0]
    with_sexes = pictures(data, "cifar100", "train", sexes, rows, ("male", "female"))
    animals = grouped(
        data.column("cifar100", "train", "coarse_label"),
        [[SUPERCLASSES.index(name)] for name in ("small_mammals", "medium_mammals", "reptiles")],
    )
    rows = balanced(animals, [1200], "people_sources/animals")[0]
    names = ("small_mammal", "medium_mammal", "reptile")
    with_animals = pictures(data, "cifar100", "train", animals, rows, names)
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
    labels = grouped(data.column("tiny_imagenet", "train", "label"), [*groups.values()])
    labels = unused(data, "tiny_imagenet", "train", labels)
    drawn = balanced(labels, sizes, purpose)[:-1]
    return [pictures(data, "tiny_imagenet", "train", labels, rows, groups) for rows in drawn]


@builder
def kinds_elsewhere(data: DataFolder) -> Examples:
    """The source has the 57 upper classes of Tiny ImageNet that belong to none of the kinds."""
    test, pool = imagenet(data, KINDS, (480, 120), "kinds_elsewhere")
    of_kinds = {number for numbers in KINDS.values() for number in numbers}
    others = [number for number in range(100, 200) if number not in of_kinds]
    labels = grouped(
        data.column("tiny_imagenet", "train", "label"), [[number] for number in others]
    )
    rows = balanced(labels, [30 * len(others)], "kinds_elsewhere/auxiliary")[0]
    names = [f"imagenet_{number}" for number in others]
    part = pictures(data, "tiny_imagenet", "train", labels, rows, names)
    return Examples(pool, test, {"imagenet": part})


@builder
def things_random(data: DataFolder) -> Examples:
    test, pool = imagenet(data, THINGS, (150, 90), "things_random")
    labels = grouped(data.column("tiny_imagenet", "train", "label"), [*THINGS.values()])
    drawn = {int(name.rpartition("/")[2]) for name in (*test.ids, *pool.ids)}
    labels[list(drawn)] = -1
    rows = shuffled(np.flatnonzero(labels >= 0), "things_random/auxiliary")
    part = pictures(data, "tiny_imagenet", "train", labels, rows, THINGS)
    return Examples(pool, test, {"random": randomised(part, 1.0, "things_random/labels")})


@builder
def xray_exchanged(data: DataFolder) -> Examples:
    """X-rays with either atelectasis or effusion; no patient is in two parts."""
    places = []
    findings: list[list[int]] = []
    patients: list[Any] = []
    for split in ("train", "validation", "test"):
        column = data.column("nih_chest_xray", split, "labels")
        places += [(split, row) for row in range(len(column))]
        findings += column
        patients += data.column("nih_chest_xray", split, "patient")
    values = np.array(findings)
    every = sorted(set(patients))
    order = shuffled(range(len(every)), "xray_exchanged/patients")
    position = {every[number]: place / len(every) for place, number in enumerate(order)}
    share = np.array([position[patient] for patient in patients])
    task = np.where(values[:, 0] + values[:, 4] == 1, values[:, 4], -1)

    def part(rows: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> Part:
        rows_of = [places[row] for row in rows]
        pixels = [data.image("nih_chest_xray", *place, XRAY_SIZE, "L") for place in rows_of]
        ids = [f"nih_chest_xray/{split}/{row}" for split, row in rows_of]
        return Part(ids, np.stack(pixels), labels[rows], tuple(names))

    names = ("atelectasis", "effusion")
    tested = np.where(share < 0.45, task, -1)
    pooled = np.where((share >= 0.45) & (share < 0.65), task, -1)
    test = balanced(tested, [280], "xray_exchanged/test")[0]
    pool = balanced(pooled, [120], "xray_exchanged/pool")[0]
    rest = share >= 0.65
    same = np.flatnonzero(rest & (task >= 0))
    others = shuffled(np.flatnonzero(rest & (task < 0)), "xray_exchanged/others")
    exchanged = shifted(part(same, task, names), 1.0, "xray_exchanged/labels")
    other_names = ("cardiomegaly", "consolidation", "edema")
    others_part = part(others, values[:, 1:4], other_names)
    sources = {"exchanged": exchanged, "others": others_part}
    return Examples(part(pool, task, names), part(test, task, names), sources)


def framed(pixels: np.ndarray) -> np.ndarray:
    """Images n x s x s in the middle of black ones of the size that all digits have."""
    before = (GREY_SIZE - pixels.shape[1]) // 2
    after = GREY_SIZE - pixels.shape[1] - before
    return np.pad(pixels, ((0, 0), (before, after), (before, after)))


@builder
def handwriting_sources(data: DataFolder) -> Examples:
    """MNIST's digits; scikit-learn's are enlarged to 20 pixels, the size of MNIST's without
    frames.
    """
    from PIL import Image
    from sklearn.datasets import load_digits

    names = tuple(str(number) for number in range(10))
    ids: list[str] = []
    images = []
    for number in range(10):
        pixels = data.archives.digits(number)
        ids += row_names("mnist", names[number], range(len(pixels)))
        images.append(pixels)
    labels = np.repeat(np.arange(10), [len(pixels) for pixels in images])
    whole = Part(ids, framed(np.concatenate(images)), labels, names)
    drawn = balanced(labels, [800, 120, 1000], "handwriting_sources/parts")
    test, pool, wrong = [whole.take(rows) for rows in drawn[:-1]]

    small = []
    digits, digit_labels = load_digits(return_X_y=True)
    for pixels in digits.reshape(-1, 8, 8):
        image = Image.fromarray((pixels * 255 / 16).round().astype(np.uint8))
        small.append(np.asarray(image.resize((20, 20), Image.Resampling.BICUBIC)))
    digit_ids = row_names("scikit-learn", "digits", range(len(small)))
    right = Part(digit_ids, framed(np.stack(small)), digit_labels, names)
    mirrored = wrong.mislabelled(9 - wrong.labels)
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
    """All different sentences of four words or more from one place, with their ratings.

    The labels are 0 for negative, 1 for positive and -1 for neither.
    """
    ids, texts, ratings = [], [], []
    earlier = set()
    for number, rating, text in data.archives.rated(PLACES[place]):
        words = " ".join(lower_words(text))
        if len(text.split()) >= 4 and words not in earlier:
            earlier.add(words)
            ids.append(f"vaderSentiment/{place}/{number}")
            texts.append(text)
            ratings.append(rating)
    values = np.array(ratings)
    labels = np.where(values >= CLEAR, 1, np.where(values <= -CLEAR, 0, -1))
    return Part(ids, texts, labels, SENTIMENT), values


def with_sentiment(data: DataFolder, place: str, sizes: Sequence[int], purpose: str) -> list[Part]:
    """Parts with as many positive as negative sentences."""
    whole, _ = sentences(data, place)
    return [whole.take(rows) for rows in balanced(whole.labels, sizes, purpose)[:-1]]


@builder
def tweets_films(data: DataFolder) -> Examples:
    test, pool = with_sentiment(data, "tweet", (800, 180), "tweets_films")
    (films,) = with_sentiment(data, "film", (3000,), "tweets_films/films")
    return Examples(pool, test, {"films": films})


@builder
def tweets_strength(data: DataFolder) -> Examples:
    whole, ratings = sentences(data, "tweet")
    strength = np.where(np.abs(ratings) >= 2, 1, np.where(np.abs(ratings) < 1, 0, -1))
    drawn = balanced(strength, [600, 300], "tweets_strength")[:-1]
    test, pool = [whole.take(rows).labelled(strength[rows], ("mild", "strong")) for rows in drawn]
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
    return Examples(pool, test, {"right": right, "random": replace(noise, truth=None)})


@builder
def places_by_length(data: DataFolder) -> Examples:
    """The source calls a sentence by its length: the shortest quarter are tweets, and so on."""
    names = tuple(PLACES)
    parts = [sentences(data, place)[0] for place in names]
    sizes = [len(part) for part in parts]
    whole = joined([part.labelled(np.zeros(len(part)), names) for part in parts])
    whole = replace(whole, labels=np.repeat(np.arange(len(names)), sizes))
    drawn = balanced(whole.labels, [800, 120, 2000], "places_by_length")[:-1]
    test, pool, others = [whole.take(rows) for rows in drawn]
    lengths = np.array([len(text) for text in others.inputs])
    quarters = np.searchsorted(np.quantile(lengths, [0.25, 0.5, 0.75]), lengths)
    return Examples(pool, test, {"length": others.mislabelled(quarters)})


def film_reviews(data: DataFolder, split: str, size: int, purpose: str) -> Part:
    labels = unused(data, "imdb", split, np.array(data.column("imdb", split, "label")))
    rows = balanced(labels, [size], purpose)[0]
    names, texts = data.texts("imdb", split, rows)
    return Part(names, cut_words(texts, WORDS), labels[rows], SENTIMENT)


@builder
def reviews_coins(data: DataFolder) -> Examples:
    test = film_reviews(data, "test", 800, "reviews_coins/test")
    pool = film_reviews(data, "train", 120, "reviews_coins/train")
    names, texts = data.texts("imdb", "unsupervised", np.arange(2000))
    part = Part(names, cut_words(texts, WORDS), np.zeros(2000, dtype=np.int64), SENTIMENT)
    coins = replace(randomised(part, 1.0, "reviews_coins/labels"), truth=None)
    return Examples(pool, test, {"coins": coins})


@builder
def reviews_strangers(data: DataFolder) -> Examples:
    """Other film reviews than `reviews_coins` has."""
    both = {}
    for split, each, count in (("test", 800, 800), ("train", 120, 600)):
        part = film_reviews(data, split, each + count, "reviews_strangers")
        avoid = set(film_reviews(data, split, each, f"reviews_coins/{split}").ids)
        free = np.array([name not in avoid for name in part.ids])
        rows = balanced(np.where(free, part.labels, -1), [count], f"reviews_strangers/{split}")[0]
        both[split] = part.take(rows)
    helpful = np.array(data.column("amazon_helpful", "train", "label"))
    names, texts = data.texts("amazon_helpful", "train", np.arange(len(helpful)))
    votes = Part(names, cut_words(texts, WORDS), helpful, ("unhelpful", "helpful"))
    (tweets,) = with_sentiment(data, "tweet", (1200,), "reviews_strangers/tweets")
    sources = {"tweets": tweets, "votes": votes}
    return Examples(both["train"], both["test"], sources)


# ------------------------------------------------------------------------------------------- tables


def table(
    data: DataFolder, package: str, name: str, inputs: Sequence[str], targets: Sequence[str]
) -> tuple[Part, dict[str, np.ndarray]]:
    """The rows of a table whose inputs differ, without labels, and the columns of targets."""
    columns = data.archives.table(package, name)
    keys = [*zip(*[columns[column].tolist() for column in inputs], strict=True)]
    first = {key: row for row, key in reversed([*enumerate(keys)])}
    rows = np.sort(np.array([*first.values()]))
    ids = row_names(package, name.rpartition("/")[2].removesuffix(".csv"), rows)
    values = {column: columns[column][rows] for column in inputs}
    part = Part(ids, values, np.full(len(rows), -1), ())
    return part, {column: columns[column][rows] for column in targets}


def thirds(values: np.ndarray, count: int) -> np.ndarray:
    """The number of the part, of `count` equal parts, in which each value lies."""
    inner = np.linspace(0, 1, count + 1)[1:-1]
    return np.searchsorted(np.quantile(values, inner), values)


def divided(whole: Part, sizes: Sequence[int], purpose: str) -> list[Part]:
    """Parts with equal counts of each class, and the rest in random order."""
    *drawn, rest = balanced(whole.labels, sizes, purpose)
    return [whole.take(rows) for rows in (*drawn, shuffled(rest, f"{purpose}/rest"))]


@builder
def affairs_marriage(data: DataFolder) -> Examples:
    inputs = (
        "age",
        "yrs_married",
        "children",
        "religious",
        "educ",
        "occupation",
        "occupation_husb",
    )
    name = "statsmodels/datasets/fair/fair"
    whole, targets = table(data, "statsmodels", name, inputs, ("affairs", "rate_marriage"))
    any_affair = (targets["affairs"] > 0).astype(np.int64)
    rows = balanced(any_affair, [900, 300], "affairs_marriage")
    test, pool = [whole.take(some).labelled(any_affair[some], ("no", "yes")) for some in rows[:2]]
    rest = shuffled(rows[2], "affairs_marriage/rest")[:2000]
    rating = targets["rate_marriage"].astype(np.int64)[rest] - 1
    names = ("very_poor", "poor", "fair", "good", "very_good")
    return Examples(pool, test, {"marriage": whole.take(rest).labelled(rating, names)})


@builder
def diamonds_shifted(data: DataFolder) -> Examples:
    inputs = ("carat", "cut", "color", "clarity", "depth", "table", "x", "y", "z")
    whole, targets = table(data, "pydataset", "ggplot2/diamonds", inputs, ("price",))
    names = ("cheapest", "cheap", "dear", "dearest")
    whole = whole.labelled(thirds(targets["price"], 4), names)
    test, pool, rest = divided(whole, (1000, 360), "diamonds_shifted")
    others = shifted(rest.take(range(2000)), 1.0, "diamonds_shifted/labels")
    return Examples(pool, test, {"shifted": others})


@builder
def computers_exchanged(data: DataFolder) -> Examples:
    """The source calls the cheapest third the dearest, and the other way round."""
    inputs = ("speed", "hd", "ram", "screen", "cd", "multi", "premium", "ads", "trend")
    whole, targets = table(data, "pydataset", "Ecdat/Computers", inputs, ("price",))
    whole = whole.labelled(thirds(targets["price"], 3), ("low", "middle", "high"))
    test, pool, rest = divided(whole, (900, 90), "computers_exchanged")
    others = rest.take(range(1500))
    return Examples(pool, test, {"exchanged": others.mislabelled(2 - others.labels)})


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
    rows = balanced(sex, [500, 600], "traits_sources")
    test, pool = [whole.take(some).labelled(sex[some], ("man", "woman")) for some in rows[:2]]
    rest = shuffled(rows[2], "traits_sources/rest")
    half = len(rest) // 2
    age = thirds(targets["age"], 3)[rest[:half]]
    school = targets["education"].astype(np.int64)[rest[half:]] - 1
    sources = {
        "age": whole.take(rest[:half]).labelled(age, ("young", "middle", "old")),
        "education": whole.take(rest[half:]).labelled(school, [f"level_{n}" for n in range(5)]),
    }
    return Examples(pool, test, sources)


@builder
def wages_sources(data: DataFolder) -> Examples:
    inputs = ("education", "age", "sex", "language")
    whole, targets = table(data, "pydataset", "car/SLID", inputs, ("wages",))
    whole = whole.labelled(targets["wages"] > np.median(targets["wages"]), ("low", "high"))
    test, pool, right, rest = divided(whole, (600, 300, 200), "wages_sources")
    wrong = shifted(rest.take(range(1000)), 1.0, "wages_sources/labels")
    return Examples(pool, test, {"right": right, "reversed": wrong})
