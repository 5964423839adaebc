"""Divide examples: stratified, seeded splits by count or fraction, and a check for copies that are
in two parts.
"""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from attittud_lab.config.schema import Count
from attittud_lab.data.source import Deep, Labels, Listing, Raw, Rows, warn_once
from attittud_lab.data.spelling import looks
from attittud_lab.errors import InputError, counted

MOST_COPIED = 0.1
"""The largest share of a part that may also be in another part."""
DIGEST_SIZE = 16
Digests = npt.NDArray[np.bytes_]
"""16 bytes for each of n examples; empty for a blank text."""
_AT_ONCE = 4096  # examples whose inputs are in memory while they are hashed


def amount(count: Count, available: int, setting: str, total: int | None = None) -> int:
    """Return the number of examples for a count, a fraction of `total` (by default of all
    available), or null (all). More than are `available` are refused; `setting` names the culprit.
    """
    if count is None:
        return available
    if isinstance(count, float):
        if not 0 < count < 1:
            problem = f"{setting}: a fraction must be between 0 and 1, got {count}"
            raise InputError(f"{problem}; write a whole number for a count, or null for all")
        if total is None:
            total = available
        count = max(1, round(count * total))
    if count < 0:
        raise InputError(f"{setting}: must not be negative, got {count}")
    if count > available:
        asked = counted(int(count), "example is", "examples are")
        problem = f"{setting}: {asked} wanted, but there are only {available}"
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
    # The place of each label in the order of frequency, from 1 for the rarest.
    ranks = labels.sum(0).argsort(kind="stable").argsort(kind="stable") + 1
    without_label = len(ranks) + 1
    ranks_of_example = np.where(labels == 1, ranks, without_label)
    rarest: Labels = ranks_of_example.min(1, initial=without_label)
    return rarest


def _order(strata: Labels, generator: np.random.Generator) -> Rows:
    """Return all examples in an order in which every prefix has all strata in proportion, up to
    one example.
    """
    # Each example gets a key in [0, 1); the keys are evenly spread within a stratum.
    keys = np.empty(len(strata))
    _, counts = np.unique(strata, return_counts=True)
    for members in np.split(np.argsort(strata, kind="stable"), np.cumsum(counts)[:-1]):
        keys[members] = (generator.permutation(len(members)) + 0.5) / len(members)
    ties = generator.permutation(len(strata))  # decide between equal keys
    return np.lexsort((ties, keys))


def _whole_groups(
    strata: Labels, groups: Sequence[str], size: int, generator: np.random.Generator
) -> npt.NDArray[np.bool_]:
    """Return which examples to take: whole groups with at most `size` examples together.

    The groups come in an order that keeps strata in proportion, and each is taken if it still fits.
    A group has the stratum of its rarest example.
    """
    _, first_example, group_of = np.unique(groups, return_index=True, return_inverse=True)
    frequency = np.bincount(strata)  # by stratum
    stratum_of = strata[first_example]  # by group
    for stratum, group in zip(strata, group_of, strict=True):
        if frequency[stratum] < frequency[stratum_of[group]]:
            stratum_of[group] = stratum
    sizes = np.bincount(group_of)
    is_taken = np.zeros(len(sizes), dtype=bool)
    left = size
    for group in _order(stratum_of, generator):
        if sizes[group] <= left:
            is_taken[group] = True
            left -= int(sizes[group])
    return is_taken[group_of]


def digests(listing: Listing, rows: Rows) -> Digests:
    """Return 16 bytes for each example, equal for copies. Few inputs are in memory at a time."""
    parts = [np.array([], dtype="S16")]
    for start in range(0, len(rows), _AT_ONCE):
        parts.append(digests_of(listing.fetch(rows[start : start + _AT_ONCE])))
    return np.concatenate(parts)


def digests_of(raws: Iterable[Raw]) -> Digests:
    """Return the digests of inputs: of the `words` of a text, else of the content.

    Empty for a blank text: two blank texts are not copies.
    """
    values = []
    for raw in raws:
        if not isinstance(raw, str):
            values.append(digest(raw))
        elif text := words(raw):
            values.append(digest(text))
        else:
            values.append(b"")
    return np.array(values, dtype="S16")


