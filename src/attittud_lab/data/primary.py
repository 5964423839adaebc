"""Divide the primary data into training, validation and test examples, and refuse a division that
cannot be learned from or that leaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np

from attittud_lab.config.options import meant
from attittud_lab.config.schema import DataConfig, PrimaryConfig, TableConfig
from attittud_lab.data.part import Part, check_labels, keep_classes, select_rows, warn_of_twins
from attittud_lab.data.source import Labels, Listing, Source, first_of, open_listing, warn_once
from attittud_lab.data.splits import amount
from attittud_lab.data.tasks import mix
from attittud_lab.errors import InputError, counted, listed, loose, spellings

VALIDATION = ("validation", "val", "valid", "dev")
"""Names that sources give their own validation split."""
ENOUGH = 0.8
"""A smaller share of the training examples that were asked for is worth a warning; whole groups
rarely fit exactly.
"""


def primary_parts(
    config: DataConfig, source: Source, seed: int, table: TableConfig | None, *, pooled: bool
) -> dict[str, Part]:
    """Return the parts test, validation and train; no example is in two of them.

    The test set and the validation set are the source's own splits, or drawn from the split for
    training, in this order. `table` names the columns of a table of features. With `pooled`, every
    training example will be held out once, so test and validation may be empty.

    Refused are parts without examples, classes without training examples, and groups in two parts.
    """
    primary = config.primary
    if not pooled:
        check_held_out(primary)
    test_seed = seed
    if config.test_seed is not None:
        test_seed = config.test_seed
    train_split, splits = _own_splits(primary, source.splits)
    # The rows that no part has taken yet; what is left in the end is for training.
    remaining = select_rows(open_listing(primary, source, train_split, table), primary)
    _check_classes(remaining, primary.path, "give examples of every class")
    warn_of_twins(remaining, primary.path)
    total = len(remaining.rows)
    parts: dict[str, Part] = {}
    for name, part_seed in (("test", test_seed), ("validation", seed)):
        path = f"data.primary.{name}"
        count = getattr(primary, name)
        split = splits[name]
        if count == 0 and pooled:
            parts[name] = remaining.take(np.arange(0))
        elif split not in (None, train_split):  # the source has a split for this part
            part = _own_part(primary, open_listing(primary, source, split, table), remaining)
            size = len(part.rows)
            if isinstance(count, int):  # the default fraction is meant for data without splits
                size = amount(count, size, path)
            parts[name], _ = part.drawn(size, mix(part_seed, name))
        elif count is None:
            reason = "null means the source's own split, but it has none"
            raise InputError(f"{path}: {reason}; give a count or a fraction, such as 0.2")
        else:
            size = amount(count, len(remaining.rows), path, total)
            parts[name], remaining = remaining.drawn(size, mix(part_seed, name), remaining.groups)
    parts["train"] = _training_part(primary, remaining, total, seed, pooled=pooled)
    for name, part in parts.items():
        may_be_empty = pooled and getattr(primary, name) == 0
        if not len(part.rows) and not may_be_empty:
            advice = f"give more data, or {_larger(primary, name)}"
            if part.groups is not None:
                advice += " (groups stay whole, and none is small enough)"
            raise InputError(f"data.primary: no example is left for {name}; {advice}")
    more = f"give more examples, {_larger(primary, 'train')}"
    _check_classes(parts["train"], primary.path, more)
    _check_groups(parts, primary.path)
    return parts


def _larger(config: PrimaryConfig, name: str) -> str:
    """Return what to change for more examples in a part. A training set of null has all that the
    other parts leave, so it cannot be raised.
    """
    if name == "train" and config.train is None:
        return "lower data.primary.validation and data.primary.test (0 with strategy portfolio)"
    return f"raise data.primary.{name}, lower the others"


def _training_part(
    config: PrimaryConfig, remaining: Part, total: int, seed: int, *, pooled: bool
) -> Part:
    """Draw the training examples from those that test and validation leave of `total`; warns if
    whole groups make them far fewer than asked.
    """
    available = len(remaining.rows)
    if isinstance(config.train, float):
        # Three fractions that add up to 1 may be rounded to one example too many.
        available += 1
    size = min(amount(config.train, available, "data.primary.train", total), len(remaining.rows))
    groups = None
    if pooled:
        # Each pooled row is held out once, so auxiliary data may not have others of its group.
        # Those would be lost, so whole groups are drawn.
        groups = remaining.groups
    train, _ = remaining.drawn(size, mix(seed, "train"), groups)
    if 0 < len(train.rows) < ENOUGH * size:
        count = counted(len(set(train.groups or ())), "group")
        have = f"{counted(len(train.rows), 'example')} of {count}"
        warn_once(f"data.primary.train: {have} instead of {size}, since groups stay whole")
    return train


def check_held_out(config: PrimaryConfig) -> None:
    """Refuse a test or validation set of 0 examples, which only a portfolio can do without."""
    for name in ("test", "validation"):
        if getattr(config, name) == 0:
            problem = f"data.primary.{name}: is 0, which only strategy portfolio can do without"
            raise InputError(f"{problem}; give a count or a fraction, such as 0.2")


def _own_splits(
    config: PrimaryConfig, available: list[str]
) -> tuple[str | None, dict[str, str | None]]:
    """Return the split for training, and the splits for validation and test by part; None where
    there is none. No example may be in two of them.

    A split that is named for training and for another part is divided. Splits that the
    configuration does not name are found by their usual names. Without a split for training, all
    splits that are not held out train.
    """
    train = config.split or first_of(("train",), available)
    named = {*(train or "").split("+"), config.validation_split, config.test_split}
    unnamed = [name for name in available if name not in named]
    splits = {
        "validation": config.validation_split or first_of(VALIDATION, unnamed),
        "test": config.test_split or first_of(("test",), unnamed),
    }
    held_out = {}  # the source's splits in each part that is not drawn from the training split
    for name, split in splits.items():
        if split is not None and split != train:
            held_out[name] = set(split.split("+"))
    if train is None and available and held_out:
        not_for_training = set[str]().union(*held_out.values())
        train = "+".join(name for name in available if name not in not_for_training)
        if not train:
            problem = f"{config.path}: has {' and '.join(available)}, but nothing to train on"
            advice = "set data.primary.split to the split that should be divided"
            raise InputError(f"{problem}; {advice}")
    splits_of_parts = held_out
    if train:
        splits_of_parts = {"train": set(train.split("+")), **held_out}
    for first, second in combinations(splits_of_parts, 2):
        both = splits_of_parts[first] & splits_of_parts[second]
        if both:
            problem = f"{config.path}: the split {min(both)} is in {first} and in {second}"
            settings = (
                "data.primary.split, data.primary.validation_split and data.primary.test_split"
            )
            raise InputError(f"{problem}; choose others with {settings}")
    return train, splits


def _own_part(config: PrimaryConfig, listing: Listing, train: Part) -> Part:
    """Return the rows of another split than `train`'s, with the class numbers of the training split.

    Refused are other kinds of examples, and labels that this split lacks. Rows of classes that the
    training split lacks are left out or refused, as the configuration says.
    """
    labels = check_labels(listing)
    if (listing.kind, listing.multi_label) != (train.listing.kind, train.listing.multi_label):
        problem = f"{listing.where} and {train.listing.where}: hold different kinds of examples"
        raise InputError(f"{problem}; give splits of the same kind")
    unseen = _unseen(listing, labels, train, config)
    missing = [name for name in train.classes if name not in listing.classes]
    if listing.multi_label and missing:
        problem = f"{listing.where}: has no label {listed(missing)}, which the training split has"
        raise InputError(f"{problem}; its labels are {listed(listing.classes)}")
    return replace(keep_classes(listing, train.classes), unseen=unseen)


def _unseen(listing: Listing, labels: Labels, train: Part, config: PrimaryConfig) -> dict[str, int]:
    """Count the rows of classes that the training split lacks, by class. They are refused, or left
    out with a warning if the configuration says so.

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
    share = f"{sum(unseen.values())} of {listing.count} examples"
    if listing.multi_label:
        share = f"{sum(unseen.values())} labels"
    problem = f"{listing.where}: {share} belong to classes that the training split lacks"
    problem += f": {', '.join(words[:5])}"
    if config.unseen == "refuse":
        advice = "correct their labels, name the classes to keep with data.primary.classes"
        drop = "leave these examples out with data.primary.unseen: drop"
        raise InputError(f"{problem}; {advice}, or {drop}")
    warn_once(f"{problem}; they are left out")
    return unseen


