"""Which rows of which source are in which part of the data, before anything is decoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from attittud_lab.config.data import AuxiliaryConfig, DataConfig, PrimaryConfig
from attittud_lab.data.listing import Kind, Listing, Raw, Rows, chosen, digest
from attittud_lab.data.source import open_listing, open_source
from attittud_lab.data.splits import amount, stratified
from attittud_lab.data.tasks import mix
from attittud_lab.errors import InputError

Labels = npt.NDArray[np.int64]

VALIDATION = ("validation", "val", "valid", "dev")
"""What sources call their own validation split."""


@dataclass
class Part:
    """Some rows of a listing, not decoded yet."""

    listing: Listing
    rows: Rows
    labels: Labels | None

    def raws(self) -> Sequence[Raw]:
        return self.listing.fetch(self.rows)


@dataclass
class Parts:
    """Everything that a job reads."""

    kind: Kind
    primary: dict[str, Part]
    """By train, validation and test."""
    classes: list[str]
    auxiliary: dict[str, tuple[Part, list[str]]]
    """Of each source its rows and classes."""
    left_out: dict[str, int]
    """Examples of each auxiliary source that the primary task has too."""


def read_parts(config: DataConfig, seed: int) -> Parts:
    """Split the primary data and leave their examples out of the others; refuses what cannot be trained."""
    parts, classes = _primary_parts(config.primary, seed)
    kind = parts["train"].listing.kind
    if config.kind not in ("auto", kind):
        raise InputError(f"data.kind is {config.kind}, but {config.primary.path} holds {kind}s")
    seen = {name: {digest(raw) for raw in part.raws()} for name, part in parts.items()}
    others: dict[str, tuple[Part, list[str]]] = {}
    left_out: dict[str, int] = {}
    for name, source in config.auxiliary.items():
        part, names = _auxiliary_part(source, name, mix(seed, name))
        if part.listing.kind != kind:
            raise InputError(f"data.auxiliary.{name}: holds {part.listing.kind}s, but the primary source holds {kind}s")
        # A labelled example that the primary task has is of no further use; plain text may be used again for language
        # modelling, but never that of validation and test.
        forbidden = seen["validation"] | seen["test"] | (seen["train"] if source.objective == "classify" else set())
        kept = np.array([digest(raw) not in forbidden for raw in part.raws()], dtype=bool)
        left_out[name] = int((~kept).sum())
        part = Part(part.listing, part.rows[kept], None if part.labels is None else part.labels[kept])
        if not len(part.rows):
            raise InputError(
                f"data.auxiliary.{name}: every example of it is also in the primary data; name other data, or "
                "lower data.primary.train so that some is left"
            )
        others[name] = (part, names)
    return Parts(kind, parts, classes, others, left_out)


def _primary_parts(config: PrimaryConfig, seed: int) -> tuple[dict[str, Part], list[str]]:
    source = open_source(config)
    train_split, own = _own_splits(config, source.splits)
    listing = open_listing(config, source, train_split)
    rows, labels, classes = chosen(listing, config, labelled=True)
    assert labels is not None
    _check_classes(Part(listing, rows, labels), classes, config.path)
    total = len(rows)
    parts: dict[str, Part] = {}
    for name in ("test", "validation"):
        wanted = config.test if name == "test" else config.validation
        split = own[name]
        if wanted == 0 and isinstance(wanted, int):
            purpose = "measures the result" if name == "test" else "chooses the model and judges for strategy auto"
            raise InputError(
                f"data.primary.{name}: is 0, but that part {purpose}; give a count or a fraction, such as 0.2"
            )
        if split is not None and split != train_split:
            other = open_listing(config, source, split)
            _check_alike(other, listing)
            found, found_labels = _same_classes(other, classes)
            # The default fraction is meant for data without a split of their own.
            size = amount(wanted, len(found), f"data.primary.{name}") if isinstance(wanted, int) else len(found)
            taken, _ = stratified(np.arange(len(found)), found_labels, size, mix(seed, name))
            taken = np.sort(taken)
            parts[name] = Part(other, found[taken], found_labels[taken])
        else:
            if wanted is None:
                raise InputError(
                    f"data.primary.{name}: null means the source's own split, but it has none; give a count or a fraction, such "
                    "as 0.2"
                )
            size = amount(wanted, len(rows), f"data.primary.{name}", total)
            groups = (
                None if listing.groups is None else np.unique(listing.groups, return_inverse=True)[1].reshape(-1)[rows]
            )
            taken, left = stratified(np.arange(len(rows)), labels, size, mix(seed, name), groups)
            taken, left = np.sort(taken), np.sort(left)
            parts[name] = Part(listing, rows[taken], labels[taken])
            rows, labels = rows[left], labels[left]
    taken, _ = stratified(
        np.arange(len(rows)), labels, amount(config.train, len(rows), "data.primary.train", total), mix(seed, "train")
    )
    taken = np.sort(taken)
    parts["train"] = Part(listing, rows[taken], labels[taken])
    for name, part in parts.items():
        if not len(part.rows):
            whole = "" if part.listing.groups is None else "; groups stay whole, and none is small enough"
            raise InputError(
                f"data.primary: no example is left for {name}{whole}; lower the other parts, or give more data"
            )
    _check_classes(parts["train"], classes, config.path)
    _check_groups(parts, config.path)
    return parts, classes


def _own_splits(config: PrimaryConfig, known: list[str]) -> tuple[str | None, dict[str, str | None]]:
    """What to train on, and the source's own splits for validation and test: no example may be in two of them.

    One that is both trained on and named for another part is divided; all that is not said goes by the usual names.
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
    return train, own


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


def _same_classes(listing: Listing, classes: list[str]) -> tuple[Rows, Labels]:
    """The rows of another split with the class numbers of the training split."""
    if listing.labels is None:
        raise InputError(f"{listing.where}: no label column was found; name it by label:")
    if listing.multi_label:
        missing = [name for name in classes if name not in listing.classes]
        if missing:
            known = ", ".join(listing.classes)
            raise InputError(
                f"{listing.where}: has no label {', '.join(missing)}, which the training split has; its labels are {known}"
            )
        return np.arange(listing.count), listing.labels[:, [listing.classes.index(name) for name in classes]]
    new = np.array([classes.index(name) if name in classes else -1 for name in listing.classes] + [-1])
    numbers = new[listing.labels]
    kept = numbers >= 0
    return np.flatnonzero(kept), numbers[kept]


def _auxiliary_part(config: AuxiliaryConfig, name: str, seed: int) -> tuple[Part, list[str]]:
    source = open_source(config)
    split = config.split or ("train" if "train" in source.splits else None)
    listing = open_listing(config, source, split)
    if config.objective == "masked_lm" and listing.kind != "text":
        raise InputError(f"data.auxiliary.{name}: masked_lm needs texts, but {config.path} holds {listing.kind}s")
    rows, labels, classes = chosen(listing, config, labelled=config.objective == "classify")
    if not len(rows):
        raise InputError(
            f"data.auxiliary.{name}: no example has a label of {', '.join(classes)}; check label: and classes:"
        )
    size = amount(config.examples, len(rows), f"data.auxiliary.{name}.examples")
    taken = np.sort(stratified(np.arange(len(rows)), labels, size, seed)[0])
    return Part(listing, rows[taken], None if labels is None else labels[taken]), classes
