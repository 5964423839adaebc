"""Which reader a path needs. Every reader has the source's own splits, and lists the examples of one of them."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Protocol

from attittud_lab.config.data import PrimaryConfig, SourceConfig
from attittud_lab.data.embedded import digits
from attittud_lab.data.listing import Columns, Listing, joined
from attittud_lab.errors import InputError

TABLES = (".parquet", ".csv", ".tsv", ".jsonl")


class Source(Protocol):
    """Something that examples can be read from."""

    @property
    def splits(self) -> list[str]:
        """Names of its own splits; empty where it has none."""

    def listing(self, split: str | None, columns: Columns) -> Listing:
        """The examples of one split, or all."""

    def columns(self, split: str | None) -> list[str]:
        """What `group` and `where` can name; empty where there are none."""


@dataclass(frozen=True)
class Embedded:
    """The digits."""

    @property
    def splits(self) -> list[str]:
        return []

    def listing(self, split: str | None, columns: Columns) -> Listing:
        return digits()

    def columns(self, split: str | None) -> list[str]:
        return []


def open_source(config: SourceConfig) -> Source:
    """The reader for `config.path`."""
    text = config.path
    if text == "digits":
        return Embedded()
    if text.startswith("hf:"):
        from attittud_lab.data.hub import Hub

        return Hub(text.removeprefix("hf:"))
    path = Path(text).expanduser()
    if not path.exists():
        near = (
            get_close_matches(path.name, [p.name for p in path.parent.iterdir()], n=1) if path.parent.is_dir() else []
        )
        hint = f"; did you mean {path.parent / near[0]}?" if near else ""
        raise InputError(f"{text}: there is no such file or folder (looked in {Path.cwd()}){hint}")
    from attittud_lab.data.chexpert import CheXpert

    _check_whole_chexpert(path, CheXpert.around(path))
    if path.is_file():
        if path.suffix.lower() not in TABLES:
            raise InputError(
                f"{text}: cannot read a {path.suffix or 'file without a suffix'}; give one of {', '.join(TABLES)}"
            )
        from attittud_lab.data.tables import Tables

        return Tables(path, {None: [path]})
    if not path.is_dir():
        raise InputError(
            f"{text}: is neither a file nor a folder; give one of {', '.join(TABLES)}, or a folder of images"
        )
    return _open_folder(path)


def _check_whole_chexpert(path: Path, meant: Path | None) -> None:
    """A part of it would be a table without inputs, or images whose classes are patients."""
    if meant is not None:
        raise InputError(f"{path}: CheXpert is read from the folder of its tables; did you mean {meant}?")


def _open_folder(path: Path) -> Source:
    from attittud_lab.data.chexpert import CheXpert
    from attittud_lab.data.folder import ImageFolder
    from attittud_lab.data.tables import Tables, shards

    if CheXpert.recognises(path):
        return CheXpert(path)
    tables = shards(path)
    if tables:
        return Tables(path, tables)
    _check_whole_chexpert(path, CheXpert.inside(path))
    if not any(path.iterdir()):
        raise InputError(
            f"{path}: the folder is empty; put one folder of images per class into it, or parquet, csv or jsonl files"
        )
    return ImageFolder(path)


def open_listing(config: SourceConfig, source: Source, split: str | None) -> Listing:
    """The listing of a split, which must exist."""
    names = [None] if split is None else split.split("+")
    group = config.group if isinstance(config, PrimaryConfig) else None
    columns = Columns(config.input, config.label, group, config.where)
    for part in names:
        if part is not None and part not in source.splits:
            known = ", ".join(source.splits) or "none of its own"
            raise InputError(f"{config.path}: there is no split {part!r}; the source has {known}")
        named = {"input": config.input, "label": config.label, "group": group, "where": config.where}
        for name, value in named.items():
            if value and not source.columns(part):
                raise InputError(f"{config.path}: has no columns, so {name}: {value} means nothing; leave {name} out")
    listing = joined([source.listing(part, columns) for part in names])
    if listing.count == 0:
        raise InputError(f"{listing.where}: there are no examples in it")
    return listing