def _check_classes(train: Part, where: str, more: str) -> None:
    """Refuse training examples from which some class cannot be learned; `more` says how to get
    more examples of it.

    Every class needs an example, and there must be two classes. With several labels at once, each
    label needs an example that has it and one that does not.
    """
    assert train.labels is not None
    culprit = f"{where}: the primary training set has"
    labels = train.labels
    more_or_fewer_classes = f"{more}, or leave the class out with data.primary.exclude"
    if labels.ndim == 2:
        for name, count in zip(train.classes, labels.sum(0).tolist(), strict=True):
            if count in (0, len(labels)):
                share = "only"
                if count == 0:
                    share = "no"
                problem = f"{culprit} {share} positive examples of {name}"
                nothing = f"{problem}, so there is nothing to learn"
                raise InputError(f"{nothing}; {more_or_fewer_classes}")
        return
    counts = np.bincount(labels, minlength=len(train.classes))
    missing = [name for name, count in zip(train.classes, counts, strict=True) if not count]
    if len(train.classes) - len(missing) < 2:
        raise _too_few_classes(train.classes, labels, missing, culprit)
    if missing:
        advice = more_or_fewer_classes
        if counts.max() < 2:
            # Any part that is held out takes the only example of some class.
            advice = "give more examples of every class, enough for all parts"
        raise InputError(f"{culprit} no example of {listed(missing, 10)}; {advice}")


def _too_few_classes(
    classes: list[str], labels: Labels, missing: list[str], culprit: str
) -> InputError:
    """Return the error for training examples of one class or none; `missing` are the classes
    without examples.
    """
    only = "no labelled example"
    if len(labels):
        only = f"only one class ({classes[labels[0]]!r})"
    advice = "give at least two classes, or check data.primary.classes and the label column"
    if len(labels) and missing:
        smaller = "smaller data.primary.validation and data.primary.test"
        advice = f"give more examples of {listed(missing, 10)}, or {smaller}"
    return InputError(f"{culprit} {only}, so there is nothing to learn; {advice}")


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
