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
from attittud_lab.data.cells import take_rows
from attittud_lab.data.features import Features
from attittud_lab.data.images import Pixels, decode_all, look_at, white_of, with_white
from attittud_lab.data.part import Part
from attittud_lab.data.parts import Parts, read_parts
from attittud_lab.data.source import Raw, warn_once
from attittud_lab.data.splits import digests_of, pack
from attittud_lab.data.tasks import OBJECTIVES, Examples, Task, can_share, objective_for, share_head
from attittud_lab.data.texts import Reader, check_texts
from attittud_lab.errors import InputError, listed

DIGESTS = "digests"
"""The entry of a record with digests of the examples for training and validation."""
PRIMARY = "primary"
WHITE = "white"
"""The entry of a record with the grey value that counts as white, by source, where grey pictures
have more than 8 bits.
"""


@dataclass
class Prepared:
    """All data of a job as tensors in main memory, with a record of the rows they come from."""

    kind: Kind
    primary: Task
    validation: Examples
    """Empty where the data are pooled: then these examples are among the primary ones."""
    test: Examples
    auxiliary: dict[str, Task]
    """The auxiliary tasks by the names of their sources."""
    record: dict[str, Any] = field(default_factory=dict)
    """What data.json says: the rows of each part, classes, and how inputs become tensors."""
    groups: list[str] | None = None
    """Groups of the primary training examples, where these are pooled and have any."""
    names: list[str] | None = None
    """What a person calls the primary training examples, where they are pooled."""
    parts: Parts | None = None
    """Where the examples come from, for features that read them as they are."""

    def inputs(self, name: str) -> Any:
        """Return the examples as features read them: texts, images as the source has them, or
        columns of a table.

        `name` is "primary" (with pooled data the validation examples come last) or an auxiliary
        source.
        """
        if name == PRIMARY:
            return self._inputs(self.primary.examples, ["train", "validation"])
        return self._inputs(self.auxiliary[name].examples, [], name)

    def test_inputs(self) -> Any:
        """Return the test examples as features read them."""
        return self._inputs(self.test, ["test"])

    def _inputs(self, examples: Examples, splits: Sequence[str], auxiliary: str = "") -> Any:
        """Return examples of splits of the primary source, or of an auxiliary source."""
        if self.kind == "table":
            return examples.inputs.cpu().numpy()
        assert self.parts is not None
        parts = [self.parts.primary[split] for split in splits]
        if auxiliary:
            parts = [self.parts.auxiliary[auxiliary]]
        raws = list(chain.from_iterable(part.raws() for part in parts))
        # Unless the data are pooled, `examples` are the training examples alone.
        raws = raws[: len(examples)]
        if self.kind == "text":
            return list(map(str, raws))
        return raws

    @property
    def all_examples(self) -> list[Examples]:
        """All sets of examples that are not empty."""
        sets = [self.primary.examples, self.validation, self.test]
        sets += [task.examples for task in self.auxiliary.values()]
        return [examples for examples in sets if len(examples)]

    @property
    def bytes(self) -> int:
        """The size of all inputs."""
        return sum(part.inputs.nbytes for part in self.all_examples)


def split_seed(config: DataConfig, seed: int) -> int:
    """Return the seed that decides the splits of a run; `seed` is the run's own.

    It is `data.seed`, or the run's own if that is null. With `data.subsets`, runs rotate through
    this many seeds from `data.seed` on.
    """
    first_seed = seed
    if config.seed is not None:
        first_seed = config.seed
    if config.subsets is None:
        return first_seed
    return first_seed + seed % config.subsets


def prepare(
    config: DataConfig,
    seed: int,
    reader: Reader | None = None,
    others: Sequence[Prepared] = (),
    *,
    pooled: bool = False,
) -> Prepared:
    """Return all data of a job. `seed` is the run's seed, for splits that follow it (data.seed:
    null, data.subsets).

    Decoded auxiliary images are reused from `others`, which are other splits of the same data.
    `pooled`: training and validation examples become one set, which will be divided into folds.
    """
    seed = split_seed(config, seed)
    parts = read_parts(config, seed, pooled=pooled)
    return encode(config, parts, seed, reader, others, pooled=pooled)