def pack(parts: Sequence[Digests]) -> str:
    """Write the digests of several sets of examples as a short text: sorted, each once, without
    blank texts.
    """
    distinct = np.unique(np.concatenate([_numbers(part[part != b""]) for part in parts]))
    return base64.b64encode(distinct.tobytes()).decode("ascii")


def unpack(text: str) -> npt.NDArray[np.uint64]:
    """Read what `pack` wrote."""
    return np.frombuffer(base64.b64decode(text), dtype="<u8")


def are_in(part: Digests, others: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Return which digests are among `others`, as `unpack` returns them; a blank text never is."""
    numbers = _numbers(part)
    # `others` is sorted; np.isin would sort it again for every batch.
    first = np.searchsorted(others, numbers)
    behind_last = np.searchsorted(others, numbers, side="right")
    is_in: npt.NDArray[np.bool_] = (behind_last > first) & (part != b"")
    return is_in


def _numbers(part: Digests) -> npt.NDArray[np.uint64]:
    """Return half of each digest, which still tells millions of examples apart."""
    return np.frombuffer(part.astype("S16").tobytes(), dtype="<u8").reshape(-1, 2)[:, 0]


def digest(raw: Raw | Deep) -> bytes:
    """Return 16 bytes that differ between inputs of different content."""
    if isinstance(raw, Deep):
        return digest(f"white {raw.white}".encode() + digest(raw.picture))
    if isinstance(raw, Path):
        try:
            raw = raw.read_bytes()
        except OSError as error:
            problem = f"{error.filename}: cannot be read ({error.strerror})"
            raise InputError(f"{problem}; repair or remove it") from None
    if isinstance(raw, str):
        raw = raw.encode("utf-8", "surrogatepass")
    elif not isinstance(raw, bytes):
        raw = raw.tobytes()
    return hashlib.blake2b(raw, digest_size=DIGEST_SIZE).digest()


def words(text: str) -> str:
    """Return what all texts that say the same have in common; empty for a blank text.

    Case, white space and punctuation do not count, nor does the Unicode form (NFKC), nor do
    characters without a width. Only a text of nothing but punctuation keeps it.
    """
    plain = looks(looks(text).casefold())  # lower case may need the Unicode form again
    return " ".join(_punctuation().sub(" ", plain).split()) or plain.strip()


@cache
def _punctuation() -> re.Pattern[str]:
    """Return a pattern of the marks between words that do not count."""
    marks = "\u2212"  # a minus sign, which some write for a dash
    for code in range(0x10000):
        # Signs of calculations and addresses are kept: 3*4 and 3/4 are different texts.
        if unicodedata.category(chr(code)).startswith("P") and chr(code) not in "*/%&#@\\":
            marks += chr(code)
    return re.compile(f"[{re.escape(marks)}]+")


def count_copies(part: Digests, other: Digests) -> int:
    """Count the examples of `part` that are also in `other`."""
    return int((np.isin(part, other) & (part != b"")).sum())


def check_copies(parts: Mapping[str, Digests], where: str, overlap: str) -> dict[str, int]:
    """Count the examples that two parts of the primary data share; few cause a warning, many are
    refused.

    `overlap` is the setting: refuse, warn (never refuse) or allow (without a warning).
    """
    counts = {}
    for part, other in (("test", "train"), ("validation", "train"), ("test", "validation")):
        count = count_copies(parts[part], parts[other])
        if not count:
            continue
        counts[f"{part} in {other}"] = count
        total = len(parts[part])
        problem = f"{where}: {count} of the {total} {part} examples are also in {other}"
        problem += "; results on them say little"
        if overlap == "refuse" and count > MOST_COPIED * total:
            advice = "remove the copies from one of the two"
            advice += ", or set data.primary.overlap: warn to continue"
            raise InputError(f"{problem}; {advice}. At most {MOST_COPIED:.0%} may be copies")
        if overlap != "allow":
            warn_once(problem)
    return counts
