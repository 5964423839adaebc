"""Divide the rows of all sources into training, validation, test and auxiliary parts, before
anything is decoded. No auxiliary part has an example that the primary data hold out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain

import numpy as np
import numpy.typing as npt

from attittud_lab.config.options import meant
from attittud_lab.config.schema import AuxiliaryConfig, DataConfig, LabelNoise, TableConfig
from attittud_lab.data.part import Part, select_rows, warn_of_twins
from attittud_lab.data.primary import primary_parts
from attittud_lab.data.source import (
    Labels,
    Source,
    first_of,
    open_listing,
    open_source,
    warn_once,
)
from attittud_lab.data.splits import Digests, amount, check_copies, digests
from attittud_lab.data.tasks import find_objective, mix
from attittud_lab.errors import InputError, listed, loose, short, spellings


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
    path = config.primary.path
    table = None
    if config.kind == "table":
        table = config.table
    primary = primary_parts(config, opened(path), seed, table, pooled=pooled)
    train = primary["train"]
    kind = train.listing.kind
    if config.kind not in ("auto", kind):
        problem = f"data.kind is {config.kind}, but {path} holds {kind}s"
        raise InputError(f"{problem}; set data.kind: {kind} or auto")
    digests_of = {name: digests(part.listing, part.rows) for name, part in primary.items()}
    _warn_of_blank(np.concatenate([*digests_of.values()]), path)
    copied = check_copies(digests_of, path, config.primary.overlap)
    used = [digests_of["train"], digests_of["validation"]]
    if pooled and config.primary.overlap != "allow":
        _warn_of_copies(used, primary, path)
    auxiliary = {}
    for name, source in config.auxiliary.items():
        culprit = f"data.auxiliary.{name}"
        group = config.primary.group
        part = _select_examples(source, opened(source.path), culprit, mix(seed, name), table, group)
        _check_kind(part, culprit, train)
        _check_one_class(part, culprit, train)
        part, part_digests = _without_primary(part, culprit, primary, digests_of, pooled=pooled)
        _warn_of_blank(part_digests, culprit)
        used.append(part_digests)
        _warn_of_spelling(part, culprit, train)
        warn_of_twins(part, culprit)
        if source.label_noise is not None:
            noise_seed = mix(seed, name, "noise")
            part.labels = _noisy_labels(part, source.label_noise, noise_seed, culprit)
        auxiliary[name] = part
    if table is not None:
        _check_excluded(table, [*primary.values(), *auxiliary.values()])
    return Parts(primary, auxiliary, copied, used)


def _warn_of_blank(of_texts: Digests, where: str) -> None:
    """Warn about texts without a word, whose digests are empty: they train all the same, and teach
    that nothing means some class. `check_texts` refuses a source that has only such texts.
    """
    count = int((of_texts == b"").sum())
    if 0 < count < len(of_texts):
        share = f"{count} of its {len(of_texts)} texts are empty"
        advice = (
            "fill them or remove their rows, or name another column with input: (init: --input)"
        )
        warn_once(f"{where}: {share}; {advice}")


def _warn_of_copies(pooled: Sequence[Digests], primary: Mapping[str, Part], where: str) -> None:
    """Warn about pooled examples that may be held out while copies of them are trained on.

    `pooled`: the digests of the training and of the validation examples, in this order.
    """
    all_digests = np.concatenate(pooled).tolist()
    groups = [*(primary["train"].groups or ()), *(primary["validation"].groups or ())]
    # Copies in one group stay together, so a group counts once; without groups each example is one.
    # A digest of k groups has k - 1 copies. Blank texts have no digest.
    in_groups = set(zip(all_digests, groups or range(len(all_digests)), strict=True))
    groups_of_digest = Counter(digest for digest, _ in in_groups if digest)
    count = groups_of_digest.total() - len(groups_of_digest)
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


def _select_examples(
    config: AuxiliaryConfig,
    source: Source,
    culprit: str,
    seed: int,
    table: TableConfig | None,
    group: str | None,
) -> Part:
    """Return the examples of an auxiliary source that its configuration asks for, drawn by the
    seed. A source of a kind that its objective cannot learn from is refused.
    """
    objective = find_objective(config.objective, f"{culprit}.objective")
    split = config.split or first_of(("train",), source.splits)
    listing = open_listing(config, source, split, table, group)
    if listing.kind not in objective.kinds:
        needed = " or ".join(f"{kind}s" for kind in objective.kinds)
        problem = f"{culprit}: {config.objective} needs {needed}"
        raise InputError(f"{problem}, but {config.path} holds {listing.kind}s")
    part = select_rows(listing, config, labelled=objective.labelled)
    if not len(part.rows):
        problem = f"{culprit}: no example has a label of {listed(part.classes)}"
        raise InputError(f"{problem}; check label: and classes:")
    size = amount(config.examples, len(part.rows), f"{culprit}.examples")
    drawn, _ = part.drawn(size, seed)
    return drawn


def _check_kind(part: Part, culprit: str, train: Part) -> None:
    """Refuse auxiliary examples of another kind, or a table without the primary table's features."""
    kind = train.listing.kind
    if part.listing.kind != kind:
        problem = f"{culprit}: holds {part.listing.kind}s"
        raise InputError(f"{problem}, but the primary source holds {kind}s")
    if not train.listing.tables:
        return
    primary_columns = set(train.listing.tables[0].column_names)
    differing = primary_columns.symmetric_difference(part.listing.tables[0].column_names)
    if differing:
        problem = f"{culprit}: has other features than the primary source"
        columns = f"only one of them has {listed(sorted(differing))}"
        advice = "list them in data.table.exclude, or rename columns that mean the same"
        raise InputError(f"{problem}; {columns}; {advice}")


