"""Turn the data section of a configuration into tensors: decoded images, token numbers of texts,
features of tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from attittud_lab.config.schema import DataConfig, Kind
from attittud_lab.data.features import Features, taken
from attittud_lab.data.images import Pixels, decode_all, look_at, white_of
from attittud_lab.data.parts import Part, Parts, read_parts
from attittud_lab.data.source import Raw
from attittud_lab.data.splits import packed, words_of
from attittud_lab.data.tasks import OBJECTIVES, Examples, Task, can_share, objective_for, sharing
from attittud_lab.data.texts import Reader, check_texts
from attittud_lab.errors import InputError, listed

DIGESTS = "digests"
"""The entry of a record with digests of the examples for training and validation; a comparison
writes them for one run alone.
"""
PRIMARY = "primary"
WHITE = "white"
"""The entry of a record with the value of a white pixel, by source, where grey pictures have more
than 8 bits.
"""


@dataclass
class Prepared:
    """All data of a job as tensors in main memory, with a record of the rows they come from."""

    kind: Kind
    primary: Task
    validation: Examples
    test: Examples
    auxiliary: dict[str, Task]
    record: dict[str, Any] = field(default_factory=dict)
    groups: list[str] | None = None
    """The groups of the primary training examples, where they are pooled and the source has any."""
    names: list[str] | None = None
    """What a person calls the primary training examples (files, or rows of the source), where they
    are pooled.
    """
    parts: Parts | None = None
    """Where the examples come from, for features that read them as they are."""

    def inputs(self, name: str) -> Any:
        """Return the examples as features read them: texts, images as the source has them, or
        columns of a table.

        `name` is "primary" (with pooled data the validation examples come last) or an auxiliary
        source.
        """
        if name == PRIMARY:
            return self._inputs(PRIMARY, self.primary.examples, ["train", "validation"])
        return self._inputs(name, self.auxiliary[name].examples)

    def test_inputs(self) -> Any:
        """Return the test examples as features read them."""
        return self._inputs(PRIMARY, self.test, ["test"])

    def _inputs(self, source: str, examples: Examples, splits: Sequence[str] = ()) -> Any:
        """Return examples of a source; `splits` are those of the primary source."""
        if self.kind == "table":
            return examples.inputs.cpu().numpy()
        if source in self.record.get(WHITE, {}):
            # Only the decoded pictures know how bright their source is.
            return list(examples.inputs.cpu().numpy())
        assert self.parts is not None
        parts = [self.parts.primary[split] for split in splits]
        if not splits:
            parts = [self.parts.auxiliary[source]]
        raws = list(chain.from_iterable(part.raws() for part in parts))
        if len(raws) > len(examples):  # the data are not pooled
            raws = raws[: len(examples)]
        return [str(raw) for raw in raws] if self.kind == "text" else raws

    @property
    def all_examples(self) -> list[Examples]:
        """All sets of examples that are not empty."""
        tasks = (task.examples for task in self.auxiliary.values())
        return [
            part
            for part in (self.primary.examples, self.validation, self.test, *tasks)
            if len(part)
        ]

    @property
    def bytes(self) -> int:
        return sum(part.inputs.nbytes for part in self.all_examples)


def split_seed(config: DataConfig, seed: int) -> int:
    """The seed that decides the splits of a run; `seed` is the run's own."""
    first = seed if config.seed is None else config.seed
    return first if config.subsets is None else first + seed % config.subsets


def prepare(
    config: DataConfig,
    seed: int,
    reader: Reader | None = None,
    others: Sequence[Prepared] = (),
    *,
    pooled: bool = False,
) -> Prepared:
    """Read everything. `seed` is the run's seed, for splits that follow it (data.seed: null,
    data.subsets).

    Decoded auxiliary images are reused from `others`, which are other splits of the same data.
    `pooled`: training and validation examples become one set, which will be divided into folds.
    """
    seed = split_seed(config, seed)
    return encode(
        config, read_parts(config, seed, pooled=pooled), seed, reader, others, pooled=pooled
    )


