"""The eighteen held-out pairs of the third round, as examples. `pairs.json` declares them; nothing here depends on a seed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from zlib import crc32

import numpy as np

from .examples import (
    Built,
    Folder,
    Make,
    Part,
    balanced,
    embedded,
    first_words,
    generator,
    grouped,
    hashed_words,
    names,
    randomised,
    shifted,
    shuffled,
)

SIZE, GREY_SIZE = 16, 24  # pixels of images
COARSE = (
    *("aquatic_mammals", "fish", "flowers", "food_containers", "fruit_and_vegetables", "household_electrical_devices"),
    *("household_furniture", "insects", "large_carnivores", "large_man-made_outdoor_things"),
    *("large_natural_outdoor_scenes", "large_omnivores_and_herbivores", "medium_mammals", "non-insect_invertebrates"),
    *("people", "reptiles", "small_mammals", "trees", "vehicles_1", "vehicles_2"),
)
"""The superclasses of CIFAR-100."""
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
WORDS = 100
"""Words of a film or product review that are kept."""


# ---------------------------------------------------------------------------------------------------- images


def superclasses(
    data: Folder, kept: Sequence[str], pool: int, test: int, purpose: str
) -> tuple[Part, Part, np.ndarray]:
    """Pool and test images of superclasses of CIFAR-100, and the other rows of its training split that have one of them."""
    groups = [[COARSE.index(name)] for name in kept]
    parts = []
    for split, size in (("train", pool), ("test", test)):
        labels = grouped(data.column("cifar100", split, "coarse_label"), groups)
        rows, rest = balanced(labels, [size], f"{purpose}/{split}")
        parts.append((Part(*data.images("cifar100", split, rows, SIZE), labels[rows], tuple(kept)), rest))
    return parts[0][0], parts[1][0], parts[0][1]


def fine(data: Folder, without: Sequence[str], each: int, purpose: str, size: int = SIZE) -> Part:
    """Images of all fine classes outside of some superclasses, so many of each."""
    coarse = np.array(data.column("cifar100", "train", "coarse_label"))
    labels = np.array(data.column("cifar100", "train", "fine_label"))
    others = np.flatnonzero(~np.isin(coarse, [COARSE.index(name) for name in without]))
    present = sorted(set(labels[others].tolist()))
    numbers = grouped(labels, [[label] for label in present])
    numbers[np.isin(np.arange(len(labels)), others, invert=True)] = -1
    rows = balanced(numbers, [each * len(present)], purpose)[0]
    return Part(
        *data.images("cifar100", "train", rows, size), numbers[rows], tuple(f"fine_{label}" for label in present)
    )


def groups_fine(data: Folder) -> Built:
    kept = ("fish", "flowers", "trees", "people", "vehicles_1")
    pool, test, _ = superclasses(data, kept, 600, 800, "groups_fine")
    return Built(pool, test, {"fine": fine(data, kept, 40, "groups_fine/auxiliary")})


def groups_shifted(data: Folder) -> Built:
    kept = ("insects", "reptiles", "small_mammals", "household_furniture")
    pool, test, rest = superclasses(data, kept, 480, 800, "groups_shifted")
    labels = grouped(data.column("cifar100", "train", "coarse_label"), [[COARSE.index(name)] for name in kept])
    rows = shuffled(rest, "groups_shifted/auxiliary")[:2000]
    others = Part(*data.images("cifar100", "train", rows, SIZE), labels[rows], kept)
    return Built(pool, test, {"shifted": shifted(others, 0.6, "groups_shifted/labels")})


def cifar10(
    data: Folder, groups: dict[str, Sequence[str]], test: int, rows: tuple[int, int], sizes: Sequence[int], purpose: str
) -> tuple[Part, list[Part]]:
    """`test` images from these rows of CIFAR-10's test split, and parts of these sizes from rows that no earlier pair used."""
    numbers, kept = [[CIFAR10.index(name) for name in group] for group in groups.values()], tuple(groups)
    labels = grouped(data.column("cifar10", "test", "label"), numbers)
    labels[: rows[0]], labels[rows[1] :] = -1, -1
    chosen = balanced(labels, [test], f"{purpose}/test")[0]
    found = Part(*data.images("cifar10", "test", chosen, SIZE), labels[chosen], kept)
    labels = grouped(data.column("cifar10", "train", "label"), numbers)
    labels[:15_000] = -1
    drawn = balanced(labels, sizes, f"{purpose}/train")[:-1]
    return found, [Part(*data.images("cifar10", "train", own, SIZE), labels[own], kept) for own in drawn]


