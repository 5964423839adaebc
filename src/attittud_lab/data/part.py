"""Some rows of a source, before anything is decoded: their labels, and the classes that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from attittud_lab.config.options import meant
from attittud_lab.config.schema import SourceConfig
from attittud_lab.data.source import Labels, Listing, Raw, Rows, renumber, warn_once
from attittud_lab.data.splits import stratified
from attittud_lab.errors import InputError, counted, listed, loose, short


@dataclass
class Part:
    """Some rows of a listing, not decoded yet, and their classes, which count from 0."""

    listing: Listing
    rows: Rows
    """The n rows of the listing that the part has, in ascending order."""
    labels: Labels | None = None
    """The labels of these rows, as numbers of `classes`; n, or n x classes."""
    classes: list[str] = field(default_factory=list)
    unseen: dict[str, int] = field(default_factory=dict)
    """How many rows were left out because the training split lacks their class, by class."""
    left_out: int = 0
    """How many rows were left out because the primary data have the same examples."""
    left_out_groups: int = 0
    """How many other rows were left out because the primary data hold out their groups."""

    @property
    def groups(self) -> list[str] | None:
        """The group of each row; None without groups."""
        groups = self.listing.groups
        if groups is None:
            return None
        return [groups[row] for row in self.rows]

    def raws(self) -> Sequence[Raw]:
        """Return the inputs as the source has them: files, bytes, texts or arrays, which are
        decoded later.
        """
        return self.listing.fetch(self.rows)

    def take(self, positions: Rows) -> Part:
        """Return the part with the rows at these positions alone."""
        labels = self.labels
        if labels is not None:
            labels = labels[positions]
        return replace(self, rows=self.rows[positions], labels=labels)

    def drawn(self, size: int, seed: int, groups: Sequence[str] | None = None) -> tuple[Part, Part]:
        """Draw `size` rows, each class in proportion; returns them and the other rows. Rows of one
        group stay together, so `groups` (one for each row) may make them fewer.
        """
        taken, left = stratified(len(self.rows), self.labels, size, seed, groups)
        return self.take(taken), self.take(left)


def select_rows(listing: Listing, config: SourceConfig, *, labelled: bool = True) -> Part:
    """Return the rows that pass the class filters `classes` and `exclude`, with labels from 0 on;
    all rows, without labels, if they need not be `labelled`. A class that the source lacks is
    refused.
    """
    if not labelled:
        return Part(listing, np.arange(listing.count))
    where = listing.where
    check_labels(listing)
    if not listing.classes:
        reason = "no example has a label (empty cells and negative numbers count as none)"
        raise InputError(f"{where}: {reason}; name another column with label:")
    named = config.classes or []
    for name in [*named, *config.exclude]:
        if name not in listing.classes:
            hint = meant(name, listing.classes) or "."
            problem = f"{where}: there is no class {name!r}{hint}"
            raise InputError(f"{problem} Its classes are {listed(listing.classes)}")
    classes = dict.fromkeys(named or listing.classes)
    return keep_classes(listing, [name for name in classes if name not in config.exclude])


def check_labels(listing: Listing) -> Labels:
    """Return the labels of a listing, n or n x labels; refuse a listing without any."""
    if listing.labels is None:
        problem = f"{listing.where}: no label column was found; name it with label:"
        if listing.columns:
            problem += f". Columns: {listed(listing.columns)}"
        raise InputError(problem)
    return listing.labels


def keep_classes(listing: Listing, classes: list[str]) -> Part:
    """Return the rows of a listing that have one of these classes, which are numbered in this order;
    warns of rows without a label. With several labels at once, all rows stay.
    """
    rows = np.arange(listing.count)
    labels = check_labels(listing)
    if listing.multi_label:
        positions = [listing.classes.index(name) for name in classes]
        return Part(listing, rows, labels[:, positions], classes)
    without = int((labels < 0).sum())
    if without:
        share = f"{without} of {listing.count} examples"
        warn_once(f"{listing.where}: {share} without a label, left out")
    numbers = renumber(listing, labels, classes)
    return Part(listing, rows[numbers >= 0], numbers[numbers >= 0], classes)


def warn_of_twins(part: Part, where: str) -> None:
    """Warn if two classes of a source are spellings of one name: then they count as two classes."""
    first_spelling: dict[str, str] = {}
    pairs = []
    for name in part.classes:
        earlier = first_spelling.setdefault(loose(name), name)
        if earlier != name:
            pairs.append(f"{short(earlier)!r} and {short(name)!r}")
    if pairs:
        problem = f"{where}: the classes {pairs[0]} differ only in case, blanks or Unicode form"
        if len(pairs) > 1:
            problem += f", and {counted(len(pairs) - 1, 'more pair')}"
        advice = "so spell them alike if they mean the same"
        warn_once(f"{problem}; they count as different classes, {advice}")