def encode(
    config: DataConfig,
    parts: Parts,
    seed: int,
    reader: Reader | None = None,
    others: Sequence[Prepared] = (),
    *,
    pooled: bool = False,
) -> Prepared:
    """Turn the parts of all sources into tensors; `seed` is that of the split, and the other
    arguments are those of `prepare`.

    Refused are pictures that all look the same; pictures of one colour get a warning.
    """
    # Everything that all sources share is decided first: white, the size of images, features.
    whites: dict[str, int] = {}
    if parts.primary["train"].listing.kind == "image":
        parts, whites = _decide_whites(parts)
    train = parts.primary["train"]
    held_out = parts.primary["validation"]
    encoder = _Encoder.of(config, parts, reader, pooled=pooled)
    objective = objective_for(several=train.listing.multi_label)
    record: dict[str, Any] = {"kind": train.listing.kind, "seed": seed, "classes": train.classes}
    record |= _record(config, parts, encoder)
    if whites:
        record[WHITE] = whites
    primary = Task("primary", objective, train.classes, encoder.examples(train))
    auxiliary = {}
    for name, part in parts.auxiliary.items():
        auxiliary[name] = encoder.task(name, part, primary, _decoded_before(others, part, record))
    if encoder.pixels is not None:  # before the other parts are decoded
        _check_pictures(primary.examples, train.listing.where)
        for name, part in parts.auxiliary.items():
            _check_pictures(auxiliary[name].examples, part.listing.where)
    empty = primary.examples.rows(torch.arange(0))
    validation = empty
    test = empty
    if len(held_out.rows):
        validation = encoder.examples(held_out)
    if len(parts.primary["test"].rows):
        test = encoder.examples(parts.primary["test"])
    if encoder.pixels is not None:
        _warn_of_one_colour([primary.examples, validation, test], config.primary.path)
        for name, task in auxiliary.items():
            _warn_of_one_colour([task.examples], f"data.auxiliary.{name}")
    groups = None
    names = None
    if pooled:  # the validation examples become the last primary ones
        groups = [*(train.groups or ()), *(held_out.groups or ())] or None
        names = [*train.listing.named(train.rows), *held_out.listing.named(held_out.rows)]
        primary = replace(primary, examples=encoder.joined(primary.examples, validation))
        validation = validation.rows(torch.arange(0))
    prepared = Prepared(
        train.listing.kind, primary, validation, test, auxiliary, record, groups, names, parts
    )
    record["sha256"] = _checksum(prepared)
    record[DIGESTS] = _digests(prepared, parts)
    return prepared


