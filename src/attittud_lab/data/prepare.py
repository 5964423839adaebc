"""From the data section of a configuration to tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attittud_lab.config.data import DataConfig
from attittud_lab.data.images import Pixels, decode_all
from attittud_lab.data.listing import Kind
from attittud_lab.data.parts import Part, read_parts
from attittud_lab.data.tasks import Examples, Objective, Task
from attittud_lab.data.texts import Reader
from attittud_lab.errors import InputError

Encoded = tuple[Tensor, Tensor | None]
"""Inputs, and the lengths of texts."""


@dataclass
class Prepared:
    """All data of a job as tensors in main memory, with a record of which rows they are."""

    kind: Kind
    primary: Task
    validation: Examples
    test: Examples
    auxiliary: dict[str, Task]
    record: dict[str, Any] = field(default_factory=dict)

    @property
    def all_examples(self) -> list[Examples]:
        tasks = (task.examples for task in self.auxiliary.values())
        return [self.primary.examples, self.validation, self.test, *tasks]

    @property
    def bytes(self) -> int:
        return sum(part.inputs.nbytes for part in self.all_examples)


def split_seed(config: DataConfig, seed: int) -> int:
    """What the splits of a run depend on; `seed` is that of the run."""
    first = seed if config.seed is None else config.seed
    return first if config.subsets is None else first + seed % config.subsets


def prepare(config: DataConfig, seed: int, reader: Reader | None = None, known: Sequence[Prepared] = ()) -> Prepared:
    """Read everything. `seed` is that of the run, for splits that follow it (data.seed: null, data.subsets).

    From `known`, other splits of the same data, decoded auxiliary images are taken over.
    """
    seed = split_seed(config, seed)
    read = read_parts(config, seed)
    parts, classes, kind, others = read.primary, read.classes, read.kind, read.auxiliary
    encode: Callable[[Part, bool], Encoded]
    record: dict[str, Any] = {"kind": kind, "seed": seed, "classes": classes}
    if kind == "image":
        pixels = Pixels.common([parts["train"], *(part for part, _ in others.values())], config.image_size)
        record |= {"image_size": [pixels.channels, pixels.size, pixels.size]}

        def encode(part: Part, _: bool) -> Encoded:
            return decode_all(part.raws(), pixels, part.listing.where), None
    else:
        if reader is None:
            raise InputError(
                "the data are texts, but the model reads images; choose model: text-cnn or hf:FOLDER of a text model"
            )

        for part in (parts["train"], *(part for part, _ in others.values())):
            _check_words(part)

        def encode(part: Part, blocks: bool) -> Encoded:
            return (reader.blocks if blocks else reader.rows)([str(raw) for raw in part.raws()])

    def examples(part: Part, *, blocks: bool = False) -> Examples:
        inputs, lengths = encode(part, blocks)
        return Examples(
            inputs,
            None if part.labels is None else torch.from_numpy(part.labels),
            lengths if config.buckets else None,
            config.buckets or 1,
        )

    multi = parts["train"].listing.multi_label
    primary = Task("primary", "multi_label" if multi else "classify", classes, examples(parts["train"]))
    auxiliary = {}
    for name, (part, names) in others.items():
        objective: Objective = (
            "masked_lm" if part.labels is None else "multi_label" if part.labels.ndim == 2 else "classify"
        )
        shared = config.auxiliary[name].share_head
        if shared and (names, objective) != (classes, primary.objective):
            raise InputError(
                f"data.auxiliary.{name}.share_head: its classes ({', '.join(names[:10]) or 'none'}) are not those of the primary "
                f"task ({', '.join(classes[:10])}); leave share_head out, so that it gets a head of its own"
            )
        decoded = next((found for other in known if (found := _decoded(other, part, record.get("image_size")))), None)
        blocks = objective == "masked_lm"
        packed = blocks and reader is not None and reader.pack
        found = decoded or examples(part, blocks=blocks)
        auxiliary[name] = Task(name, objective, names, found, shared, packed)
    record["primary"] = {name: _rows(part) for name, part in parts.items()}
    record["auxiliary"] = {
        name: _rows(part) | {"classes": names, "left_out_as_primary": read.left_out[name]}
        for name, (part, names) in others.items()
    }
    prepared = Prepared(kind, primary, examples(parts["validation"]), examples(parts["test"]), auxiliary, record)
    record["sha256"] = _checksum(prepared)
    return prepared


def _check_words(part: Part) -> None:
    """Some texts may be empty, but where all are nothing could be learned, and a run would not show why."""
    if not any(str(raw).strip() for raw in part.raws()):
        raise InputError(
            f"{part.listing.where}: there is not a single word in its texts; name another column by input:, or check the file"
        )


def _decoded(known: Prepared, part: Part, size: list[int] | None) -> Examples | None:
    """The auxiliary examples of other prepared data that are these very images."""
    if size is None or known.record.get("image_size") != size or part.labels is None:
        return None
    rows = _rows(part)
    for name, task in known.auxiliary.items():
        same = all(known.record["auxiliary"][name][key] == rows[key] for key in rows)
        if same and task.examples.targets is not None:
            return Examples(task.examples.inputs, torch.from_numpy(part.labels))
    return None


def _rows(part: Part) -> dict[str, Any]:
    everything = len(part.rows) == part.listing.count
    return {"source": part.listing.where, "count": len(part.rows), "rows": "all" if everything else part.rows.tolist()}


def _checksum(data: Prepared) -> str:
    """Of everything that is trained and judged on: other pixels under the same names are other data."""
    digest = hashlib.sha256()
    for part in data.all_examples:
        for tensor in (part.inputs, part.targets):
            if tensor is not None:
                digest.update(str(tuple(tensor.shape)).encode())
                digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()