def animals_elsewhere(data: Folder) -> Built:
    ten = {
        "animal": ("bird", "cat", "deer", "dog", "frog", "horse"),
        "vehicle": ("airplane", "automobile", "ship", "truck"),
    }
    test, (pool,) = cifar10(data, ten, 800, (5000, 7500), (120,), "animals_elsewhere")
    animals = (
        *("aquatic_mammals", "fish", "insects", "large_carnivores", "large_omnivores_and_herbivores"),
        *("medium_mammals", "non-insect_invertebrates", "reptiles", "small_mammals"),
    )
    groups = [[COARSE.index(name) for name in group] for group in (animals, ("vehicles_1", "vehicles_2"))]
    labels = grouped(data.column("cifar100", "train", "coarse_label"), groups)
    rows = balanced(labels, [2000], "animals_elsewhere/auxiliary")[0]
    elsewhere = Part(*data.images("cifar100", "train", rows, SIZE), labels[rows], tuple(ten))
    return Built(pool, test, {"elsewhere": elsewhere})


def kinds_sources(data: Folder) -> Built:
    kinds = {name: (name,) for name in ("bird", "frog", "horse", "ship")}
    test, (pool, right, wrong) = cifar10(data, kinds, 800, (7500, 10_000), (360, 300, 1500), "kinds_sources")
    return Built(pool, test, {"right": right, "wrong": shifted(wrong, 1.0, "kinds_sources/labels")})


def outdoors_imagenet(data: Folder) -> Built:
    kept = ("large_man-made_outdoor_things", "large_natural_outdoor_scenes")
    pool, test, _ = superclasses(data, kept, 240, 800, "outdoors_imagenet")
    labels = np.array(data.column("tiny_imagenet", "train", "label")) - 100  # the first 100 are in earlier pairs
    rows = balanced(labels, [3000], "outdoors_imagenet/auxiliary")[0]
    classes = tuple(f"imagenet_{number}" for number in range(100))
    return Built(
        pool, test, {"imagenet": Part(*data.images("tiny_imagenet", "train", rows, SIZE), labels[rows], classes)}
    )


FINDINGS = ("finding_0", "finding_1", "finding_2", "finding_3", "finding_4")


def xray_sources(data: Folder) -> Built:
    """Patients of the training split alone: earlier pairs were tested on all others. No patient is in two parts."""
    patients = data.column("nih_chest_xray", "train", "patient")
    findings = np.array(data.column("nih_chest_xray", "train", "labels"))
    known = sorted(set(patients))
    order = [known[row] for row in shuffled(range(len(known)), "xray_sources/patients")]
    ends = [0, round(0.4 * len(order)), round(0.65 * len(order)), len(order)]
    member = grouped([order.index(patient) for patient in patients], [range(*ends[i : i + 2]) for i in range(3)])
    parts = []
    for number, size in ((0, 500), (1, 300)):
        labels = np.where(member == number, findings.max(1), -1)
        rows = balanced(labels, [size], f"xray_sources/{number}")[0]
        images = data.images("nih_chest_xray", "train", rows, GREY_SIZE, "L")
        parts.append(Part(*images, labels[rows], ("none", "any")))
    rest = shuffled(np.flatnonzero(member == 2), "xray_sources/rest")
    names_, pixels = data.images("nih_chest_xray", "train", rest, GREY_SIZE, "L")
    others = Part(names_, pixels, findings[rest], FINDINGS)
    turns = generator("xray_sources/turns").integers(4, size=len(rest))
    turned = np.stack([np.rot90(image, turn) for image, turn in zip(pixels, turns, strict=True)])
    half = len(rest) // 2
    rotation = Part(names_, turned, turns, ("turned_0", "turned_90", "turned_180", "turned_270"))
    return Built(
        parts[1], parts[0], {"findings": others.take(range(half)), "turns": rotation.take(range(half, len(rest)))}
    )


def plants_duplicated(data: Folder) -> Built:
    kept = ("flowers", "fruit_and_vegetables", "trees")
    pool, test, rest = superclasses(data, kept, 360, 750, "plants_duplicated")
    coarse = np.array(data.column("cifar100", "train", "coarse_label"))
    flowers = shuffled(rest[coarse[rest] == COARSE.index("flowers")], "plants_duplicated/auxiliary")[:12]
    ids, pixels = data.images("cifar100", "train", flowers, SIZE)
    noise = generator("plants_duplicated/noise").integers(-4, 5, size=(50, *pixels.shape))
    copies = np.clip(pixels[None].astype(np.int64) + noise, 0, 255).astype(np.uint8).reshape(-1, *pixels.shape[1:])
    labels = np.full(len(copies), kept.index("trees"))
    return Built(
        pool, test, {"copies": Part([f"{name}/copy" for _ in range(50) for name in ids], copies, labels, kept)}
    )


