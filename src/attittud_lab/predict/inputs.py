"""Read inputs one after the other: images in folders, rows of tables, lines of standard input.

Only the current batch is in memory, so the inputs may be larger than memory.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet

from attittud_lab.config.options import as_path, meant
from attittud_lab.config.schema import Kind
from attittud_lab.data.features import other_separator
from attittud_lab.data.folder import SUFFIXES as IMAGES
from attittud_lab.data.source import Raw, inside, warn_once
from attittud_lab.data.spelling import folded
from attittud_lab.data.tables import INPUTS, LABELS, class_names
from attittud_lab.errors import InputError, counted, listed, loose, one_line, short, spellings
from attittud_lab.predict.rows import Row, rows_of

STANDARD = "-"
TABLES = (".parquet", ".csv", ".tsv", ".jsonl")
_LONGEST = 1 << 26  # characters of a line or a cell; a quote that is never closed would otherwise take all memory
_ROWS = 512  # of a parquet file at a time


@dataclass(frozen=True)
class Item:
    """One input."""

    file: str
    row: int | None
    """The number of the row or the line, counted from 1; None for a file that is one input."""
    raw: Raw | Row
    """An image or a text; for a table of features, a row with all its cells."""
    truth: frozenset[str] | None = None
    """The true classes of the input; None if they are not known."""

    @property
    def name(self) -> str:
        return self.file if self.row is None else f"{self.file}, row {self.row}"


@dataclass(frozen=True)
class Inputs:
    """Reads inputs of one kind for a model with these classes, from the columns that the run was trained on."""

    kind: Kind
    classes: Sequence[str]
    several: bool
    input: str | None = None
    label: str | None = None
    options: Sequence[str] = ()
    """Which of --input and --label were given. They must fit every input: a misspelt name would have no effect."""

    @cached_property
    def _spellings(self) -> dict[str, str]:
        return spellings(self.classes)

    def read(self, names: Sequence[str]) -> tuple[int | None, Iterator[Item]]:
        """Return how many inputs there are (None if only reading shows it), and the inputs in order."""
        if names.count(STANDARD) > 1:
            raise InputError("standard input (-) can only be read once; name it once")
        found = [self._one(name) for name in names]
        return _total(total for total, _ in found), (item for _, items in found for item in items)

    def _one(self, name: str) -> tuple[int | None, Iterator[Item]]:
        if name == STANDARD:
            return None, self._standard(cast(io.BufferedReader, sys.stdin.buffer))
        path = as_path(name)
        if path.is_dir():
            return self._folder(path)
        if not path.exists():
            hint = meant(path.name, [other.name for other in path.parent.iterdir()]) if path.parent.is_dir() else ""
            raise InputError(f"{name}: there is no such file or folder (looked in {Path.cwd()}){hint}")
        return self._file(path, None)

    def _file(self, path: Path, root: Path | None) -> tuple[int | None, Iterator[Item]]:
        suffix = path.suffix.lower()
        if suffix == ".parquet":
            with _blamed(path, "parquet"), pa.parquet.ParquetFile(path) as file:
                return file.metadata.num_rows, self._parquet(path)
        if suffix in TABLES:
            return None, self._table(path, suffix)
        if self.kind != "image":
            cure = f"give one of {', '.join(TABLES)}, or lines of text on standard input (-)"
            raise InputError(f"{path}: cannot read {self.kind}s from a {suffix or 'file without a suffix'}; {cure}")
        return 1, iter([self._image(path, root)])

    def _image(self, path: Path, root: Path | None) -> Item:
        self._check_no_columns(str(path))
        above = "" if root is None or path.parent == root else path.relative_to(root).parts[0]
        truth = frozenset([above]) if above in self.classes else None
        if truth is None and above:
            self._hint(f"{root}: the folder", above)
        return Item(_written(path), None, path, truth)

    def _folder(self, root: Path) -> tuple[int | None, Iterator[Item]]:
        """Read images, or tables if there are none or the model reads no images, by name and folder by folder."""
        counts = Counter(path.suffix.lower() for path in _walk(root))
        suffixes = TABLES if self.kind != "image" else IMAGES if any(counts[end] for end in IMAGES) else (".parquet",)
        wanted = sum(counts[suffix] for suffix in suffixes)
        if not wanted:
            known = ", ".join(TABLES if self.kind != "image" else (*IMAGES, ".parquet"))
            raise InputError(f"{root}: it contains no file that can be read ({known}); check the path")
        if counts.total() > wanted:
            left = counted(counts.total() - wanted, "file is", "files are")
            warn_once(f"{root}: {left} left out, because only {', '.join(suffixes)} can be read here")
        paths = (inside(root, path) for path in _walk(root) if path.suffix.lower() in suffixes)
        if suffixes is IMAGES:
            return wanted, (self._image(path, root) for path in paths)
        found = [self._file(path, root) for path in paths]
        return _total(total for total, _ in found), (item for _, some in found for item in some)

    # -------------------------------------------------------------------------------------------------- tables

    def _parquet(self, path: Path) -> Iterator[Item]:
        number, names = 0, None
        with _blamed(path, "parquet"), pa.parquet.ParquetFile(path) as file:
            input_, label = self._columns(file.schema_arrow.names, str(path))
            columns = None if input_ is None else [name for name in (input_, label) if name is not None]
            for batch in file.iter_batches(_ROWS, columns=columns):
                table = pa.Table.from_batches([batch]).replace_schema_metadata(file.schema_arrow.metadata)
                if number == 0 and label is not None:
                    names = class_names(table, label)
                known = [None] * len(batch) if label is None else batch[label].to_pylist()
                values = rows_of(table) if input_ is None else batch[input_].to_pylist()
                for value, truth in zip(values, known, strict=True):
                    number += 1
                    yield self._row(path, number, value, truth, names)

    def _table(self, path: Path, suffix: str) -> Iterator[Item]:
        with _blamed(path, suffix[1:]), path.open("rb") as file:
            lines = _lines(file, str(path))
            if suffix == ".jsonl":
                yield from self._objects(str(path), enumerate(lines, 1))
                return
            csv.field_size_limit(_LONGEST)
            rows = csv.reader(lines, delimiter="\t" if suffix == ".tsv" else ",", strict=True)
            yield from self._csv(path, (row for row in rows if row))  # without empty lines

    def _csv(self, path: Path, rows: Iterator[list[str]]) -> Iterator[Item]:
        heading, number = next(rows, []), 0
        input_, label = self._columns(heading, str(path))
        while some := list(islice(rows, _ROWS)):
            for position, row in enumerate(some, number + 1):
                if len(row) != len(heading):
                    found = f"{path}: row {position} has {len(row)} cells, the heading has {len(heading)}"
                    cure = "repair the row, or quote cells that hold separators"
                    raise InputError(f"{found}{other_separator(heading)}; {cure}")
            table = pa.table(
                {name: pa.array(cells) for name, cells in zip(heading, zip(*some, strict=True), strict=True)}
            )
            values = rows_of(table) if input_ is None else table[input_].to_pylist()
            known = [None] * len(some) if label is None else table[label].to_pylist()
            for value, truth in zip(values, known, strict=True):
                number += 1
                yield self._row(path, number, value, truth, None)

    def _objects(self, where: str, lines: Iterable[tuple[int, str]]) -> Iterator[Item]:
        """Lines of JSON; each is a mapping with the input column."""
        for number, line in lines:
            if not line.strip():
                continue
            try:
                found = json.loads(line)
            except (ValueError, RecursionError) as error:
                wrong = f"{where}: line {number} is not JSON ({one_line(error, 120)})"
                raise InputError(f"{wrong}; write one object with the input column per line") from None
            if not isinstance(found, Mapping):
                raise InputError(f'{where}: line {number} is not an object; write lines such as {{"text": "..."}}')
            input_, label = self._columns(list(found), f"{where}: line {number}")
            value = found if input_ is None else found[input_]
            yield self._row(where, number, value, None if label is None else found[label], None)

    def _standard(self, stream: io.BufferedReader) -> Iterator[Item]:
        """Read JSON lines if the first line is an object; otherwise each line is a text, or the path of an image."""
        lines, first = enumerate(_lines(stream, "standard input"), 1), (0, "")
        for first in lines:
            if first[1].strip():
                break
        else:
            return
        before = [(number, "") for number in range(1, first[0])]
        whole = (pair for some in (before, [first], lines) for pair in some)
        if first[1].lstrip().startswith("{") and _is_object(first[1]):
            yield from self._objects(STANDARD, whole)
            return
        for number, line in whole:
            text = line.rstrip("\r\n")
            if self.kind == "text":
                self._check_no_columns("standard input")
                yield Item(STANDARD, number, text)
            elif self.kind == "table":
                cure = "write one object with all columns per line, or name a file"
                raise InputError(f"standard input: line {number} is not JSON; {cure}")
            elif text:
                yield self._image(as_path(text), None)

    def _columns(self, names: Sequence[str], where: str) -> tuple[str | None, str | None]:
        """Return the column of the input (None: all columns), and the column of the label if there is one."""
        chosen: list[str | None] = []
        for wanted, usual in ((self.input, INPUTS), (self.label, LABELS)):
            found = next((name for name in ([wanted] if wanted else usual) if name in names), None)
            if list(names).count(found) > 1:  # type: ignore[arg-type]  # None is not a name
                raise InputError(f"{where}: has the column {found!r} more than once; rename or remove all but one")
            chosen.append(found)
        if not names:
            raise InputError(f"{where}: there are no examples in it; check the file")
        if "--label" in self.options and chosen[1] is None:
            missing = f"{where}: there is no column {self.label!r} (--label)"
            raise InputError(f"{missing}; name another column, or leave --label out. Its columns are {listed(names)}")
        if self.kind == "table":
            twice = next((name for name, count in Counter(names).items() if count > 1), None)
            if twice is not None:
                raise InputError(f"{where}: has the column {twice!r} more than once; rename or remove all but one")
            return None, chosen[1]
        if chosen[0] is None:
            unnamed = f"no column is called {', '.join(INPUTS[:-1])} or {INPUTS[-1]}"
            lack = f"there is no column {self.input}" if self.input else unnamed
            cure = f"name the column of the {self.kind}s with --input. Its columns are {listed(names)}"
            raise InputError(f"{where}: {lack}; {cure}{other_separator(names)}")
        return chosen[0], chosen[1]

    def _check_no_columns(self, where: str) -> None:
        if self.options:
            what = f"{where}: has no columns, so {' and '.join(self.options)} cannot name one"
            raise InputError(f"{what}; leave it out, or give a csv, tsv, jsonl or parquet file")

    def _row(self, path: Path | str, number: int, value: Any, truth: Any, names: list[str] | None) -> Item:
        if self.kind == "table":
            return Item(_written(path), number, value, self._truth(truth, names))
        if isinstance(value, Mapping):
            value = value.get("bytes")  # its path is only a name; a table cannot make us open a file
        if not isinstance(value, str if self.kind == "text" else bytes):
            known: dict[type, str] = {type(None): "nothing", bytes: "an image", str: "a text"}
            found = known.get(type(value), f"a {type(value).__name__}")
            cure = "name another column with --input, or repair the row"
            raise InputError(f"{path}: row {number} holds {found}, but the model reads {self.kind}s; {cure}")
        return Item(_written(path), number, value, self._truth(truth, names))

    def _hint(self, what: str, name: str) -> None:
        """Warn if a true class is only spelt in another way than in training: it then counts as not known."""
        if (near := self._spellings.get(loose(name))) is not None:
            spelt = (
                f"{what} {short(name)!r} is not the class {short(near)!r} of the model, because case and blanks count"
            )
            warn_once(f"{spelt}; spell them alike to get the accuracy")

    def _truth(self, value: Any, names: list[str] | None) -> frozenset[str] | None:
        """Return the classes of a row from its label cell; None without a label, or for a class that the model lacks."""
        if isinstance(value, list):
            all_names = names or [str(number) for number in range(len(value))]
            if not self.several or len(all_names) != len(value) or not {*self.classes} <= {*all_names}:
                return None
            return frozenset(name for name, has in zip(all_names, value, strict=True) if has) & {*self.classes}
        if value is None or value != value:  # NaN
            return None
        number = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(number, int) and names and 0 <= number < len(names):
            value = names[number]
        name = str(int(value)) if isinstance(value, bool) else str(value)
        known = next((word for word in (name, name.strip(), folded(name.strip())) if word in self.classes), None)
        if known is None and not self.several:
            self._hint("the label", name)
        return None if known is None or self.several else frozenset([known])


def _total(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(count or 0 for count in known)


def _walk(root: Path) -> Iterator[Path]:
    """All files below a folder but hidden ones, in order of their names, folder by folder."""

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename}: cannot be read ({error.strerror}); change its permissions")

    for folder, inner, files in os.walk(root, onerror=refuse):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        for name in inner:
            if Path(folder, name).is_symlink():
                warn_once(
                    f"{Path(folder, name)}: is a link to a folder, so its files are left out; copy them if you need them"
                )
        yield from (Path(folder, name) for name in sorted(files) if not name.startswith("."))


def _written(path: Path | str) -> str:
    """Return a path as text that a UTF-8 file can hold, even if the path itself is not valid UTF-8."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def _lines(stream: io.BufferedReader, where: str) -> Iterator[str]:
    """The lines of a text in UTF-8, or in UTF-16 or UTF-32 with a byte-order mark."""
    start = stream.peek(4)[:4]
    wide = "utf-32" if start in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE) else "utf-16"
    marks = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    text = io.TextIOWrapper(stream, wide if start.startswith(marks) else "utf-8-sig", newline="")
    try:
        while line := text.readline(_LONGEST):
            if len(line) == _LONGEST:
                raise InputError(f"{where}: has a line of more than {_LONGEST:,} characters; is it the right file?")
            yield line
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: is not UTF-8 text ({one_line(error, 100)}); save it in that encoding") from None
    finally:
        with suppress(ValueError):  # the file was closed meanwhile
            text.detach()


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


@contextmanager
def _blamed(path: Path, kind: str) -> Iterator[None]:
    """Blame errors of a reader inside the block on the file."""
    try:
        yield
    except (pa.ArrowException, csv.Error, OSError, ValueError) as error:
        found = f"{path}: cannot be read as {kind} ({one_line(error, 200)})"
        raise InputError(f"{found}; check the file") from None