@dataclass(frozen=True)
class _Encoder:
    """Turns parts into tensors: images, tables or texts."""

    config: DataConfig
    pixels: Pixels | None = None
    features: Features | None = None
    reader: Reader | None = None

    @classmethod
    def of(
        cls, config: DataConfig, parts: Parts, reader: Reader | None, *, pooled: bool
    ) -> _Encoder:
        """Return an encoder for what the training examples are: the size of images is decided, and
        features of tables are fitted.

        Refused are data that take too much memory, texts without words, and texts for a model that
        reads images.
        """
        train = parts.primary["train"]
        trained = [train, *parts.auxiliary.values()]
        count = sum(len(part.rows) for part in (*parts.primary.values(), *parts.auxiliary.values()))
        if train.listing.kind == "image":
            pixels = Pixels.common(list(map(look_at, trained)), config.image_size)
            pixels.check(count)
            return cls(config, pixels=pixels)
        if train.listing.kind == "table":
            if pooled:
                table = _pooled_table(train, parts.primary["validation"])
            else:
                table = _table(train)
            features = Features.fit(table, config.table, train.listing.where)
            features.check(count)
            return cls(config, features=features)
        if reader is None:
            advice = "choose model: text-cnn or hf:FOLDER of a text model"
            raise InputError(f"the data are texts, but the model reads images; {advice}")
        for part in trained:
            check_texts(list(map(str, part.raws())), part.listing.where)
        return cls(config, reader=reader)

    def examples(self, part: Part, *, blocks: bool = False) -> Examples:
        """Return the tensors of a part; with `blocks`, texts fill whole blocks."""
        targets = None
        if part.labels is not None:
            targets = torch.from_numpy(part.labels)
        where = part.listing.where
        if self.pixels is not None:
            return Examples(decode_all(part.raws(), self.pixels, where), targets)
        if self.features is not None:
            return Examples(torch.from_numpy(self.features.encode(_table(part), where)), targets)
        assert self.reader is not None
        texts = list(map(str, part.raws()))
        if blocks:
            inputs, lengths = self.reader.blocks(texts)
        else:
            inputs, lengths = self.reader.rows(texts)
        if not self.config.buckets:
            return Examples(inputs, targets)
        return Examples(inputs, targets, lengths, self.config.buckets)

    def joined(self, first: Examples, second: Examples) -> Examples:
        """Return two sets of primary examples as one; shorter texts are padded."""
        if not len(second):
            return first
        inputs = [first.inputs, second.inputs]
        if self.reader is not None:
            pad = self.reader.words.pad
            width = max(first.inputs.shape[1], second.inputs.shape[1])
            inputs = [F.pad(part, (0, width - part.shape[1]), value=pad) for part in inputs]
        assert first.targets is not None
        assert second.targets is not None
        targets = [first.targets, second.targets]
        lengths = None
        if first.lengths is not None and second.lengths is not None:
            lengths = torch.cat([first.lengths, second.lengths])
        return Examples(torch.cat(inputs), torch.cat(targets), lengths, first.bucket)

    def task(self, name: str, part: Part, primary: Task, decoded: Examples | None) -> Task:
        """Return the task of an auxiliary source, whose examples may be `decoded` already. Refuses
        share_head if its classes are not the primary ones.
        """
        source = self.config.auxiliary[name]
        several = part.labels is not None and part.labels.ndim > 1
        objective = objective_for(several=several, name=source.objective)
        rules = OBJECTIVES[objective]
        examples = decoded or self.examples(part, blocks=rules.blocks)
        packed = rules.blocks and self.reader is not None and self.reader.pack
        task = Task(name, objective, part.classes, examples, packed=packed)
        if not source.share_head:
            return task
        if not can_share(task, primary):
            culprit = f"data.auxiliary.{name}.share_head"
            classes = listed(part.classes, 10) or "none"
            problem = f"{culprit}: its classes ({classes}) differ from the primary task's"
            raise InputError(f"{problem}; leave share_head out")
        return share_head(task, primary)


def _decide_whites(parts: Parts) -> tuple[Parts, dict[str, int]]:
    """Decide for each source which grey value is white, if it has grey pictures of more than 8 bits.

    Returns the parts, which are then read with this value, and the values by source.
    """
    sources = {PRIMARY: parts.primary["train"], **parts.auxiliary}
    whites = {}
    for name, part in sources.items():
        white = white_of(part)
        if white is not None:
            whites[name] = white
    primary = {}
    for split, part in parts.primary.items():
        primary[split] = with_white(part, whites.get(PRIMARY))
    auxiliary = {}
    for name, part in parts.auxiliary.items():
        auxiliary[name] = with_white(part, whites.get(name))
    return replace(parts, primary=primary, auxiliary=auxiliary), whites


def _check_pictures(examples: Examples, where: str) -> None:
    """Refuse pictures that all show the same, such as a single colour."""
    pixels = examples.inputs
    if len(pixels) > 1 and all(torch.equal(picture, pixels[0]) for picture in pixels):
        problem = f"{where}: all {len(pixels)} training pictures are equal when scaled"
        raise InputError(f"{problem}; check the files, or raise data.image_size")