# ---------------------------------------------------------------------------------------------------- texts


def maths_steps(data: Folder) -> Built:
    def solved(split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Whether a solution has four steps or more, how many digits its answer has, and what is asked for."""
        answers, questions = (data.column("llm/gsm8k", split, name) for name in ("answer", "question"))
        results = [re.sub(r"\D", "", answer.rpartition("####")[2]) for answer in answers]
        asks = [text.lower().rpartition("how ")[2].partition(" ")[0] for text in questions]
        return (
            np.array([int(answer.count("<<") > 3) for answer in answers]),
            np.array([min(max(len(result), 1), 4) - 1 for result in results]),
            np.array([{"many": 0, "much": 1}.get(word, 2) for word in asks]),
        )

    long, _, _ = solved("test")
    rows = balanced(long, [800], "maths_steps/test")[0]
    test = Part(*data.texts("llm/gsm8k", "test", rows, "question"), long[rows], ("short", "long"))
    long, digits, asks = solved("train")
    rows, rest = balanced(long, [600], "maths_steps/train")
    pool = Part(*data.texts("llm/gsm8k", "train", rows, "question"), long[rows], ("short", "long"))
    rest = shuffled(rest, "maths_steps/auxiliary")
    first, second = rest[:2500], rest[2500:5000]
    sizes = Part(*data.texts("llm/gsm8k", "train", first, "question"), digits[first], ("1", "2", "3", "more"))
    kinds = Part(*data.texts("llm/gsm8k", "train", second, "question"), asks[second], ("many", "much", "other"))
    return Built(pool, test, {"digits": sizes, "asked": kinds})


def documents(data: Folder, corpus: str) -> tuple[list[str], list[str]]:
    """Texts of a corpus for language models, without headings and short ones."""
    if corpus == "wikitext2":
        parts = [data.texts("llm/wikitext2", split, np.arange(len(data.column("llm/wikitext2", split, "text"))))
                 for split in ("test", "validation")]  # fmt: skip
    else:
        split = "train"
        name = {"gsm8k": "question", "tofu": "question", "instructions": "prompt"}[corpus]
        rows = np.arange(len(data.column(f"llm/{corpus}", split, name)))
        parts = [data.texts(f"llm/{corpus}", split, rows, name)]
    ids, texts = ([item for part in parts for item in part[which]] for which in (0, 1))
    long = [
        row for row, text in enumerate(texts) if len(text.split()) >= 12 or (corpus != "wikitext2" and text.strip())
    ]
    return [ids[row] for row in long], [texts[row] for row in long]


def fragment(text: str, words: int, random: np.random.Generator) -> str:
    found = text.split()
    start = int(random.integers(max(1, len(found) - words + 1)))
    return " ".join(found[start : start + words])


def corpora_rotated(data: Folder) -> Built:
    """Six words of a text; no text gives fragments to two parts."""
    corpora = ("gsm8k", "tofu", "wikitext2", "instructions")
    sizes = {"test": 150, "pool": 90, "auxiliary": 400}
    made: dict[str, list[Part]] = {name: [] for name in sizes}
    for number, corpus in enumerate(corpora):
        ids, texts = documents(data, corpus)
        random, start = generator(f"corpora_rotated/{corpus}"), 0
        order = random.permutation(len(texts))
        for name, count in sizes.items():
            # The last part takes several fragments of a text where there are too few texts.
            rows = order[start : start + count] if name != "auxiliary" else np.resize(order[start:], count)
            start += count
            found = [fragment(texts[row], 6, random) for row in rows]
            made[name].append(Part([ids[row] for row in rows], found, np.full(count, number), corpora))
    parts = {name: joined(found) for name, found in made.items()}
    rotated = shifted(parts["auxiliary"], 1.0, "corpora_rotated/labels")
    return Built(parts["pool"], parts["test"], {"rotated": rotated})


def joined(parts: Sequence[Part]) -> Part:
    """Parts of the same classes, one after the other."""
    labels = np.concatenate([part.labels for part in parts])
    ids = [name for part in parts for name in part.ids]
    return Part(ids, [text for part in parts for text in part.inputs], labels, parts[0].classes)


def scrambled(ids: list[str], texts: list[str], count: int, purpose: str) -> Part:
    """Ten words of a text, in half of the cases in another order."""
    random = generator(purpose)
    rows = random.permutation([row for row, text in enumerate(texts) if len(text.split()) >= 10])[:count]
    labels = np.arange(len(rows)) % 2
    found = []
    for row, label in zip(rows, labels, strict=True):
        words = fragment(texts[row], 10, random).split()
        found.append(" ".join(random.permutation(words).tolist() if label else words))
    return Part([ids[row] for row in rows], found, labels, ("intact", "scrambled"))


def scrambled_elsewhere(data: Folder) -> Built:
    ids, texts = documents(data, "wikitext2")
    tests = [row for row, name in enumerate(ids) if "/test/" in name]
    others = [row for row, name in enumerate(ids) if "/test/" not in name]
    test, pool = (
        scrambled([ids[row] for row in rows], [texts[row] for row in rows], count, f"scrambled_elsewhere/{count}")
        for rows, count in ((tests, 800), (others, 400))
    )
    ids, texts = documents(data, "gsm8k")
    more_ids, more_texts = documents(data, "tofu")
    return Built(
        pool, test, {"elsewhere": scrambled(ids + more_ids, texts + more_texts, 2400, "scrambled_elsewhere/auxiliary")}
    )


SENTIMENT = ("negative", "positive")
GOOD = re.compile(r"good|great|excellent|best|loved?|wonderful|perfect|amazing|favorite|enjoyed|fun|beautiful")
BAD = re.compile(r"bad|worst|terrible|awful|boring|waste|poor|stupid|horrible|dull|worse|nothing|annoying")


def reviews(data: Folder, split: str, rows: tuple[int, int], size: int, purpose: str) -> Part:
    """Balanced film reviews from these rows."""
    labels = np.full(len(data.column("imdb", split, "label")), -1)
    labels[rows[0] : rows[1]] = data.column("imdb", split, "label")[rows[0] : rows[1]]
    chosen = balanced(labels, [size], purpose)[0]
    ids, texts = data.texts("imdb", split, chosen)
    return Part(ids, first_words(texts, WORDS), labels[chosen], SENTIMENT)


def reviews_weak(data: Folder) -> Built:
    test = reviews(data, "test", (5000, 6700), 800, "reviews_weak/test")
    pool = reviews(data, "train", (12_000, 12_600), 300, "reviews_weak/train")
    rows = np.arange(12_600, 16_000)
    ids, texts = data.texts("imdb", "train", rows)
    scores = []
    for text in texts:
        words = re.findall(r"[a-z]+", text.lower())
        scores.append(sum(map(bool, map(GOOD.fullmatch, words))) - sum(map(bool, map(BAD.fullmatch, words))))
    kept = [row for row, score in enumerate(scores) if score != 0][:2400]
    labels = np.array([int(scores[row] > 0) for row in kept])
    weak = Part([ids[row] for row in kept], first_words([texts[row] for row in kept], WORDS), labels, SENTIMENT)
    return Built(pool, test, {"rule": weak})


def reviews_person(data: Folder) -> Built:
    test = reviews(data, "test", (6700, 8400), 800, "reviews_person/test")
    pool = reviews(data, "train", (16_000, 16_800), 400, "reviews_person/train")
    ids, texts = data.texts("imdb", "train", np.arange(16_800, 19_500))
    cut = first_words(texts, WORDS)
    labels = np.array([int(not {"i", "my", "me"} & set(re.findall(r"[a-z]+", text.lower()))) for text in cut])
    return Built(pool, test, {"person": Part(ids, cut, labels, SENTIMENT).take(range(2000))})


def shops_sources(data: Folder) -> Built:
    domains = tuple(sorted(set(data.column("amazon_helpful", "train", "domain"))))

    def shop(split: str, rows: np.ndarray) -> Part:
        labels = np.array([domains.index(name) for name in data.column("amazon_helpful", split, "domain")])
        ids, texts = data.texts("amazon_helpful", split, rows)
        return Part(ids, first_words(texts, WORDS), labels[rows], domains)

    labels = np.array([domains.index(name) for name in data.column("amazon_helpful", "train", "domain")])
    tested, drawn, _ = balanced(labels, [600, 400], "shops_sources/train")
    guessed = randomised(shop("unsupervised", np.arange(1500)), 0.3, "shops_sources/labels")
    votes = []
    for split in ("validation", "test"):
        found = shop(split, np.arange(len(data.column("amazon_helpful", split, "label"))))
        votes.append(found.labelled(data.column("amazon_helpful", split, "label"), ("unhelpful", "helpful")))
    return Built(shop("train", drawn), shop("train", tested), {"guessed": guessed, "votes": joined(votes)})


# ---------------------------------------------------------------------------------------------------- tables


def as_embedding(part: Part) -> Part:
    """Images become a list column of fixed random features."""
    assert isinstance(part.inputs, np.ndarray)
    return Part(part.ids, {"embedding": embedded(part.inputs)}, part.labels, part.classes)


def embedded_groups(data: Folder) -> Built:
    kept = ("food_containers", "large_carnivores", "non-insect_invertebrates", "vehicles_2", "medium_mammals")
    pool, test, _ = superclasses(data, kept, 1000, 800, "embedded_groups")
    others = fine(data, kept, 40, "embedded_groups/auxiliary")
    return Built(as_embedding(pool), as_embedding(test), {"fine": as_embedding(others)})


def embedded_coins(data: Folder) -> Built:
    kinds = {name: (name,) for name in ("airplane", "deer", "truck")}
    test, (pool, others) = cifar10(data, kinds, 600, (7500, 10_000), (240, 399), "embedded_coins")
    coins = generator("embedded_coins/labels").integers(20, size=len(others))
    tossed = as_embedding(others).labelled(coins, [f"side_{number}" for number in range(20)])
    return Built(as_embedding(pool), as_embedding(test), {"coins": tossed})


def words_sources(data: Folder) -> Built:
    def hashed(part: Part) -> Part:
        assert isinstance(part.inputs, list)
        return Part(part.ids, {"words": hashed_words(part.inputs)}, part.labels, part.classes)

    test = reviews(data, "test", (8400, 10_000), 800, "words_sources/test")
    pool = reviews(data, "train", (19_500, 20_500), 450, "words_sources/train")
    right = reviews(data, "train", (20_500, 22_000), 600, "words_sources/right")
    wrong = shifted(reviews(data, "train", (22_000, 25_000), 2000, "words_sources/wrong"), 1.0, "words_sources/labels")
    return Built(hashed(pool), hashed(test), {"right": hashed(right), "reversed": hashed(wrong)})


def rules_random(_: Folder) -> Built:
    """Six columns of numbers and three of names; a class by rules over both, one label in twelve at random."""
    random, count = generator("rules_random"), 4000
    numbers = random.standard_normal((count, 6)).round(4)
    cells = {
        "colour": random.choice(["red", "green", "blue", "grey"], count),
        "place": random.choice(["north", "south", "east"], count),
        "size": random.choice(["small", "large"], count),
    }
    first = numbers[:, 0] + np.where(cells["colour"] == "red", 1.0, -0.4) * numbers[:, 1]
    second = np.abs(numbers[:, 2]) - 0.8 + 0.7 * (cells["place"] == "north") - 0.5 * (cells["size"] == "large")
    labels = np.where(first > 0.4, 0, np.where(second > 0, 1, 2))
    noisy = random.random(count) < 1 / 12
    labels[noisy] = random.integers(3, size=int(noisy.sum()))
    columns = {f"x{number}": numbers[:, number] for number in range(6)} | cells
    whole = Part(names("rules", "made", np.arange(count)), columns, labels, ("a", "b", "c"))
    tested, drawn, rest = balanced(labels, [999, 399], "rules_random/parts")
    others = whole.take(shuffled(rest, "rules_random/auxiliary")[:1500])
    return Built(whole.take(drawn), whole.take(tested), {"random": randomised(others, 1.0, "rules_random/labels")})


def friedman_other(_: Folder) -> Built:
    """Two functions of the same four columns; four more columns are noise."""
    from sklearn.datasets import make_friedman2, make_friedman3

    parts = []
    for name, make, count in (("friedman3", make_friedman3, 3000), ("friedman2", make_friedman2, 1500)):
        x, y = make(count, noise=0.0, random_state=crc32(name.encode()) % 2**31)
        noise = generator(f"friedman_other/{name}").standard_normal((count, 4))
        columns = {f"x{number}": values.round(4) for number, values in enumerate(np.concatenate([x, noise], 1).T)}
        labels = (y > np.median(y)).astype(np.int64)
        parts.append(Part(names(name, "made", np.arange(count)), columns, labels, ("below", "above")))
    tested, drawn, _rest = balanced(parts[0].labels, [1000, 320], "friedman_other/parts")
    return Built(parts[0].take(drawn), parts[0].take(tested), {"other": parts[1]})


MAKERS: dict[str, Make] = {
    make.__name__: make
    for make in (
        *(groups_fine, groups_shifted, animals_elsewhere, kinds_sources, outdoors_imagenet, xray_sources),
        *(plants_duplicated, maths_steps, corpora_rotated, scrambled_elsewhere, reviews_weak, reviews_person),
        *(shops_sources, embedded_groups, embedded_coins, words_sources, rules_random, friedman_other),
    )
}
