"""Which rows of which source belong to which part of the data, before anything is decoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import combinations

import numpy as np

from attittud_lab.config.schema import AuxiliaryConfig, DataConfig, LabelNoise, PrimaryConfig, SourceConfig
from attittud_lab.data.source import (
    Kind,
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
from attittud_lab.data.splits import Digests, amount, check_copies, copies, digests, stratified
from attittud_lab.data.tasks import find_objective, mix
from attittud_lab.errors import InputError

VALIDATION = ("validation", "val", "valid", "dev")
"""What sources call their own validation split."""
MOST_SOURCES = 1000
"""Auxiliary sources; each has a batch in every step."""


@dataclass
class Part:
    """Some rows of a listing, not decoded yet."""

    listing: Listing
    rows: Rows
    labels: Labels | None
    unseen: dict[str, int] = field(default_factory=dict)
    """Rows that were left out as the training split has no such class, by class."""

    def raws(self) -> Sequence[Raw]:
        return self.listing.fetch(self.rows)

    def take(self, positions: Rows) -> Part:
        """Some of the rows; `positions` may be a mask."""
        labels = None if self.labels is None else self.labels[positions]
        return Part(self.listing, self.rows[positions], labels, self.unseen)


@dataclass
class Parts:
    """Everything that a job reads."""

    kind: Kind
    primary: dict[str, Part]
    """The parts train, validation and test."""
    classes: list[str]
    auxiliary: dict[str, tuple[Part, list[str]]]
    """The rows and classes of each source."""
    left_out: dict[str, int]
    """How many examples of each auxiliary source were left out, as the primary task has them too."""
    copied: dict[str, int]
    """How many primary examples are in two parts, such as `test in train`."""


def read_parts(config: DataConfig, seed: int) -> Parts:
    """Split the primary data and leave their examples out of the others; refuses what cannot be trained."""
    if len(config.auxiliary) > MOST_SOURCES:
        raise InputError(
            f"data.auxiliary: {len(config.auxiliary):,} sources are more than {MOST_SOURCES:,}, and each has a batch in every "
            "step; put several into one file or folder"
        )
    opened: dict[str, Source] = {}
    test_seed = seed if config.test_seed is None else config.test_seed
    parts, classes = _primary_parts(config.primary, _opened(config.primary, opened), seed, test_seed)
    kind = parts["train"].listing.kind
    if config.kind not in ("auto", kind):
        raise InputError(f"data.kind is {config.kind}, but {config.primary.path} holds {kind}s")
    seen = {name: digests(part.listing, part.rows) for name, part in parts.items()}
    copied = check_copies(seen, config.primary.path, config.primary.overlap)
    others: dict[str, tuple[Part, list[str]]] = {}
    left_out: dict[str, int] = {}
    for name, source in config.auxiliary.items():
        part, names = _auxiliary_part(source, _opened(source, opened), name, mix(seed, name))
        if part.listing.kind != kind:
            raise InputError(f"data.auxiliary.{name}: holds {part.listing.kind}s, but the primary source holds {kind}s")
        kept = _without_primary(part, name, seen, labelled=find_objective(source.objective, name).labelled)
        left_out[name] = len(part.rows) - len(kept.rows)
        if not len(kept.rows):
            raise InputError(
                f"data.auxiliary.{name}: every example of it is also in the primary data; name other data, or "
                "lower data.primary.train so that some is left"
            )
        if source.label_noise is not None:
            kept.labels = with_noise(kept.labels, len(names), source.label_noise, mix(seed, name, "noise"), name)
        others[name] = (kept, names)
    return Parts(kind, parts, classes, others, left_out, copied)


def _opened(config: SourceConfig, opened: dict[str, Source]) -> Source:
    """The source of a path, opened once for all that read from it."""
    if config.path not in opened:
        opened[config.path] = open_source(config)
    return opened[config.path]


def _without_primary(part: Part, name: str, seen: Mapping[str, Digests], *, labelled: bool) -> Part:
    """Leave out what the primary task has.

    A labelled example that the primary task has is of no further use. Plain text may be used again for language
    modelling, but never that of validation and test.
    """
    own = digests(part.listing, part.rows)
    forbidden = [seen["validation"], seen["test"], *([seen["train"]] if labelled else [])]
    kept = ~np.isin(own.exact, np.concatenate([other.exact for other in forbidden]))
    for held_out in ("validation", "test"):
        count, _ = copies(Digests(own.exact[kept], own.words[kept]), seen[held_out])
        if count:
            warn_once(
                f"data.auxiliary.{name}: {count} of its texts are also in the primary {held_out} set, but for case, white space "
                "or punctuation; remove them, as figures on them say little"
            )
    return part.take(np.flatnonzero(kept))


# ------------------------------------------------------------------------------------------------ the primary task


def _primary_parts(
    config: PrimaryConfig, source: Source, seed: int, test_seed: int
) -> tuple[dict[str, Part], list[str]]:
    train_split, own = _own_splits(config, source.splits)
    listing = open_listing(config, source, train_split)
    rows, labels, classes = chosen(listing, config, labelled=True)
    left = Part(listing, rows, labels)
    _check_classes(left, classes, config.path)
    total = len(rows)
    parts: dict[str, Part] = {}
    for name in ("test", "validation"):
        wanted = config.test if name == "test" else config.validation
        if wanted == 0 and isinstance(wanted, int):
            purpose = "measures the result" if name == "test" else "chooses the model and judges for strategy auto"
            raise InputError(
                f"data.primary.{name}: is 0, but that part {purpose}; give a count or a fraction, such as 0.2"
            )
        split, own_seed = own[name], mix(test_seed if name == "test" else seed, name)
        if split is not None and split != train_split:
            parts[name] = _own_part(config, source, split, name, listing, classes, own_seed)
        else:
            parts[name], left = _drawn_part(left, wanted, total, name, own_seed)
    size = amount(config.train, len(left.rows), "data.primary.train", total)
    taken, _ = stratified(np.arange(len(left.rows)), left.labels, size, mix(seed, "train"))
    parts["train"] = left.take(np.sort(taken))
    for name, part in parts.items():
        if not len(part.rows):
            whole = "" if part.listing.groups is None else "; groups stay whole, and none is small enough"
            raise InputError(f"data.primary: no example is left for {name}{whole}; lower the others, or give more data")
    _check_classes(parts["train"], classes, config.path)
    _check_groups(parts, config.path)
    return parts, classes


def _own_part(
    config: PrimaryConfig, source: Source, split: str, name: str, train: Listing, classes: list[str], seed: int
) -> Part:
    """A part from the source's own split for it."""
    other = open_listing(config, source, split)
    _check_alike(other, train)
    part = _same_classes(other, train, classes, config)
    wanted = config.test if name == "test" else config.validation
    # The default fraction is meant for data without a split of their own.
    size = amount(wanted, len(part.rows), f"data.primary.{name}") if isinstance(wanted, int) else len(part.rows)
    taken, _ = stratified(np.arange(len(part.rows)), part.labels, size, seed)
    return part.take(np.sort(taken))