def _check_one_class(part: Part, culprit: str, train: Part) -> None:
    """Refuse an auxiliary source in which every example has the same class, unless this is a
    primary class.
    """
    if part.labels is None or part.labels.ndim > 1 or len(np.unique(part.labels)) > 1:
        return
    only = part.classes[part.labels[0]]
    problem = f"{culprit}: all its {len(part.rows)} examples have the class {short(only)!r}"
    if only not in train.classes:
        raise InputError(f"{problem}, so there is nothing to learn; check its label:")
    warn_once(f"{problem}; they can only help as more primary examples")


def _warn_of_spelling(part: Part, culprit: str, train: Part) -> None:
    """Warn if a class is spelt in another way than in the primary data: then it counts as another
    class.
    """
    spelling = spellings(train.classes)
    for name in part.classes:
        other = spelling.get(loose(name), name)
        if other != name and name not in train.classes:
            problem = (
                f"{culprit}: its class {short(name)!r} is not the primary class {short(other)!r}"
            )
            advice = "spell them alike if they mean the same"
            warn_once(f"{problem}, because case and blanks count; {advice}")


def _without_primary(
    part: Part,
    culprit: str,
    primary: Mapping[str, Part],
    digests_of: Mapping[str, Digests],
    *,
    pooled: bool,
) -> tuple[Part, Digests]:
    """Leave out the examples that the primary task has, and those whose groups it holds out.

    Returns the other examples, and their digests. A labelled example that the primary task has adds
    nothing. Plain text may be used again for language modelling, but never a text that is held out.
    Other examples of a patient who is held out would show what the model is tested on.
    """
    if part.groups is None and primary["train"].groups is not None:
        reason = "has no column for data.primary.group"
        warn_once(f"{culprit}: {reason}, so examples of held-out groups are not removed")
    held_out = ["validation", "test"]
    if pooled:
        held_out.append("train")
    without_copies_of = held_out
    if part.labels is not None:
        without_copies_of = ["validation", "test", "train"]
    part_digests = digests(part.listing, part.rows)
    primary_digests = np.concatenate([digests_of[name] for name in without_copies_of])
    is_copy = np.isin(part_digests, primary_digests) & (part_digests != b"")
    in_held_out_group = ~is_copy & _of_groups(part, [primary[name] for name in held_out])
    remaining = ~is_copy & ~in_held_out_group
    left_out = int(is_copy.sum())
    left_out_groups = int(in_held_out_group.sum())
    problem = (
        f"{culprit}: of its {len(remaining)} examples, {left_out} are copies of primary examples"
    )
    if left_out_groups:
        problem += f" and {left_out_groups} others belong to held-out groups"
    if not remaining.any():
        strategy = ""
        if pooled:
            strategy = "a strategy that holds out fewer groups (such as strategy=auto), "
        advice = f"name other data, {strategy}or lower data.primary.train"
        raise InputError(f"{problem}, and no example is left; {advice}")
    if left_out or left_out_groups:
        warn_once(f"{problem}; they are left out")
    others = part.take(np.flatnonzero(remaining))
    others = replace(others, left_out=left_out, left_out_groups=left_out_groups)
    return others, part_digests[remaining]


def _of_groups(part: Part, held_out: Sequence[Part]) -> npt.NDArray[np.bool_]:
    """Return which rows of a part are in a group of `held_out`; none if one of the two sources has
    no groups.
    """
    names = set(chain.from_iterable(other.groups or () for other in held_out))
    return np.array([group in names for group in part.groups or [""] * len(part.rows)], dtype=bool)


def _noisy_labels(part: Part, noise: LabelNoise, seed: int, culprit: str) -> Labels:
    """Return the labels of a part with wrong ones among them, as `noise` says.

    Exactly a share of the labels, drawn by the seed, becomes a random class or the next class.
    Refused for parts without labels or with several labels at once.
    """
    if part.labels is None or part.labels.ndim != 1:
        problem = f"{culprit}.label_noise: needs examples with one class each"
        raise InputError(f"{problem}; leave it out here")
    generator = np.random.default_rng(seed)
    labels = part.labels.copy()
    replaced = generator.permutation(len(labels))[: round(noise.share * len(labels))]
    if noise.kind == "random":
        labels[replaced] = generator.integers(len(part.classes), size=len(replaced))
    else:
        labels[replaced] = (labels[replaced] + 1) % len(part.classes)
    return labels
