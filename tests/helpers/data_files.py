"""Listings of files as plain lists, and odd labels."""

import os
import random
from pathlib import Path
from typing import Any

import numpy as np

from attittud_lab.config.schema import SourceConfig
from attittud_lab.data.source import Listing, open_listing, open_source

CASES = int(os.environ.get("ATTITTUD_CASES", "150"))


"""Files that the fuzzer writes; set it higher for a longer attack."""


def read_path(path: Path | str, split: str | None = None, **more: Any) -> Listing:
    config = SourceConfig(path=str(path), split=split, **more)
    return open_listing(config, open_source(config.path), split)


def named(listing: Listing) -> list[str | None]:
    """The label of each example by its name."""
    assert listing.labels is not None and listing.labels.ndim == 1
    return [listing.classes[label] if label >= 0 else None for label in listing.labels]


def inputs(listing: Listing) -> list[Any]:
    return list(listing.fetch(np.arange(listing.count)))


def damaged(content: bytes, random_: random.Random) -> bytes:
    """A file as broken disks, editors and programs leave it."""
    place, length = random_.randrange(len(content) + 1), random_.randrange(1, 40)
    return random_.choice(
        [
            lambda: content[:place],
            lambda: content[:place] + content[place + length :],
            lambda: content[:place] + random_.randbytes(length) + content[place:],
            lambda: (
                content[:place] + random_.choice([b'"', b"\n", b"\x00", b",", b"}", b"\\", b"\xff"]) + content[place:]
            ),
            lambda: content[:place] + content[place : place + length] * 3 + content[place + length :],
            lambda: content + content,
            lambda: bytes(reversed(content)),
            lambda: content.replace(b"text", b"label", 1),
        ]
    )()
