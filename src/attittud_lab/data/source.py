"""The interface of a data source, the registry of sources, and the search for the source of a
path.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from attittud_lab.config.options import as_path, meant
from attittud_lab.config.schema import Kind, SourceConfig, TableConfig
from attittud_lab.errors import InputError

logger = logging.getLogger("attittud")


@dataclass(frozen=True)
class Deep:
    """A picture of a source that has grey pictures of more than 8 bits."""

    picture: Any
    """A file, its bytes, or an image that a caller has opened."""
    white: int
    """The value of a white pixel, if this is such a grey picture."""


Raw = bytes | Path | str | npt.NDArray[np.uint8]
"""An encoded image, an image file, a text, pixels (C x H x W), or the cells of a row as bytes that
are only compared.
"""
Rows = npt.NDArray[np.int64]
"""Numbers of rows in a listing, from 0."""
Labels = npt.NDArray[np.int64]
"""Class numbers (n), or 0 and 1 for each label (n x labels)."""


@dataclass(frozen=True)
class Columns:
    """The columns to read; None looks for the usual names (input, label) or reads none (group)."""

    input: str | None = None
    label: str | None = None
    group: str | None = None
    where: Mapping[str, str] = field(default_factory=dict)
    """Keep only rows that have these values."""
    table: TableConfig | None = None
    """For a table of features: which columns these are. None for images and texts."""


@dataclass
class Listing:
    """The examples of a source before any image is decoded: their labels, and a way to fetch some
    of the inputs.
    """

    where: str
    """What messages call the source: its path, and the split in brackets."""
    kind: Kind
    count: int
    """How many examples there are, n."""
    fetch: Callable[[Rows], Sequence[Raw]]
    """Returns some of the inputs; the rows are sorted."""
    labels: Labels | None
    """None without a label column. Class number -1 means that the example has no label."""
    classes: list[str]
    groups: list[str] | None = None
    """The group of each example. Examples of one group (a patient, an author) must not be in two
    splits.
    """
    tables: list[Any] = field(default_factory=list)
    """The features of a table, one pyarrow table for each split that was joined; empty for images
    and texts.
    """
    names: Callable[[Rows], list[str]] | None = None
    """What a person calls some of the examples; None if that is the source and the number of a
    row.
    """
    columns: list[str] = field(default_factory=list)
    """The columns of a file; empty for folders."""

    def named(self, rows: Rows) -> list[str]:
        """Return the names of some examples in the source: files, or rows counted from 1 as in
        `attittud predict`.
        """
        if self.names is None:
            return [f"{self.where}, row {row + 1}" for row in rows.tolist()]
        return self.names(rows)

    @property
    def multi_label(self) -> bool:
        """Whether an example may have several labels at once."""
        return self.labels is not None and self.labels.ndim == 2


class Source(Protocol):
    """Something that examples can be read from."""

    @classmethod
    def open(cls, name: str) -> Self | None:
        """Return the source that a configuration calls `name`; None if another source reads it."""

    @property
    def splits(self) -> list[str]:
        """The names of its own splits; empty where it has none."""
        return []

    def columns(self, split: str | None) -> list[str]:
        """Return the columns that `input`, `label`, `group` and `where` can name; empty where
        there are none.
        """
        return []

    def listing(self, split: str | None, columns: Columns) -> Listing:
        """Return the examples of one split, or all."""


# Each source is a file in this folder and one line here. They are tried in this order, and imported
# only when tried: pyarrow alone takes half a second.
_SOURCES: list[type[Source] | str] = [
    "attittud_lab.data.digits:Digits",
    "attittud_lab.data.hub:Hub",
    "attittud_lab.data.tables:Tables",
    "attittud_lab.data.folder:ImageFolder",
]


def register_source(source: type[Source]) -> type[Source]:
    """A class decorator: the source is tried before the sources that are already registered."""
    _SOURCES.insert(0, source)
    return source


def open_source(name: str) -> Source:
    """Return the first source that can read what a configuration calls `name`."""
    try:
        for entry in _SOURCES:
            source: Any = entry
            if isinstance(entry, str):
                source = resolve_name(entry)
            opened: Source | None = source.open(name)
            if opened is not None:
                return opened
    except OSError as error:
        problem = f"{name}: cannot be opened ({error.strerror})"
        raise InputError(f"{problem}; check the path and its permissions") from None
    raise not_found(name)


def not_found(name: str) -> InputError:
    """Return the error for a path that does not exist."""
    path = as_path(name)
    hint = ""
    if path.parent.is_dir():
        hint = meant(path.name, [other.name for other in path.parent.iterdir()])
    return InputError(f"{name}: there is no such file or folder (looked in {Path.cwd()}){hint}")


@cache
def warn_once(message: str) -> None:
    """Warn once per process, however many runs read the same data."""
    logger.warning("%s", message)


def check_memory(size: int, culprit: str, advice: str = "give fewer examples") -> None:
    """Refuse data that take more than half of the free memory, before they are allocated;
    `culprit` names them.
    """
    free = free_memory()
    if size > free / 2:
        problem = f"{culprit} would take {size / 2**30:.1f} GiB of memory"
        half = f"at most half of the {free / 2**30:.1f} GiB that are free may be used"
        raise InputError(f"{problem}, but {half}, because training needs some too; {advice}")


def free_memory() -> float:
    """Return the bytes of main memory that this process can still take; infinite if the system does
    not say.
    """
    limits = [math.inf]
    with suppress(OSError, ValueError):  # another system, or a container without a limit
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        for line in lines:
            if line.startswith("MemAvailable:"):
                limits.append(1024 * int(line.split()[1]))
        # The limit of a container.
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        limits.append(limit - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    return min(limits)


def first_of(names: Iterable[str], available: Sequence[str]) -> str | None:
    """Return the first of these names that is available; None if none is."""
    return next((name for name in names if name in available), None)


def inside(root: Path, path: Path) -> Path:
    """Return `path`, which was found in the folder `root`, unless it is a link that leaves the
    folder: such a link in a downloaded archive could read any file.
    """
    if not path.resolve().is_relative_to(root.resolve()):
        advice = "copy the file into the folder, or remove the link"
        raise InputError(f"{path}: is a link out of {root}; {advice}")
    return path


def open_listing(
    config: SourceConfig,
    source: Source,
    split: str | None,
    table: TableConfig | None = None,
    primary_group: str | None = None,
) -> Listing:
    """Return the listing of a split, which must exist; `train+other` reads two splits as one.

    `table` names the columns of a table of features. `primary_group` is the primary data's column
    of groups, which an auxiliary source may have too. Settings that name a column are refused for a
    source without columns.
    """
    names: list[str | None] = [None]
    if split is not None:
        names = list(dict.fromkeys(split.split("+")))
    group = getattr(config, "group", None)  # a setting of primary sources only
    columns = Columns(config.input, config.label, group, config.where, table)
    for name in names:
        if name is not None and name not in source.splits:
            splits = ", ".join(source.splits) or "none"
            raise InputError(f"{config.path}: there is no split {name!r}; the source has {splits}")
        for key, value in vars(columns).items():
            if value and key != "table" and not source.columns(name):
                problem = f"{config.path}: has no columns, so {key}: {value} has no effect"
                raise InputError(f"{problem}; leave {key} out")
    if primary_group is not None and all(primary_group in source.columns(name) for name in names):
        columns = replace(columns, group=primary_group)
    listing = join_listings([source.listing(name, columns) for name in names])
    if listing.count == 0:
        raise InputError(f"{listing.where}: there are no examples in it")
    return listing


def join_listings(parts: Sequence[Listing]) -> Listing:
    """Join several splits of a source. The result has the classes of all, and no labels if one of
    the splits has none.
    """
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    ends = np.cumsum([part.count for part in parts])  # one behind the last row of each part

    def collected(rows: Rows, read: Callable[[Listing, Rows], Sequence[Any]]) -> list[Any]:
        """Read rows, which are counted through all parts, part by part."""
        items: list[Any] = []
        for part, end in zip(parts, ends, strict=True):
            shifted = rows - (end - part.count)
            items += read(part, shifted[(shifted >= 0) & (shifted < part.count)])
        return items

    labels, classes = _joined_labels(parts)
    groups = [part.groups for part in parts if part.groups is not None]
    all_groups = None
    if len(groups) == len(parts):
        all_groups = list(chain.from_iterable(groups))
    return replace(
        first,
        where=" + ".join(part.where for part in parts),
        count=int(ends[-1]),
        fetch=lambda rows: collected(rows, lambda part, part_rows: part.fetch(part_rows)),
        names=lambda rows: collected(rows, Listing.named),
        labels=labels,
        classes=classes,
        tables=list(chain.from_iterable(part.tables for part in parts)),
        groups=all_groups,
    )


def _joined_labels(parts: Sequence[Listing]) -> tuple[Labels | None, list[str]]:
    """Return the labels of all parts as numbers of the classes of all, and these classes; None and
    no classes if one of the parts has no labels, or lists of other labels.
    """
    classes = list(dict.fromkeys(chain.from_iterable(part.classes for part in parts)))
    labels = []
    for part in parts:
        if part.labels is None or part.multi_label != parts[0].multi_label:
            return None, []
        if not part.multi_label:
            labels.append(renumber(part, part.labels, classes))
        elif part.classes == classes:
            labels.append(part.labels)
        else:
            return None, []
    return np.concatenate(labels), classes


def renumber(listing: Listing, labels: Labels, classes: Sequence[str]) -> Labels:
    """Return the labels of a listing as numbers of these classes; -1 for other classes and for
    missing labels.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    new_numbers = [numbers.get(name, -1) for name in listing.classes]
    # A missing label, -1, reads the last entry.
    return np.array([*new_numbers, -1], dtype=np.int64)[labels]
