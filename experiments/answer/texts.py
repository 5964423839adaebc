"""Pairs of texts, made in the third round of measurements."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

import numpy as np

from .draw import balanced, first_words, generator, joined, randomised, shifted, shuffled
from .folder import DataFolder
from .pair import Examples, Part, builder

WORDS = 100
"""Words of a film or product review that are kept."""


def with_texts(
    data: DataFolder,
    dataset: str,
    split: str,
    rows: np.ndarray,
    labels: np.ndarray,
    classes: tuple[str, ...],
) -> Part:
    """The reviews of some rows, with their labels."""
    names, texts = data.texts(dataset, split, rows)
    return Part(names, first_words(texts, WORDS), labels, classes)


@builder
def maths_steps(data: DataFolder) -> Examples:
    steps = solution_is_long(data, "test")
    rows, _ = balanced(steps, [800], "maths_steps/test")
    texts = data.texts("llm/gsm8k", "test", rows, "question")
    test = Part(*texts, steps[rows], ("short", "long"))

    steps = solution_is_long(data, "train")
    rows, rest = balanced(steps, [600], "maths_steps/train")
    texts = data.texts("llm/gsm8k", "train", rows, "question")
    pool = Part(*texts, steps[rows], ("short", "long"))

    rest = shuffled(rest, "maths_steps/auxiliary")
    first = rest[:2500]
    second = rest[2500:5000]
    digits = answer_digits(data, "train")
    texts = data.texts("llm/gsm8k", "train", first, "question")
    with_digits = Part(*texts, digits[first], ("1", "2", "3", "more"))
    asked = asked_for(data, "train")
    texts = data.texts("llm/gsm8k", "train", second, "question")
    with_asked = Part(*texts, asked[second], ("many", "much", "other"))
    return Examples(pool, test, {"digits": with_digits, "asked": with_asked})


def solution_is_long(data: DataFolder, split: str) -> np.ndarray:
    """1 for a solution of four steps or more."""
    answers = data.column("llm/gsm8k", split, "answer")
    return np.array([int(answer.count("<<") > 3) for answer in answers])


def answer_digits(data: DataFolder, split: str) -> np.ndarray:
    """The number of digits of the answer minus one; 3 for four digits or more."""
    digits = []
    for answer in data.column("llm/gsm8k", split, "answer"):
        result = re.sub(r"\D", "", answer.rpartition("####")[2])
        digits.append(min(max(len(result), 1), 4) - 1)
    return np.array(digits)


def asked_for(data: DataFolder, split: str) -> np.ndarray:
    """0 for a question that ends with "how many ...", 1 for "how much ...", 2 for others."""
    asked = []
    for text in data.column("llm/gsm8k", split, "question"):
        word = text.lower().rpartition("how ")[2].partition(" ")[0]
        asked.append({"many": 0, "much": 1}.get(word, 2))
    return np.array(asked)


CORPORA: dict[str, tuple[tuple[str, ...], str, int]] = {
    "gsm8k": (("train",), "question", 1),
    "tofu": (("train",), "question", 1),
    "wikitext2": (("test", "validation"), "text", 12),
    "instructions": (("train",), "prompt", 1),
}
"""Splits and column of every corpus, and the fewest words of a text."""


def documents(data: DataFolder, corpus: str) -> tuple[list[str], list[str]]:
    """Names and texts of a corpus for language models, without headings and short paragraphs."""
    splits, column, fewest = CORPORA[corpus]
    names: list[str] = []
    texts: list[str] = []
    for split in splits:
        rows = np.arange(len(data.column(f"llm/{corpus}", split, column)))
        for name, text in zip(*data.texts(f"llm/{corpus}", split, rows, column), strict=True):
            if len(text.split()) >= fewest:
                names.append(name)
                texts.append(text)
    return names, texts


def fragment(text: str, length: int, random: np.random.Generator) -> str:
    """`length` words of a text from a random place."""
    words = text.split()
    start = int(random.integers(max(1, len(words) - length + 1)))
    return " ".join(words[start : start + length])


@builder
def corpora_rotated(data: DataFolder) -> Examples:
    """No text gives fragments to two parts."""
    corpora = tuple(CORPORA)
    sizes = {"test": 150, "pool": 90, "auxiliary": 400}
    parts: dict[str, list[Part]] = defaultdict(list)
    for number, corpus in enumerate(corpora):
        names, texts = documents(data, corpus)
        random = generator(f"corpora_rotated/{corpus}")
        order = random.permutation(len(texts))
        start = 0
        for part_name, count in sizes.items():
            rows = order[start : start + count]
            if part_name == "auxiliary":
                # It takes several fragments of a text where there are too few texts.
                rows = np.resize(order[start:], count)
            start += count
            part = Part(names, texts, np.full(len(texts), number), corpora).take(rows)
            fragments = [fragment(text, 6, random) for text in part.inputs]
            parts[part_name].append(Part(part.ids, fragments, part.labels, corpora))
    rotated = shifted(joined(parts["auxiliary"]), 1.0, "corpora_rotated/labels")
    return Examples(joined(parts["pool"]), joined(parts["test"]), {"rotated": rotated})


def scrambled(names: list[str], texts: list[str], count: int, purpose: str) -> Part:
    """Ten words of a text, in half of the cases in another order."""
    random = generator(purpose)
    long = [row for row, text in enumerate(texts) if len(text.split()) >= 10]
    rows = random.permutation(long)[:count]
    labels = np.arange(len(rows)) % 2
    fragments = []
    for row, label in zip(rows, labels, strict=True):
        words = fragment(texts[row], 10, random).split()
        if label:
            words = random.permutation(words).tolist()
        fragments.append(" ".join(words))
    return Part([names[row] for row in rows], fragments, labels, ("intact", "scrambled"))


@builder
def scrambled_elsewhere(data: DataFolder) -> Examples:
    names, texts = documents(data, "wikitext2")
    start = sum("/test/" in name for name in names)  # the test split comes first
    test = scrambled(names[:start], texts[:start], 800, "scrambled_elsewhere/800")
    pool = scrambled(names[start:], texts[start:], 400, "scrambled_elsewhere/400")
    names, texts = documents(data, "gsm8k")
    more_names, more_texts = documents(data, "tofu")
    purpose = "scrambled_elsewhere/auxiliary"
    elsewhere = scrambled(names + more_names, texts + more_texts, 2400, purpose)
    return Examples(pool, test, {"elsewhere": elsewhere})


SENTIMENT = ("negative", "positive")
GOOD = (
    *("good", "great", "excellent", "best", "love", "loved", "wonderful", "perfect", "amazing"),
    *("favorite", "enjoyed", "fun", "beautiful"),
)
BAD = (
    *("bad", "worst", "terrible", "awful", "boring", "waste", "poor", "stupid", "horrible"),
    *("dull", "worse", "nothing", "annoying"),
)
FIRST_PERSON = {"i", "my", "me"}


def reviews(data: DataFolder, split: str, rows: tuple[int, int], size: int, purpose: str) -> Part:
    """Film reviews from these rows, as many positive as negative ones."""
    start, end = rows
    labels = np.full(len(data.column("imdb", split, "label")), -1)
    labels[start:end] = data.column("imdb", split, "label")[start:end]
    chosen, _ = balanced(labels, [size], purpose)
    return with_texts(data, "imdb", split, chosen, labels[chosen], SENTIMENT)


def lower_words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def score(text: str) -> int:
    """How many more good words than bad ones a text has."""
    counts = Counter(lower_words(text))
    good = sum(counts[word] for word in GOOD)
    return good - sum(counts[word] for word in BAD)


@builder
def reviews_weak(data: DataFolder) -> Examples:
    test = reviews(data, "test", (5000, 6700), 800, "reviews_weak/test")
    pool = reviews(data, "train", (12_000, 12_600), 300, "reviews_weak/train")
    _, texts = data.texts("imdb", "train", np.arange(12_600, 16_000))
    scores = np.array(list(map(score, texts)))
    decided = np.flatnonzero(scores)[:2400]
    labels = (scores[decided] > 0).astype(np.int64)
    rows = 12_600 + decided
    return Examples(
        pool, test, {"rule": with_texts(data, "imdb", "train", rows, labels, SENTIMENT)}
    )


@builder
def reviews_person(data: DataFolder) -> Examples:
    test = reviews(data, "test", (6700, 8400), 800, "reviews_person/test")
    pool = reviews(data, "train", (16_000, 16_800), 400, "reviews_person/train")
    names, texts = data.texts("imdb", "train", np.arange(16_800, 18_800))
    texts = first_words(texts, WORDS)
    labels = np.array([int(FIRST_PERSON.isdisjoint(lower_words(text))) for text in texts])
    return Examples(pool, test, {"person": Part(names, texts, labels, SENTIMENT)})


@builder
def shops_sources(data: DataFolder) -> Examples:
    shops = tuple(sorted(set(data.column("amazon_helpful", "train", "domain"))))

    def product_reviews(split: str, rows: np.ndarray) -> Part:
        domains = data.column("amazon_helpful", split, "domain")
        labels = np.searchsorted(shops, domains)[rows]
        return with_texts(data, "amazon_helpful", split, rows, labels, shops)

    domains = data.column("amazon_helpful", "train", "domain")
    labels = np.searchsorted(shops, domains)
    test_rows, pool_rows, _ = balanced(labels, [600, 400], "shops_sources/train")
    guessed = product_reviews("unsupervised", np.arange(1500))
    guessed = randomised(guessed, 0.3, "shops_sources/labels")
    votes = []
    for split in ("validation", "test"):
        helpful = data.column("amazon_helpful", split, "label")
        part = product_reviews(split, np.arange(len(helpful)))
        votes.append(part.labelled(helpful, ("unhelpful", "helpful")))
    pool = product_reviews("train", pool_rows)
    test = product_reviews("train", test_rows)
    return Examples(pool, test, {"guessed": guessed, "votes": joined(votes)})
