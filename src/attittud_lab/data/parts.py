"""Divide the rows of the sources into training, validation, test and auxiliary parts, before
anything is decoded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, combinations

import numpy as np
import numpy.typing as npt

from attittud_lab.config.options import meant
from attittud_lab.config.schema import (
    AuxiliaryConfig,
    DataConfig,
    LabelNoise,
    PrimaryConfig,
    SourceConfig,
    TableConfig,
)
from attittud_lab.data.source import (
    Labels,
    Listing,
    Raw,
    Rows,
    Source,
    open_listing,
    open_source,
    renumber,
    warn_once,
)
from attittud_lab.data.splits import Digests, amount, check_copies, digests, stratified
from attittud_lab.data.tasks import find_objective, mix
from attittud_lab.errors import InputError, counted, listed, loose, short, spellings

VALIDATION = ("validation", "val", "valid", "dev")
"""Names that sources give their own validation split."""
ENOUGH = 0.8
"""A smaller share of the training examples that were asked for is worth a warning; whole groups
rarely fit exactly.
"""


@dataclass
class Part:
    """Some rows of a listing, not decoded yet, and their classes, which count from 0."""

    listing: Listing
    rows: Rows
    labels: Labels | None = None
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
        labels = None if self.labels is None else self.labels[positions]
        return replace(self, rows=self.rows[positions], labels=labels)

    def drawn(self, size: int, seed: int, groups: Sequence[str] | None = None) -> tuple[Part, Part]:
        """Draw `size` rows, each class in proportion; returns them and the other rows."""
        taken, left = stratified(len(self.rows), self.labels, size, seed, groups)
        return self.take(taken), self.take(left)


@dataclass
class Parts:
    """Everything that a job reads."""

    primary: dict[str, Part]
    """The parts train, validation and test."""
    auxiliary: dict[str, Part]
    copied: dict[str, int]
    """How many primary examples are in two parts, such as `test in train`."""
    used: list[Digests]
    """Digests of the examples for training and validation, primary and auxiliary ones."""


def read_parts(config: DataConfig, seed: int, *, pooled: bool = False) -> Parts:
    """Split the primary data and leave their examples out of the auxiliary data; refuses data that
    cannot be trained on.

    `pooled`: every training example will be held out once, so neither it nor others of its group
    may be in an auxiliary source, and validation and test may be empty.
    """
    opened = cache(open_source)
    test_seed = seed if config.test_seed is None else config.test_seed
    table = config.table if config.kind == "table" else None
    primary = _primary_parts(
        config.primary, opened(config.primary.path), seed, test_seed, table, pooled=pooled
    )
    kind = primary["train"].listing.kind
    if config.kind not in ("auto", kind):
        raise InputError(
            f"data.kind is {config.kind}, but {config.primary.path} holds {kind}s; set data.kind: {kind} or auto"
        )
    digests_of = {name: digests(part.listing, part.rows) for name, part in primary.items()}
    copied = check_copies(digests_of, config.primary.path, config.primary.overlap)
    if pooled and config.primary.overlap != "allow":
        _warn_of_copies(
            [digests_of["train"], digests_of["validation"]], primary, config.primary.path
        )
    auxiliary = {}
    used = [digests_of["train"], digests_of["validation"]]
    for name, source in config.auxiliary.items():
        part = _auxiliary_part(
            source, opened(source.path), name, mix(seed, name), table, config.primary.group
        )
        if part.listing.kind != kind:
            problem = f"data.auxiliary.{name}: holds {part.listing.kind}s"
            raise InputError(f"{problem}, but the primary source holds {kind}s")
        _check_columns(part, name, primary["train"])
        _check_one_class(part, name, primary["train"])
        part, part_digests = _without_primary(part, name, primary, digests_of, pooled=pooled)
        auxiliary[name] = part
        used.append(part_digests)
        _warn_of_spelling(part, name, primary["train"])
        _warn_of_twins(part, f"data.auxiliary.{name}")
        if source.label_noise is not None:
            noise_seed = mix(seed, name, "noise")
            part.labels = with_noise(
                part.labels, len(part.classes), source.label_noise, noise_seed, name
            )
    if table is not None:
        _check_excluded(table, [*primary.values(), *auxiliary.values()])
    return Parts(primary, auxiliary, copied, used)


def _warn_of_copies(pooled: Sequence[Digests], primary: Mapping[str, Part], where: str) -> None:
    """Warn about pooled examples that may be held out while copies of them are trained on."""
    all_digests = np.concatenate(pooled).tolist()
    groups = [*(primary["train"].groups or ()), *(primary["validation"].groups or ())]
    # Copies in one group stay together.
    pairs = set(zip(all_digests, groups or range(len(all_digests)), strict=True))
    copied = Counter(copy for copy, _ in pairs if copy)
    count = copied.total() - len(copied)
    if count:
        problem = f"{where}: {count} of {len(all_digests)} labelled examples are copies of others. If one copy is held out while"
        advice = "remove the copies, or give them the same data.primary.group"
        warn_once(f"{problem} another is trained on, out-of-fold scores are too good; {advice}")


def _check_excluded(table: TableConfig, parts: Sequence[Part]) -> None:
    """Refuse a column that no source has: the column that was meant would become a feature."""
    columns = list(chain.from_iterable(part.listing.columns for part in parts))
    for name in table.exclude:
        if name not in columns:
            hint = meant(name, columns)
            raise InputError(f"data.table.exclude: no source has a column {short(name)!r}{hint}")


def _check_columns(part: Part, name: str, primary: Part) -> None:
    """Refuse an auxiliary table that does not have the feature columns of the primary table."""
    if not primary.listing.tables:
        return
    primary_columns = set(primary.listing.tables[0].column_names)
    differing = primary_columns.symmetric_difference(part.listing.tables[0].column_names)
    if differing:
        advice = "list them in data.table.exclude, or rename columns that mean the same"
        raise InputError(
            f"data.auxiliary.{name}: has other features than the primary source; only one of them "
            f"has {listed(sorted(differing))}; {advice}"
        )


def _check_one_class(part: Part, name: str, primary: Part) -> None:
    """Refuse an auxiliary source in which every example has the same class, unless this is a
    primary class.
    """
    if part.labels is None or part.labels.ndim > 1 or len(np.unique(part.labels)) > 1:
        return
    only = part.classes[part.labels[0]]
    problem = (
        f"data.auxiliary.{name}: all its {len(part.rows)} examples have the class {short(only)!r}"
    )
    if only not in primary.classes:
        raise InputError(f"{problem}, so there is nothing to learn; check its label:")
    warn_once(f"{problem}; they can only help as more primary examples")


def _warn_of_spelling(part: Part, name: str, primary: Part) -> None:
    """Warn if a class is spelt in another way than in the primary data: then it counts as another
    class.
    """
    spelling = spellings(primary.classes)
    for label in part.classes:
        other = spelling.get(loose(label), label)
        if other != label and label not in primary.classes:
            problem = f"data.auxiliary.{name}: its class {short(label)!r} is not the primary class {short(other)!r}"
            warn_once(
                f"{problem}, because case and blanks count; spell them alike if they mean the same"
            )


def _warn_of_twins(part: Part, where: str) -> None:
    """Warn if two classes of a source are spellings of one name: then they count as two classes."""
    first: dict[str, str] = {}
    pairs = []
    for name in part.classes:
        earlier = first.setdefault(loose(name), name)
        if earlier != name:
            pairs.append(f"{short(earlier)!r} and {short(name)!r}")
    if pairs:
        problem = f"{where}: the classes {pairs[0]} differ only in case, blanks or Unicode form"
        if len(pairs) > 1:
            problem += f", and {counted(len(pairs) - 1, 'more pair')}"
        advice = "so spell them alike if they mean the same"
        warn_once(f"{problem}; they count as different classes, {advice}")


def _without_primary(
    part: Part,
    name: str,
    primary: Mapping[str, Part],
    digests_of: Mapping[str, Digests],
    *,
    pooled: bool,
) -> tuple[Part, Digests]:
    """Leave out the examples that the primary task has, and those whose groups it holds out.

    Returns the others, and their digests. A labelled example that the primary task has adds
    nothing. Plain text may be used again for language modelling, but never a text that is held out.
    Other examples of a patient who is held out would show what the model is tested on.
    """
    here = digests(part.listing, part.rows)
    if part.groups is None and primary["train"].groups is not None:
        reason = "has no column for data.primary.group"
        warn_once(
            f"data.auxiliary.{name}: {reason}, so examples of held-out groups are not removed"
        )
    held_out = [primary["validation"], primary["test"]]
    if pooled:
        held_out.append(primary["train"])
    forbidden = [digests_of["validation"], digests_of["test"]]
    if pooled or part.labels is not None:
        forbidden.append(digests_of["train"])
    copied = np.isin(here, np.concatenate(forbidden)) & (here != b"")
    grouped = ~copied & _of_groups(part, held_out)
    remaining = ~copied & ~grouped
    left_out = int(copied.sum())
    left_out_groups = int(grouped.sum())
    problem = f"data.auxiliary.{name}: of its {len(here)} examples, {left_out} are copies of primary examples"
    if left_out_groups:
        problem += f" and {left_out_groups} others belong to held-out groups"
    if not remaining.any():
        advice = "name other data, or lower data.primary.train"
        if pooled:
            strategy = "a strategy that holds out fewer groups (such as strategy=auto)"
            advice = f"name other data, {strategy}, or lower data.primary.train"
        raise InputError(f"{problem}, and no example is left; {advice}")
    if not remaining.all():
        warn_once(f"{problem}; they are left out")
    others = part.take(np.flatnonzero(remaining))
    others = replace(others, left_out=left_out, left_out_groups=left_out_groups)
    return others, here[remaining]


def _of_groups(part: Part, held_out: Sequence[Part]) -> npt.NDArray[np.bool_]:
    """Find the rows whose groups are held out; none if one of the two sources has no groups."""
    names = set[str]()
    for other in held_out:
        names.update(other.groups or ())
    return np.array([group in names for group in part.groups or [""] * len(part.rows)], dtype=bool)


def _primary_parts(
    config: PrimaryConfig,
    source: Source,
    seed: int,
    test_seed: int,
    table: TableConfig | None,
    *,
    pooled: bool,
) -> dict[str, Part]:
    """Return the parts train, validation and test; no example is in two of them."""
    if not pooled:
        check_held_out(config)
    train_split, splits = _own_splits(config, source.splits)
    left = chosen(open_listing(config, source, train_split, table), config)
    _check_classes(left, config.path)
    _warn_of_twins(left, config.path)
    total = len(left.rows)
    parts: dict[str, Part] = {}
    for name, setting, first in (
        ("test", config.test, test_seed),
        ("validation", config.validation, seed),
    ):
        path = f"data.primary.{name}"
        split = splits[name]
        if setting == 0 and pooled:
            parts[name] = left.take(np.arange(0))
        elif split not in (None, train_split):
            part = _own_part(config, open_listing(config, source, split, table), left)
            size = len(part.rows)
            if isinstance(setting, int):  # the default fraction is meant for data without splits
                size = amount(setting, size, path)
            parts[name], _ = part.drawn(size, mix(first, name))
        elif setting is None:
            reason = "null means the source's own split, but it has none"
            raise InputError(f"{path}: {reason}; give a count or a fraction, such as 0.2")
        else:
            size = amount(setting, len(left.rows), path, total)
            parts[name], left = left.drawn(size, mix(first, name), left.groups)
    available = len(left.rows)
    if isinstance(config.train, float):
        # Three fractions that add up to 1 may be rounded to one example too many.
        available += 1
    size = amount(config.train, available, "data.primary.train", total)
    size = min(size, len(left.rows))
    # Pooled rows are held out in turn, so the others of their groups are lost for auxiliary data:
    # draw whole groups.
    groups = left.groups if pooled else None
    parts["train"], _ = left.drawn(size, mix(seed, "train"), groups)
    for name, part in parts.items():
        if not len(part.rows) and not (pooled and getattr(config, name) == 0):
            advice = f"raise data.primary.{name}, lower the others, or give more data"
            if part.groups is not None:
                advice += " (groups stay whole, and none is small enough)"
            raise InputError(f"data.primary: no example is left for {name}; {advice}")
    if len(parts["train"].rows) < ENOUGH * size:
        count = len({*(parts["train"].groups or ())})
        have = f"{counted(len(parts['train'].rows), 'example')} of {counted(count, 'group')}"
        warn_once(f"data.primary.train: {have} instead of {size}, since groups stay whole")
    _check_classes(parts["train"], config.path)
    _check_groups(parts, config.path)
    return parts


def check_held_out(config: PrimaryConfig) -> None:
    """Refuse a test or validation set of 0 examples, which only a portfolio can do without."""
    for name in ("test", "validation"):
        if getattr(config, name) == 0:
            problem = f"data.primary.{name}: is 0, which only strategy portfolio can do without"
            raise InputError(f"{problem}; give a count or a fraction, such as 0.2")


def _own_splits(
    config: PrimaryConfig, available: list[str]
) -> tuple[str | None, dict[str, str | None]]:
    """Return the splits for training, validation and test; no example may be in two of them.

    A split that is named for training and for another part is divided. Splits that the
    configuration does not name are found by their usual names.
    """
    train = config.split or _first_of(("train",), available)
    taken = {*(train or "").split("+"), config.validation_split, config.test_split}
    others = [name for name in available if name not in taken]
    splits = {
        "validation": config.validation_split or _first_of(VALIDATION, others),
        "test": config.test_split or _first_of(("test",), others),
    }
    held_out = {}
    for name, split in splits.items():
        if split is not None and split != train:
            held_out[name] = set(split.split("+"))
    if train is None and available and held_out:
        not_for_training = set[str]().union(*held_out.values())
        train = "+".join(name for name in available if name not in not_for_training)
        if not train:
            problem = f"{config.path}: has {' and '.join(available)}, but nothing to train on"
            raise InputError(
                f"{problem}; set data.primary.split to the split that should be divided"
            )
    used = held_out
    if train:
        used = {"train": set(train.split("+")), **held_out}
    for first, second in combinations(used, 2):
        both = used[first] & used[second]
        if both:
            advice = "choose others with data.primary.split, data.primary.validation_split and data.primary.test_split"
            raise InputError(
                f"{config.path}: the split {min(both)} is in {first} and in {second}; {advice}"
            )
    return train, splits


def _first_of(names: Iterable[str], available: Sequence[str]) -> str | None:
    """Return the first of these names that is available; None if none is."""
    return next((name for name in names if name in available), None)


def chosen(listing: Listing, config: SourceConfig, *, labelled: bool = True) -> Part:
    """Return the rows that pass the class filters, with labels from 0 on; all rows if they need not
    be `labelled`.
    """
    if not labelled:
        return Part(listing, np.arange(listing.count))
    where = listing.where
    _check_labels(listing)
    if not listing.classes:
        reason = "no example has a label (empty cells and negative numbers count as none)"
        raise InputError(f"{where}: {reason}; name another column with label:")
    named = config.classes or []
    for name in [*named, *config.exclude]:
        if name not in listing.classes:
            hint = meant(name, listing.classes) or "."
            raise InputError(
                f"{where}: there is no class {name!r}{hint} Its classes are {listed(listing.classes)}"
            )
    classes = dict.fromkeys(named or listing.classes)
    return _numbered(listing, [name for name in classes if name not in config.exclude])


def _check_labels(listing: Listing) -> Labels:
    """Return the labels of a listing, which must have some."""
    if listing.labels is None:
        problem = f"{listing.where}: no label column was found; name it with label:"
        if listing.columns:
            problem += f". Columns: {listed(listing.columns)}"
        raise InputError(problem)
    return listing.labels


def _numbered(listing: Listing, classes: list[str]) -> Part:
    """Return the rows of a listing that have one of these classes; the classes are numbered in
    this order.
    """
    rows = np.arange(listing.count)
    labels = _check_labels(listing)
    if listing.multi_label:
        positions = [listing.classes.index(name) for name in classes]
        return Part(listing, rows, labels[:, positions], classes)
    without = int((labels < 0).sum())
    if without:
        warn_once(
            f"{listing.where}: {without} of {listing.count} examples without a label, left out"
        )
    numbers = renumber(listing, labels, classes)
    return Part(listing, rows[numbers >= 0], numbers[numbers >= 0], classes)


def _own_part(config: PrimaryConfig, listing: Listing, train: Part) -> Part:
    """Return the rows of another split, with the class numbers of the training split; their kinds
    must agree.
    """
    labels = _check_labels(listing)
    if (listing.kind, listing.multi_label) != (train.listing.kind, train.listing.multi_label):
        problem = f"{listing.where} and {train.listing.where}: hold different kinds of examples"
        raise InputError(f"{problem}; give splits of the same kind")
    unseen = _unseen(listing, labels, train, config)
    missing = [name for name in train.classes if name not in listing.classes]
    if listing.multi_label and missing:
        problem = f"{listing.where}: has no label {listed(missing)}, which the training split has"
        raise InputError(f"{problem}; its labels are {listed(listing.classes)}")
    return replace(_numbered(listing, train.classes), unseen=unseen)


def _unseen(listing: Listing, labels: Labels, train: Part, config: PrimaryConfig) -> dict[str, int]:
    """Count the rows of classes that the training split lacks; they are refused unless the
    configuration allows them.

    Classes that the configuration leaves out do not count. A name that differs from a kept class
    only in case or blanks always counts: hardly anybody means to leave it out.
    """
    if listing.multi_label:
        counts = labels.sum(0)
    else:
        counts = np.bincount(labels[labels >= 0], minlength=len(listing.classes))
    left_out = {*train.listing.classes, *config.exclude}
    trained = spellings(train.classes)
    unseen = {}
    for name, count in zip(listing.classes, counts.tolist(), strict=True):
        meant_to_be_kept = config.classes is None or loose(name) in trained
        if count and name not in left_out and meant_to_be_kept:
            unseen[name] = count
    if not unseen:
        return {}
    words = []
    for name, count in unseen.items():
        words.append(f"{name!r} ({count}{meant(name, train.classes)})")
    counted_things = "labels" if listing.multi_label else f"of {listing.count} examples"
    problem = f"{listing.where}: {sum(unseen.values())} {counted_things} belong to classes that the training split lacks"
    problem += f": {', '.join(words[:5])}"
    if config.unseen == "refuse":
        advice = "correct their labels, name the classes to keep with data.primary.classes"
        raise InputError(
            f"{problem}; {advice}, or leave these examples out with data.primary.unseen: drop"
        )
    warn_once(f"{problem}; they are left out")
    return unseen


def _check_classes(train: Part, where: str) -> None:
    """Refuse training examples from which some class cannot be learned."""
    assert train.labels is not None
    culprit = f"{where}: the primary training set has"
    labels = train.labels
    advice = "raise data.primary.train, or leave them out with data.primary.exclude"
    if labels.ndim == 2:
        for name, count in zip(train.classes, labels.sum(0).tolist(), strict=True):
            if count in (0, len(labels)):
                share = "no positive" if count == 0 else "only positive"
                raise InputError(
                    f"{culprit} {share} examples of {name}, so there is nothing to learn; {advice}"
                )
        return
    counts = np.bincount(labels, minlength=len(train.classes))
    missing = [name for name, count in zip(train.classes, counts, strict=True) if not count]
    if len(train.classes) - len(missing) < 2:
        if len(labels):
            only = f"only one class ({train.classes[labels[0]]!r})"
        else:
            only = "no labelled example"
        advice = "give at least two classes, or check data.primary.classes and the label column"
        if len(labels) and missing:
            smaller = "smaller data.primary.validation and data.primary.test"
            advice = f"give more examples of {listed(missing, 10)}, or {smaller}"
        raise InputError(f"{culprit} {only}, so there is nothing to learn; {advice}")
    if missing:
        raise InputError(f"{culprit} no example of {listed(missing, 10)}; {advice}")


def _check_groups(parts: Mapping[str, Part], where: str) -> None:
    """Refuse a group that is in two parts, even if the source has its own splits."""
    groups = {name: set(part.groups) for name, part in parts.items() if part.groups is not None}
    for first, second in combinations(groups, 2):
        both = groups[first] & groups[second]
        if both:
            some = f"{counted(len(both), 'group is', 'groups are')} in {first} and in {second}"
            problem = f"{where}: {some} (for example {min(both)!r})"
            advice = "give the data without splits, so that they are split by group"
            raise InputError(f"{problem}; {advice}, or choose another data.primary.group")


def _auxiliary_part(
    config: AuxiliaryConfig,
    source: Source,
    name: str,
    seed: int,
    table: TableConfig | None,
    group: str | None,
) -> Part:
    """Return the examples of an auxiliary source that its configuration asks for."""
    culprit = f"data.auxiliary.{name}"
    objective = find_objective(config.objective, f"{culprit}.objective")
    split = config.split or _first_of(("train",), source.splits)
    listing = open_listing(config, source, split, table, group)
    if listing.kind not in objective.kinds:
        needed = " or ".join(f"{kind}s" for kind in objective.kinds)
        raise InputError(
            f"{culprit}: {config.objective} needs {needed}, but {config.path} holds {listing.kind}s"
        )
    part = chosen(listing, config, labelled=objective.labelled)
    if not len(part.rows):
        raise InputError(
            f"{culprit}: no example has a label of {listed(part.classes)}; check label: and classes:"
        )
    return part.drawn(amount(config.examples, len(part.rows), f"{culprit}.examples"), seed)[0]


def with_noise(
    labels: Labels | None, classes: int, noise: LabelNoise, seed: int, name: str
) -> Labels:
    """Replace exactly this share of the labels, drawn by the seed, with a random class or with the
    next class.
    """
    if labels is None or labels.ndim != 1:
        raise InputError(
            f"data.auxiliary.{name}.label_noise: needs examples with one class each; leave it out here"
        )
    generator = np.random.default_rng(seed)
    labels = labels.copy()
    touched = generator.permutation(len(labels))[: round(noise.share * len(labels))]
    if noise.kind == "random":
        labels[touched] = generator.integers(classes, size=len(touched))
    else:
        labels[touched] = (labels[touched] + 1) % classes
    return labels
