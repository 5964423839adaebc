"""The examples of a source before any image is decoded: labels, and a way to fetch some of the inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from attittud_lab.config.data import SourceConfig
from attittud_lab.errors import InputError

Kind = Literal["image", "text"]
Raw = bytes | Path | str | npt.NDArray[np.uint8]
"""An encoded image, a file with one, a text, or pixels (C x H x W)."""
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Columns:
    """Which columns of a source are meant; None looks for the usual names, or has none (group)."""

    input: str | None = None
    label: str | None = None
    group: str | None = None
    where: Mapping[str, str] = field(default_factory=dict)
    """Keep only rows that have these values."""


@dataclass
class Listing:
    """`labels` are class numbers (n), 0/1 (n x classes), or None without labels; -1 means that one has none."""

    where: str
    kind: Kind
    count: int
    fetch: Callable[[Rows], Sequence[Raw]]
    labels: npt.NDArray[np.int64] | None
    classes: list[str]
    usual: list[str] | None = None
    """Classes that are meant where the configuration names none; None for all."""
    groups: list[str] | None = None
    """Of each example: examples of a group (a patient, an author) must not be in two splits."""

    @property
    def multi_label(self) -> bool:
        return self.labels is not None and self.labels.ndim == 2


def joined(parts: Sequence[Listing]) -> Listing:
    """Several splits of a source as one; where their classes differ it has no labels."""
    if len(parts) == 1:
        return parts[0]
    first, ends = parts[0], np.cumsum([part.count for part in parts])

    def fetch(rows: Rows) -> Sequence[Raw]:
        of, found = np.searchsorted(ends, rows, side="right"), dict[int, Raw]()
        for number, part in enumerate(parts):
            places = np.flatnonzero(of == number)
            found |= zip(places.tolist(), part.fetch(rows[places] - (ends[number] - part.count)), strict=True)
        return [found[place] for place in range(len(rows))]

    labels = [part.labels for part in parts if part.labels is not None]
    groups = [part.groups for part in parts if part.groups is not None]
    alike = len(labels) == len(parts) and all(part.classes == first.classes for part in parts)
    return replace(
        first,
        where=" + ".join(part.where for part in parts),
        count=int(ends[-1]),
        fetch=fetch,
        labels=np.concatenate(labels) if alike else None,
        classes=first.classes if alike else [],
        groups=[name for part in groups for name in part] if len(groups) == len(parts) else None,
    )


def chosen(
    listing: Listing, config: SourceConfig, *, labelled: bool
) -> tuple[Rows, npt.NDArray[np.int64] | None, list[str]]:
    """Rows that pass the class filters, their labels counted anew from 0, and the remaining classes."""
    rows = np.arange(listing.count)
    if not labelled:
        return rows, None, []
    labels, where = listing.labels, listing.where
    if labels is None:
        raise InputError(
            f"{where}: no label column was found; name it by label:, or use objective: masked_lm for plain text"
        )
    for name in [*(config.classes or []), *config.exclude]:
        if (config.classes or []).count(name) > 1:
            raise InputError(f"{where}: classes: names {name!r} twice; name it once")
        if name not in listing.classes:
            near = get_close_matches(name, listing.classes, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            known = ", ".join(listing.classes[:20]) + (", ..." if len(listing.classes) > 20 else "")
            raise InputError(f"{where}: there is no class {name!r}{hint} Its classes are {known}")
    classes = [name for name in (config.classes or listing.usual or listing.classes) if name not in config.exclude]
    if not classes:
        raise InputError(f"{where}: exclude: leaves none of its classes; leave fewer of them out")
    numbers = [listing.classes.index(name) for name in classes]
    if listing.multi_label:
        return rows, labels[:, numbers], classes
    new = np.full(len(listing.classes) + 1, -1)  # the last one is hit by label -1: none
    new[numbers] = np.arange(len(numbers))
    renumbered = new[labels]
    kept = renumbered >= 0
    return rows[kept], renumbered[kept], classes


def digest(raw: Raw) -> bytes:
    """Identifies the content of an example."""
    if isinstance(raw, Path):
        raw = raw.read_bytes()
    content = raw.encode() if isinstance(raw, str) else raw.tobytes() if isinstance(raw, np.ndarray) else raw
    return hashlib.blake2b(content, digest_size=16).digest()