def _drawn_part(left: Part, wanted: int | float | None, total: int, name: str, seed: int) -> tuple[Part, Part]:
    """A part drawn from the rows that are left, and the rest of them."""
    if wanted is None:
        raise InputError(
            f"data.primary.{name}: null means the source's own split, but it has none; give a count or a fraction, such "
            "as 0.2"
        )
    size = amount(wanted, len(left.rows), f"data.primary.{name}", total)
    names = left.listing.groups
    groups = None if names is None else np.unique(names, return_inverse=True)[1].reshape(-1)[left.rows]
    taken, rest = stratified(np.arange(len(left.rows)), left.labels, size, seed, groups)
    return left.take(np.sort(taken)), left.take(np.sort(rest))


def _own_splits(config: PrimaryConfig, known: list[str]) -> tuple[str | None, dict[str, str | None]]:
    """What to train on, and the source's own splits for validation and test: no example may be in two of them.

    A split that is both trained on and named for another part is divided. What the configuration leaves open goes by the
    usual names.
    """
    train = config.split or ("train" if "train" in known else None)
    taken = {*(train or "").split("+"), config.validation_split, config.test_split}
    own = {
        "validation": config.validation_split or next((name for name in VALIDATION if name in {*known} - taken), None),
        "test": config.test_split or ("test" if "test" in {*known} - taken else None),
    }
    held_out = {name: set(split.split("+")) for name, split in own.items() if split not in (None, train)}
    if train is None and known and held_out:
        rest = [name for name in known if name not in set().union(*held_out.values())]
        if not rest:
            raise InputError(
                f"{config.path}: has {' and '.join(known)}, but nothing to train on; name the split to be divided by "
                "data.primary.split"
            )
        train = "+".join(rest)
    used = {"train": set(train.split("+")) if train else set[str](), **held_out}
    for first, second in combinations(used, 2):
        both = used[first] & used[second]
        if both:
            raise InputError(
                f"{config.path}: the split {min(both)} is in {first} and in {second}; choose others by data.primary.split, "
                "data.primary.validation_split and data.primary.test_split"
            )
    for name in set(known).difference(*used.values()):
        if name.lower() in ("train", "test", *VALIDATION) and not name.islower():
            warn_once(f"{config.path}: the split {name} is not known by its name; data.primary.split can name it")
    return train, own