def encode(
    config: DataConfig,
    parts: Parts,
    seed: int,
    reader: Reader | None = None,
    others: Sequence[Prepared] = (),
    *,
    pooled: bool = False,
) -> Prepared:
    """Turn the parts of all sources into tensors, as `prepare` does; `seed` is that of the
    split.
    """
    train = parts.primary["train"]
    encoder = _Encoder.of(config, parts, reader, pooled=pooled)
    objective = objective_for(several=train.listing.multi_label)
    record = {"kind": train.listing.kind, "seed": seed, "classes": train.classes} | _record(
        config, parts, encoder
    )
    primary = Task("primary", objective, train.classes, encoder.examples(train))
    if encoder.pixels:
        _check_pictures(primary.examples, train.listing.where)
    auxiliary = {}
    for name, part in parts.auxiliary.items():
        decoded = None
        for other in others:
            decoded = decoded or _decoded(other, part, record)
        auxiliary[name] = encoder.task(name, part, primary, decoded)
    validation, test = (
        encoder.examples(part) if len(part.rows) else primary.examples.rows(torch.arange(0))
        for part in (parts.primary["validation"], parts.primary["test"])
    )
    groups = names = None
    if pooled:
        pool = (train, parts.primary["validation"])
        groups = list(chain.from_iterable(part.groups or () for part in pool)) or None
        names = list(chain.from_iterable(part.listing.named(part.rows) for part in pool))
        primary = replace(primary, examples=encoder.joined(primary.examples, validation))
        validation = validation.rows(torch.arange(0))
    prepared = Prepared(
        train.listing.kind, primary, validation, test, auxiliary, record, groups, names, parts
    )
    record["sha256"], record[DIGESTS] = _checksum(prepared), _digests(prepared, parts)
    return prepared


@dataclass(frozen=True)
class _Encoder:
    """Turns parts into tensors."""

    config: DataConfig
    pixels: Mapping[str, Pixels] = field(default_factory=dict)
    """How pictures of each source are decoded: all have one shape, but each source has its own
    brightness.
    """
    reader: Reader | None = None
    features: Features | None = None

    @classmethod
    def of(
        cls, config: DataConfig, parts: Parts, reader: Reader | None, *, pooled: bool
    ) -> _Encoder:
        trained = [parts.primary["train"], *parts.auxiliary.values()]
        count = sum(len(part.rows) for part in (*parts.primary.values(), *parts.auxiliary.values()))
        if trained[0].listing.kind == "image":
            return cls(config, _decided(parts, config.image_size, count))
        if trained[0].listing.kind == "table":
            if pooled:
                fitted = _joined(trained[0], parts.primary["validation"])
            else:
                fitted = _table(trained[0])
            features = Features.fit(fitted, config.table, trained[0].listing.where)
            features.check(count)
            return cls(config, features=features)
        if reader is None:
            cure = "choose model: text-cnn or hf:FOLDER of a text model"
            raise InputError(f"the data are texts, but the model reads images; {cure}")
        for part in trained:
            check_texts([str(raw) for raw in part.raws()], part.listing.where)
        return cls(config, reader=reader)

    def examples(self, part: Part, source: str = PRIMARY, *, blocks: bool = False) -> Examples:
        targets = None if part.labels is None else torch.from_numpy(part.labels)
        if self.pixels:
            return Examples(
                decode_all(part.raws(), self.pixels[source], part.listing.where), targets
            )
        if self.features is not None:
            return Examples(
                torch.from_numpy(self.features.encode(_table(part), part.listing.where)), targets
            )
        assert self.reader is not None
        inputs, lengths = (self.reader.blocks if blocks else self.reader.rows)(
            [str(raw) for raw in part.raws()]
        )
        return Examples(
            inputs, targets, lengths if self.config.buckets else None, self.config.buckets or 1
        )

    def joined(self, first: Examples, second: Examples) -> Examples:
        """Two sets of primary examples as one; shorter texts are padded."""
        inputs = [first.inputs, second.inputs]
        width = max(first.inputs.shape[-1], second.inputs.shape[-1])
        if self.reader is not None:
            pad = self.reader.words.pad
            inputs = [F.pad(part, (0, width - part.shape[1]), value=pad) for part in inputs]
        targets = [part.targets for part in (first, second) if part.targets is not None]
        lengths = [part.lengths for part in (first, second) if part.lengths is not None]
        joined = Examples(
            torch.cat(inputs),
            torch.cat(targets),
            torch.cat(lengths) if lengths else None,
            first.bucket,
        )
        return joined if len(second) else first

    def task(self, name: str, part: Part, primary: Task, decoded: Examples | None) -> Task:
        """The task of an auxiliary source; `decoded` are its examples if they are known already."""
        source, classes = self.config.auxiliary[name], part.classes
        objective = objective_for(
            several=part.labels is not None and part.labels.ndim > 1, name=source.objective
        )
        rules = OBJECTIVES[objective]
        examples = decoded or self.examples(part, name, blocks=rules.blocks)
        if rules.make is not None:
            examples, classes = rules.make(examples)
        packed = rules.blocks and self.reader is not None and self.reader.pack
        task = Task(name, objective, classes, examples, packed=packed)
        if source.share_head and not can_share(task, primary):
            raise InputError(
                f"data.auxiliary.{name}.share_head: its classes ({listed(classes, 10) or 'none'}) differ from the primary task's "
                f"({listed(primary.classes, 10)}); leave share_head out, so that it gets its own head"
            )
        return sharing(task, primary) if source.share_head else task


