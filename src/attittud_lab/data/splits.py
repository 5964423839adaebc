"""Divide examples: stratified, seeded splits by count or fraction, and a check for copies that are
in two parts.
"""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from attittud_lab.config.schema import Count
from attittud_lab.data.source import Labels, Listing, Raw, Rows, warn_once
from attittud_lab.errors import InputError, counted

MOST_COPIED = 0.1
"""The largest share of a part that may also be in another part."""
_AT_ONCE = 4096  # examples whose inputs are in memory while they are hashed


def amount(count: Count, available: int, what: str, total: int | None = None) -> int:
    """Return the number of examples for a count, a fraction of `total` (by default of all
    available), or null (all).
    """
    if count is None:
        return available
    if isinstance(count, float):
        if not 0 < count < 1:
            raise InputError(
                f"{what}: a fraction must be between 0 and 1, got {count}; write a whole number for a count, or null for all"
            )
        count = max(1, round(count * (available if total is None else total)))
    if count < 0:
        raise InputError(f"{what}: must not be negative, got {count}")
    if count > available:
        problem = f"{what}: {counted(int(count), 'example is', 'examples are')} wanted, but there are only {available}"
        raise InputError(f"{problem}; ask for fewer, or write null for all")
    return int(count)


def stratified(
    count: int, labels: Labels | None, size: int, seed: int, groups: Sequence[str] | None = None
) -> tuple[Rows, Rows]:
    """Return the positions of `size` of `count` examples, each class in proportion (largest
    remainder), and of the others.

    Groups (the images of a patient, say) stay whole: then at most `size` examples are taken, as
    many as whole groups allow.
    """
    generator = np.random.default_rng(seed)
    chosen = np.zeros(count, dtype=bool)
    if groups is None:
        chosen[_order(strata(labels, count), generator)[:size]] = True
    else:
        chosen = _whole_groups(strata(labels, count), groups, size, generator)
    return np.flatnonzero(chosen), np.flatnonzero(~chosen)


def strata(labels: Labels | None, count: int) -> Labels:
    """Return the stratum of each example: its class or, with several labels at once, its rarest
    label.

    The rarest labels, which a split can easily miss, are then in proportion, and more common labels
    nearly so. (Strata by combination of labels would put every combination that occurs once into
    the same part.)
    """
    if labels is None:
        return np.zeros(count, dtype=np.int64)
    if labels.ndim == 1:
        return labels
    ranks = (
        labels.sum(0).argsort(kind="stable").argsort(kind="stable") + 1
    )  # rank 1 is the rarest label
    rarest: Labels = np.where(labels == 1, ranks, len(ranks) + 1).min(1, initial=len(ranks) + 1)
    return rarest


def _order(strata: Labels, generator: np.random.Generator) -> Rows:
    """All examples in an order in which every prefix has all strata in proportion, up to one
    example.
    """
    # Each example gets a key in [0, 1); the keys are evenly spread within a stratum.
    keys = np.empty(len(strata))
    _, counts = np.unique(strata, return_counts=True)
    for members in np.split(np.argsort(strata, kind="stable"), np.cumsum(counts)[:-1]):
        keys[members] = (generator.permutation(len(members)) + 0.5) / len(members)
    return np.lexsort((generator.permutation(len(strata)), keys))


def _whole_groups(
    strata: Labels, groups: Sequence[str], size: int, generator: np.random.Generator
) -> npt.NDArray[np.bool_]:
    """The examples to take: groups in this order, each if it still fits. A group has the stratum of
    its rarest example.
    """
    _, first, number = np.unique(groups, return_index=True, return_inverse=True)
    counts, rarest = np.bincount(strata), strata[first]
    for stratum, group in zip(strata, number, strict=True):
        if counts[stratum] < counts[rarest[group]]:
            rarest[group] = stratum
    sizes = np.bincount(number)
    chosen = np.zeros(len(first), dtype=bool)
    for group in _order(rarest, generator):
        if sizes[group] <= size:
            chosen[group] = True
            size -= int(sizes[group])
    return chosen[number]


@dataclass(frozen=True)
class Digests:
    """Two digests of 16 bytes for each example: of its content, and of its words alone.

    For an image both are the same. Texts are compared in their `normal_form`.
    """

    exact: npt.NDArray[np.bytes_]
    words: npt.NDArray[np.bytes_]
    """Empty for a blank text: two blank texts are not copies."""


def digests(listing: Listing, rows: Rows) -> Digests:
    """The digests of some examples. Few inputs are in memory at a time."""
    exact, words = list[bytes](), list[bytes]()
    for start in range(0, len(rows), _AT_ONCE):
        for raw in listing.fetch(rows[start : start + _AT_ONCE]):
            exact.append(_digest(raw))
            words.append(_words_digest(raw) if isinstance(raw, str) else exact[-1])
    return Digests(np.array(exact, dtype="S16"), np.array(words, dtype="S16"))


def words_of(raws: Iterable[Raw]) -> npt.NDArray[np.bytes_]:
    """The `Digests.words` of examples that are in no listing."""
    return np.array(
        [_words_digest(raw) if isinstance(raw, str) else _digest(raw) for raw in raws], dtype="S16"
    )