# ------------------------------------------------------------------------------------------------ classes


def chosen(listing: Listing, config: SourceConfig, *, labelled: bool) -> tuple[Rows, Labels | None, list[str]]:
    """The rows that pass the class filters, their labels counted from 0, and the remaining classes."""
    if not labelled:
        return np.arange(listing.count), None, []
    labels, where = listing.labels, listing.where
    if labels is None:
        raise InputError(f"{where}: no label column was found; name it by label:, or use objective: masked_lm")
    if not listing.classes:
        raise InputError(
            f"{where}: no example has a label (empty cells and negative numbers mean: none); name another column by label:"
        )
    _check_names(listing, config)
    classes = [name for name in (config.classes or listing.usual or listing.classes) if name not in config.exclude]
    if not classes:
        raise InputError(f"{where}: exclude: leaves none of its classes; leave fewer of them out")
    return *_numbered(listing, labels, classes), classes


def _numbered(listing: Listing, labels: Labels, classes: list[str]) -> tuple[Rows, Labels]:
    """The rows of a listing that have one of these classes, and their numbers."""
    rows = np.arange(listing.count)
    if listing.multi_label:
        positions = {name: position for position, name in enumerate(listing.classes)}
        return rows, labels[:, [positions[name] for name in classes]]
    without = int((labels < 0).sum())
    if without:
        warn_once(f"{listing.where}: {without} of {listing.count} examples have no label and are left out")
    numbers = renumber(listing, labels, classes)
    return rows[numbers >= 0], numbers[numbers >= 0]