def _decided(parts: Parts, size: int | None, count: int) -> dict[str, Pixels]:
    """Decide how the pictures of each source are read, before any is decoded; `count` of them will
    be in memory.
    """
    sources = {PRIMARY: parts.primary["train"], **parts.auxiliary}
    looks = {name: look_at(part) for name, part in sources.items()}
    pixels = Pixels.common(list(looks.values()), size)
    pixels.check(count)
    return {
        name: replace(pixels, white=white_of(looks[name], part.listing.where))
        for name, part in sources.items()
    }


def _check_pictures(examples: Examples, where: str) -> None:
    """Refuse pictures that all show the same, such as a single colour."""
    pixels = examples.inputs
    if len(pixels) > 1 and bool((pixels[1:] == pixels[:1]).all()):
        size = pixels.shape[-1]
        problem = f"{where}: all {len(pixels)} training pictures are equal when scaled to {size} x {size} pixels"
        raise InputError(
            f"{problem}, so there is nothing to learn; check the files, or raise data.image_size"
        )


def _table(part: Part) -> Any:
    """The features of a part, as a pyarrow table."""
    return taken(part.listing.tables, part.rows, part.listing.where)


def _joined(train: Part, validation: Part) -> Any:
    """Return the features of two parts that both train, in file order if they come from the same
    file.
    """
    if train.listing is validation.listing:
        return _table(replace(train, rows=np.sort(np.concatenate([train.rows, validation.rows]))))
    tables = [_table(train), _table(validation)]
    try:
        return taken(
            tables, np.arange(sum(table.num_rows for table in tables)), train.listing.where
        )
    except (
        InputError
    ):  # the files differ in columns, or a column is empty in one of them: the training rows decide
        return tables[0]


def _record(config: DataConfig, parts: Parts, encoder: _Encoder) -> dict[str, Any]:
    """The rows that the data come from. Fields that most runs do not need are recorded only if
    used.
    """
    record: dict[str, Any] = {}
    if encoder.pixels:
        pixels = encoder.pixels[PRIMARY]
        record["image_size"] = [pixels.channels, pixels.size, pixels.size]
        whites = {
            name: source.white
            for name, source in encoder.pixels.items()
            if source.white is not None
        }
        if whites:
            record[WHITE] = whites
    if encoder.features is not None:
        record["table"] = encoder.features.plain()
    record["primary"], record["auxiliary"] = {}, {}
    for name, part in parts.primary.items():
        record["primary"][name] = _rows(part) | ({"unseen": part.unseen} if part.unseen else {})
    for name, part in parts.auxiliary.items():
        record["auxiliary"][name] = _rows(part) | {
            "classes": part.classes,
            "left_out_as_primary": part.left_out,
        }
        if part.left_out_groups:
            record["auxiliary"][name]["left_out_as_group"] = part.left_out_groups
    if config.primary.overlap != "refuse":
        record["copies"] = parts.copied
    return record


def _rows(part: Part) -> dict[str, Any]:
    everything = len(part.rows) == part.listing.count
    return {
        "source": part.listing.where,
        "count": len(part.rows),
        "rows": "all" if everything else part.rows.tolist(),
    }


def _decoded(other: Prepared, part: Part, record: dict[str, Any]) -> Examples | None:
    """The auxiliary examples of other prepared data, if they are the same images."""
    size = record.get("image_size")
    alike = all(other.record.get(entry) == record.get(entry) for entry in ("image_size", WHITE))
    if size is None or not alike or part.labels is None:
        return None
    rows = _rows(part)
    for name, task in other.auxiliary.items():
        same = all(other.record["auxiliary"][name][key] == rows[key] for key in rows)
        if same and task.examples.targets is not None:
            return Examples(task.examples.inputs, torch.from_numpy(part.labels))
    return None


def _checksum(data: Prepared) -> str:
    """A checksum of all data for training and evaluation: other pixels under the same names are
    other data.
    """
    digest = hashlib.sha256()
    for part in data.all_examples:
        for tensor in (part.inputs, part.targets):
            if tensor is not None:
                digest.update(str(tuple(tensor.shape)).encode())
                digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def _digests(data: Prepared, parts: Parts) -> str:
    """Digests of all examples for training and validation, by which `attittud predict` recognises
    them.
    """
    if data.kind != "table":
        return packed(parts.used)
    # Files spell the same row in different ways, so its features are compared.
    trained = [
        data.primary.examples,
        data.validation,
        *(task.examples for task in data.auxiliary.values()),
    ]
    return packed([words_of(rows_bytes(examples)) for examples in trained])


def rows_bytes(examples: Examples) -> Iterator[Raw]:
    """The features of each row as bytes that can be compared; one after the other, since a table
    may be large.
    """
    return (row.tobytes() for row in examples.inputs.numpy())
