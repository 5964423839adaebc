"""Listings of files as plain lists, and odd labels."""

import csv
import json
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from attittud_lab.config.schema import SourceConfig
from attittud_lab.data.source import Listing, open_listing, open_source

CASES = int(os.environ.get("ATTITTUD_CASES", "150"))
"""Files that the fuzzer writes; set it higher for a longer attack."""


def read_path(path: Path | str, split: str | None = None, **more: Any) -> Listing:
    config = SourceConfig(path=str(path), split=split, **more)
    return open_listing(config, open_source(config.path), split)


def write_columns(path: Path, columns: Mapping[str, Sequence[Any]]) -> Path:
    """Write a table in the format of the suffix; a csv file has an empty cell for None."""
    rows = list(zip(*columns.values(), strict=True))
    if path.suffix == ".parquet":
        pq.write_table(pa.table({name: pa.array(cells) for name, cells in columns.items()}), path)
    elif path.suffix == ".jsonl":
        objects = [dict(zip(columns, row, strict=True)) for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in objects), encoding="utf-8")
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writerows([list(columns), *rows])
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read a file with the readers of other libraries, row by row."""
    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    if path.suffix == ".jsonl":
        return list(map(json.loads, path.read_text(encoding="utf-8").splitlines()))
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def named(listing: Listing) -> list[str | None]:
    """The label of each example by its name."""
    assert listing.labels is not None and listing.labels.ndim == 1
    return [listing.classes[label] if label >= 0 else None for label in listing.labels]


def inputs(listing: Listing) -> list[Any]:
    return list(listing.fetch(np.arange(listing.count)))


def damaged(content: bytes, random_: random.Random) -> bytes:
    """A file as broken disks, editors and programs leave it."""
    place = random_.randrange(len(content) + 1)
    end = place + random_.randrange(1, 40)
    before, part, after = content[:place], content[place:end], content[end:]
    odd = random_.choice([b'"', b"\n", b"\x00", b",", b"}", b"\\", b"\xff"])
    forms = [before, before + after, before + part * 3 + after, before + odd + part + after]
    forms.append(before + random_.randbytes(end - place) + part + after)
    forms += [content + content, content[::-1], content.replace(b"text", b"label", 1)]
    return random_.choice(forms)