def _check_names(listing: Listing, config: SourceConfig) -> None:
    known, wanted = set(listing.classes), config.classes or []
    largest = max((int(name) for name in known if name.isdecimal() and len(name) < 19), default=-1)
    for name in [*wanted, *config.exclude]:
        if wanted.count(name) > 1:
            raise InputError(f"{listing.where}: classes: names {name!r} twice; name it once")
        # Whole numbers below the largest were once classes even where no example had them.
        absent = name not in wanted and name.isdecimal() and len(name) < 19 and int(name) <= largest
        if name not in known and not absent:
            near = get_close_matches(name, listing.classes, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            names = ", ".join(listing.classes[:20]) + (", ..." if len(listing.classes) > 20 else "")
            raise InputError(f"{listing.where}: there is no class {name!r}{hint} Its classes are {names}")


def _same_classes(listing: Listing, train: Listing, classes: list[str], config: PrimaryConfig) -> Part:
    """The rows of another split with the class numbers of the training split."""
    labels = listing.labels
    if labels is None:
        raise InputError(f"{listing.where}: no label column was found; name it by label:")
    unseen = _unseen(listing, train, classes, config)
    missing = [name for name in classes if name not in listing.classes]
    if listing.multi_label and missing:
        raise InputError(
            f"{listing.where}: has no label {', '.join(missing)}, which the training split has; its labels are "
            f"{', '.join(listing.classes)}"
        )
    return Part(listing, *_numbered(listing, labels, classes), unseen)


def _unseen(listing: Listing, train: Listing, classes: list[str], config: PrimaryConfig) -> dict[str, int]:
    """How many rows have a class that the training split lacks, by class; refused unless the configuration allows it.

    Classes that the configuration leaves out are none of these. A name that differs from a kept one by case or blanks is
    always one: it is hardly meant to be left out.
    """
    assert listing.labels is not None
    if listing.multi_label:
        counts = listing.labels.sum(0)
    else:
        counts = np.bincount(listing.labels[listing.labels >= 0], minlength=len(listing.classes))
    left_out = {*train.classes, *config.exclude}
    spellings = {name.casefold().strip(): name for name in classes}
    unseen = {
        name: int(count)
        for name, count in zip(listing.classes, counts, strict=True)
        if count and name not in left_out and (config.classes is None or name.casefold().strip() in spellings)
    }
    if not unseen:
        return {}
    words = []
    for name, count in list(unseen.items())[:5]:
        near = spellings.get(name.casefold().strip()) or next(iter(get_close_matches(name, classes, n=1)), None)
        words.append(f"{name!r} ({count}{f'; did you mean {near!r}?' if near else ''})")
    more = f" and {len(unseen) - 5} more" if len(unseen) > 5 else ""
    what = (
        f"{sum(unseen.values())} labels"
        if listing.multi_label
        else f"{sum(unseen.values())} of {listing.count} examples"
    )
    found = f"{listing.where}: {what} are of classes that the training split lacks: {', '.join(words)}{more}"
    if config.unseen == "refuse":
        raise InputError(
            f"{found}; correct their labels, name the classes to keep by data.primary.classes, or leave these examples out by "
            "data.primary.unseen: drop"
        )
    warn_once(f"{found}; they are left out")
    return unseen


def _check_classes(train: Part, classes: list[str], where: str) -> None:
    assert train.labels is not None
    if train.labels.ndim == 2:
        positive = train.labels.sum(0)
        for name, count in zip(classes, positive.tolist(), strict=True):
            if count in (0, len(train.labels)):
                what = "no positive" if count == 0 else "only positive"
                raise InputError(
                    f"{where}: the primary training set has {what} examples of {name}, so there is nothing to learn; raise "
                    "data.primary.train, or leave the label out with data.primary.exclude"
                )
        return
    counts = Counter(train.labels.tolist())
    if len(counts) < 2:
        only = f"one class only ({classes[next(iter(counts))]!r})" if counts else "no labelled example"
        raise InputError(
            f"{where}: the primary training set has {only}, so there is nothing to learn; give at least two "
            "classes, or check data.primary.classes and the label column"
        )
    missing = [name for number, name in enumerate(classes) if number not in counts]
    if missing:
        raise InputError(
            f"{where}: the primary training set has no example of {', '.join(missing[:10])}; raise data.primary.train, or leave "
            "the classes out with data.primary.exclude"
        )


def _check_groups(parts: Mapping[str, Part], where: str) -> None:
    """No group may be in two parts, also where the source has splits of its own."""
    groups = {
        name: {part.listing.groups[row] for row in part.rows}
        for name, part in parts.items()
        if part.listing.groups is not None
    }
    for first, second in combinations(groups, 2):
        both = groups[first] & groups[second]
        if both:
            raise InputError(
                f"{where}: {len(both)} groups are in {first} and in {second} ({min(both)!r} for one); give the data without "
                "these splits, so that they are split by group, or choose another data.primary.group"
            )


def _check_alike(listing: Listing, train: Listing) -> None:
    """Another split has to hold what the training split does."""
    kinds = [
        f"{found.kind}s with {'several labels' if found.multi_label else 'one label'} each"
        for found in (listing, train)
    ]
    if listing.labels is not None and kinds[0] != kinds[1]:
        raise InputError(f"{listing.where}: holds {kinds[0]}, but {train.where} {kinds[1]}; give splits that are alike")


# ------------------------------------------------------------------------------------------------ auxiliary sources


def _auxiliary_part(config: AuxiliaryConfig, source: Source, name: str, seed: int) -> tuple[Part, list[str]]:
    objective = find_objective(config.objective, f"data.auxiliary.{name}.objective")
    split = config.split or ("train" if "train" in source.splits else None)
    listing = open_listing(config, source, split)
    if listing.kind not in objective.kinds:
        needed = " or ".join(f"{kind}s" for kind in objective.kinds)
        raise InputError(
            f"data.auxiliary.{name}: {config.objective} needs {needed}, but {config.path} holds {listing.kind}s"
        )
    rows, labels, classes = chosen(listing, config, labelled=objective.labelled)
    if not len(rows):
        raise InputError(
            f"data.auxiliary.{name}: no example has a label of {', '.join(classes)}; check label: and classes:"
        )
    size = amount(config.examples, len(rows), f"data.auxiliary.{name}.examples")
    taken = np.sort(stratified(np.arange(len(rows)), labels, size, seed)[0])
    return Part(listing, rows, labels).take(taken), classes


def with_noise(labels: Labels | None, classes: int, noise: LabelNoise, seed: int, name: str) -> Labels:
    """Replace exactly a share of the labels, drawn by the seed, by a random class or by the next one."""
    if labels is None or labels.ndim != 1:
        raise InputError(f"data.auxiliary.{name}.label_noise: needs examples with one class each; leave it out here")
    generator, labels = np.random.default_rng(seed), labels.copy()
    touched = generator.permutation(len(labels))[: round(noise.share * len(labels))]
    random = generator.integers(classes, size=len(touched))
    labels[touched] = random if noise.kind == "random" else (labels[touched] + 1) % classes
    return labels