def packed(words: Sequence[npt.NDArray[np.bytes_]]) -> str:
    """Write the digests of several sets of examples as a short text: sorted, each once, without
    blank texts.
    """
    distinct = np.unique(np.concatenate([_numbers(some[some != b""]) for some in words]))
    return base64.b64encode(distinct.tobytes()).decode("ascii")


def unpacked(text: str) -> npt.NDArray[np.uint64]:
    """Read what `packed` wrote; raises ValueError for anything else."""
    numbers = np.frombuffer(base64.b64decode(text, validate=True), dtype="<u8")
    if (numbers[1:] <= numbers[:-1]).any():  # `are_in` would miss some without a word
        raise ValueError("they are not in order")
    return numbers


def are_in(words: npt.NDArray[np.bytes_], others: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Find the digests that are among the `unpacked` ones; a blank text never is."""
    if not len(others):
        return np.zeros(len(words), dtype=bool)
    numbers = _numbers(words)
    # `others` is sorted; np.isin would sort it again for every batch.
    nearest = others[np.minimum(np.searchsorted(others, numbers), len(others) - 1)]
    used: npt.NDArray[np.bool_] = (nearest == numbers) & (words != b"")
    return used


def _numbers(words: npt.NDArray[np.bytes_]) -> npt.NDArray[np.uint64]:
    """Return half of each digest, which still tells millions of examples apart."""
    return np.frombuffer(words.astype("S16").tobytes(), dtype="<u8").reshape(-1, 2)[:, 0]


def _digest(raw: Raw) -> bytes:
    try:
        content = raw.read_bytes() if isinstance(raw, Path) else raw
    except OSError as error:
        raise InputError(
            f"{error.filename}: cannot be read ({error.strerror}); repair or remove it"
        ) from None
    if isinstance(content, str):
        content = normal_form(content).encode("utf-8", "surrogatepass")
    elif not isinstance(content, bytes):
        content = content.tobytes()
    return hashlib.blake2b(content, digest_size=16).digest()


def normal_form(text: str) -> str:
    """Return one form for all texts that look the same: for comparison only, since the text that
    trains stays as it is.

    Composed and decomposed letters become equal (NFKC), and so do typographic and plain quotes and
    dashes. Characters without a width are left out.
    """
    if text.isascii():
        return text
    plain = unicodedata.normalize("NFKC", text).translate(_plain_characters())
    return unicodedata.normalize(
        "NFKC", plain
    )  # letters that a character without a width kept apart


@cache
def _plain_characters() -> dict[int, str]:
    """What replaces the characters that `normal_form` changes after NFKC; nothing replaces those
    without a width.
    """
    characters = dict.fromkeys([0x034F, *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)], "")
    for code in [*range(0x20000), *range(0xE0000, 0xE0080)]:
        category = unicodedata.category(chr(code))
        if category == "Cf":
            characters[code] = ""
        elif category == "Pd":
            characters[code] = "-"
    characters |= dict.fromkeys(map(ord, "\u2043\u2212"), "-")
    characters |= dict.fromkeys(map(ord, "\u2018\u2019\u201a\u201b\u2032\u2039\u203a"), "'")
    characters |= dict.fromkeys(
        map(ord, "\u201c\u201d\u201e\u201f\u00ab\u00bb\u301d\u301e\u301f"), '"'
    )
    return characters


def _words_digest(text: str) -> bytes:
    """The digest of a text without case, white space and punctuation, if anything is left."""
    text = normal_form(normal_form(text).casefold())
    words = " ".join(_punctuation().sub(" ", text).split()) or text.strip()
    return _digest(words) if words else b""


@cache
def _punctuation() -> re.Pattern[str]:
    marks = [
        chr(code) for code in range(0x10000) if unicodedata.category(chr(code)).startswith("P")
    ]
    # Signs for calculations and addresses do not count as punctuation: 3*4 and 3/4 are different
    # texts.
    return re.compile(
        "[" + re.escape("".join(mark for mark in marks if mark not in "*/%&#@\\")) + "]+"
    )


def copies(part: Digests, other: Digests) -> tuple[int, int]:
    """Count the examples of `part` that are also in `other`, and how many of these have only their
    words in common.
    """
    shared = np.isin(part.words, other.words) & (part.words != b"")
    return int(shared.sum()), int((shared & ~np.isin(part.exact, other.exact)).sum())


def check_copies(parts: Mapping[str, Digests], where: str, overlap: str) -> dict[str, int]:
    """Count the examples that two parts of the primary data share; few cause a warning, many are
    refused.

    `overlap` is the setting: refuse, warn (never refuse) or allow (without a warning).
    """
    counts = {}
    for part, other in (("test", "train"), ("validation", "train"), ("test", "validation")):
        count, loose = copies(parts[part], parts[other])
        if not count:
            continue
        counts[f"{part} in {other}"] = count
        total = len(parts[part].exact)
        but = f" ({loose} of them except for case, white space or punctuation)" if loose else ""
        problem = f"{where}: {count} of the {total} {part} examples are also in {other}{but}; results on them say little"
        if overlap == "refuse" and count > MOST_COPIED * total:
            cure = "remove the copies from one of the two, or set data.primary.overlap: warn to continue"
            raise InputError(f"{problem}; {cure}. At most {MOST_COPIED:.0%} may be copies")
        if overlap != "allow":
            warn_once(problem)
    return counts