def _warn_of_one_colour(parts: Sequence[Examples], where: str) -> None:
    """Warn about pictures that show a single colour, such as black ones of a broken camera. They are
    not refused, because the colour may be what tells classes apart.
    """
    total = 0
    count = 0
    for part in parts:
        pixels = part.inputs.flatten(2)
        plain = (pixels.amax(2) == pixels.amin(2)).all(1)  # in each channel one value
        total += len(plain)
        count += int(plain.sum())
    if count:
        share = f"{count} of its {total} pictures show one colour each"
        advice = "check the files, and remove those that should show more than a colour"
        warn_once(f"{where}: {share}; {advice}")


def _table(part: Part) -> Any:
    """Return the features of a part, as a pyarrow table."""
    return take_rows(part.listing.tables, part.rows, part.listing.where)


def _pooled_table(train: Part, validation: Part) -> Any:
    """Return the features of two parts that both train, in file order if they share a file."""
    if train.listing is validation.listing:
        return _table(replace(train, rows=np.sort(np.concatenate([train.rows, validation.rows]))))
    tables = [_table(train), _table(validation)]
    count = len(train.rows) + len(validation.rows)
    return take_rows(tables, np.arange(count), train.listing.where)


def _record(config: DataConfig, parts: Parts, encoder: _Encoder) -> dict[str, Any]:
    """Return the rows that the data come from. Fields that most runs do not need are recorded only
    if used.
    """
    record: dict[str, Any] = {}
    if encoder.pixels is not None:
        size = encoder.pixels.size
        record["image_size"] = [encoder.pixels.channels, size, size]
    if encoder.features is not None:
        record["table"] = encoder.features.plain()
    record["primary"] = {}
    for name, part in parts.primary.items():
        record["primary"][name] = _rows(part)
        if part.unseen:
            record["primary"][name]["unseen"] = part.unseen
    record["auxiliary"] = {}
    for name, part in parts.auxiliary.items():
        more = {"classes": part.classes, "left_out_as_primary": part.left_out}
        if part.left_out_groups:
            more["left_out_as_group"] = part.left_out_groups
        record["auxiliary"][name] = _rows(part) | more
    if config.primary.overlap != "refuse":
        record["copies"] = parts.copied
    return record


def _rows(part: Part) -> dict[str, Any]:
    """Return which rows of its source a part has, for the record."""
    rows: Any = "all"
    if len(part.rows) != part.listing.count:
        rows = part.rows.tolist()
    return {"source": part.listing.where, "count": len(part.rows), "rows": rows}


def _decoded_before(
    others: Sequence[Prepared], part: Part, record: Mapping[str, Any]
) -> Examples | None:
    """Return the examples of an auxiliary part from `others`, prepared data that have the same images
    in the same size and with the same white; None if none of them has.
    """
    if "image_size" not in record or part.labels is None:
        return None
    rows = _rows(part)
    for other in others:
        if other.record.get("image_size") != record["image_size"]:
            continue
        if other.record.get(WHITE) != record.get(WHITE):
            continue
        for name, task in other.auxiliary.items():
            same = all(other.record["auxiliary"][name][key] == rows[key] for key in rows)
            if same and task.examples.targets is not None:
                return Examples(task.examples.inputs, torch.from_numpy(part.labels))
    return None


def _checksum(data: Prepared) -> str:
    """Return a checksum of all inputs and targets: other pixels under the same file names are other
    data.
    """
    digest = hashlib.sha256()
    for part in data.all_examples:
        for tensor in (part.inputs, part.targets):
            if tensor is not None:
                digest.update(str(tuple(tensor.shape)).encode())
                digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def _digests(data: Prepared, parts: Parts) -> str:
    """Return digests of all examples for training and validation, by which `attittud predict`
    recognises them.
    """
    if data.kind != "table":
        return pack(parts.used)
    # Files spell the same row in different ways, so its features are compared.
    trained = [data.primary.examples, data.validation]
    trained += [task.examples for task in data.auxiliary.values()]
    return pack([digests_of(rows_bytes(examples)) for examples in trained])


def rows_bytes(examples: Examples) -> Iterator[Raw]:
    """Yield the features of each row as bytes that can be compared."""
    for row in examples.inputs.numpy():
        yield row.tobytes()
