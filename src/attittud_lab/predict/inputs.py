"""Read inputs one after the other: images in folders, rows of tables, lines of standard input.

Only the current batch is in memory, so the inputs may be larger than memory.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from attittud_lab.config.options import as_path
from attittud_lab.config.schema import Kind
from attittud_lab.data.cells import other_separator
from attittud_lab.data.folder import SUFFIXES as IMAGES
from attittud_lab.data.folder import files_in, is_image
from attittud_lab.data.labels import class_names, label_of
from attittud_lab.data.rows import (
    INPUTS,
    LABELS,
    batches,
    blamed,
    content,
    find_column,
    objects,
    open_text,
)
from attittud_lab.data.rows import SUFFIXES as TABLES
from attittud_lab.data.source import Raw, not_found, warn_once
from attittud_lab.errors import InputError, counted, listed, loose, short, spellings

STANDARD = "-"
_ROWS = 512  # of a table at a time
_TYPES = {"text": str, "image": bytes}


@dataclass(frozen=True)
class Item:
    """One input."""

    file: str
    row: int | None
    """The number of the row or the line, counted from 1; None for a file that is one input."""
    raw: Raw | Mapping[str, Any]
    """An image or a text; for a table of features, a row with all its cells."""
    truth: frozenset[str] | None = None
    """The true classes of the input; None if they are not known."""

    @property
    def name(self) -> str:
        """What a message calls the input."""
        if self.row is None:
            return self.file
        return f"{self.file}, row {self.row}"


@dataclass(frozen=True)
class Inputs:
    """Reads inputs of one kind for a model with these classes, from the columns that the run was
    trained on.
    """

    kind: Kind
    classes: Sequence[str]
    several: bool
    input: str | None = None
    label: str | None = None
    options: Sequence[str] = ()
    """Which of --input and --label were given. They must fit every input: a misspelt name would
    have no effect.
    """

    @cached_property
    def _spellings(self) -> dict[str, str]:
        """The classes by their `loose` form."""
        return spellings(self.classes)

    def read(self, names: Sequence[str]) -> tuple[int | None, Iterator[Item]]:
        """Return how many inputs there are (None if only reading shows it), and the inputs in
        order.
        """
        if names.count(STANDARD) > 1:
            raise InputError("standard input (-) can only be read once; name it once")
        return _joined(list(map(self._source, names)))

    def _source(self, name: str) -> tuple[int | None, Iterator[Item]]:
        """Return what `read` returns, for one file, one folder or standard input."""
        if name == STANDARD:
            return None, self._standard()
        path = as_path(name)
        if path.is_dir():
            return self._folder(path)
        if not path.exists():
            raise not_found(name)
        return self._file(path, None)

    def _file(self, path: Path, root: Path | None) -> tuple[int | None, Iterator[Item]]:
        """Return what `read` returns, for one file; `root` is the folder that was named."""
        suffix = path.suffix.lower()
        if suffix == ".jsonl":
            return None, self._objects_in(path)
        if suffix in TABLES:
            return None, self._table(path)
        if self.kind != "image":
            advice = f"give one of {', '.join(TABLES)}, or lines of text on standard input (-)"
            file = suffix or "file without a suffix"
            raise InputError(f"{path}: cannot read {self.kind}s from a {file}; {advice}")
        return 1, iter([self._image(path, root)])

    def _image(self, path: Path, root: Path | None) -> Item:
        """Return an image; its true class is the name of its folder below `root`, if it is one of
        the model's. Warns if the name is only another spelling of a class.
        """
        self._check_no_columns(str(path))
        folder = ""
        if root is not None and path.parent != root:
            folder = path.relative_to(root).parts[0]
        truth = None
        if folder in self.classes:
            truth = frozenset([folder])
        elif folder:
            self._hint(f"{root}: the folder", folder)
        return Item(_written(path), None, path, truth)

    def _folder(self, root: Path) -> tuple[int | None, Iterator[Item]]:
        """Return what `read` returns, for the files below a folder, by name and folder by folder.

        They are images, or parquet files if there are none; for other models they are tables. Warns
        of files that are left out.
        """
        files = list(files_in(root, root))
        readable: Sequence[str] = TABLES  # what a message names
        suffixes: Sequence[str] = TABLES  # what is read
        if self.kind == "image":
            readable = (*IMAGES, ".parquet")
            suffixes = (".parquet",)
            if any(map(is_image, files)):
                suffixes = IMAGES
        paths = [path for path in files if path.suffix.lower() in suffixes]
        if not paths:
            problem = f"{root}: it contains no file that can be read ({', '.join(readable)})"
            raise InputError(f"{problem}; check the path")
        if len(paths) < len(files):
            left = counted(len(files) - len(paths), "file is", "files are")
            reason = f"only {', '.join(suffixes)} can be read here"
            warn_once(f"{root}: {left} left out, because {reason}")
        if suffixes is IMAGES:
            return len(paths), (self._image(path, root) for path in paths)
        return _joined([self._file(path, root) for path in paths])

    # --------------------------------------------------------------------------------------- tables

    def _table(self, path: Path) -> Iterator[Item]:
        """Yield the inputs in the rows of a csv, tsv or parquet file."""
        number = 0
        for batch in batches(path, _ROWS):
            columns = self._columns(batch.column_names, str(path))
            _, label_column = columns
            names = None
            if label_column is not None:
                names = class_names(batch, label_column)
            needed = batch
            if self.kind != "table":  # the other columns may be large
                needed = batch.select(list(filter(None, set(columns))))
            for row in needed.to_pylist():
                number += 1
                yield self._row(str(path), number, row, columns, names)

    def _objects_in(self, path: Path) -> Iterator[Item]:
        with blamed(str(path)), open_text(path) as text:
            yield from self._objects(str(path), text)

    def _objects(self, where: str, text: Iterable[str]) -> Iterator[Item]:
        """Yield the inputs in lines of JSON; each is a mapping with the input column."""
        for number, row in objects(text, where):
            columns = self._columns(list(row), f"{where}: line {number}")
            yield self._row(where, number, row, columns, None)

    def _standard(self) -> Iterator[Item]:
        """Read JSON lines if the first line is an object; otherwise each line is a text, or the
        path of an image.
        """
        assert isinstance(sys.stdin, io.TextIOWrapper)
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict")
        with blamed("standard input"):
            start: list[str] = []
            for line in sys.stdin:
                start.append(line)
                if line.strip():
                    break
            lines = chain(start, sys.stdin)
            if start and _is_object(start[-1]):
                yield from self._objects(STANDARD, lines)
            else:
                yield from self._lines(lines)

    def _lines(self, lines: Iterable[str]) -> Iterator[Item]:
        """Yield lines of standard input that are texts, or paths of images."""
        for number, line in enumerate(lines, 1):
            content_of_line = line.rstrip("\n")
            if self.kind == "text":
                self._check_no_columns("standard input")
                yield Item(STANDARD, number, content_of_line)
            elif self.kind == "table":
                advice = "write one object with all columns per line, or name a file"
                raise InputError(f"standard input: line {number} is not JSON; {advice}")
            elif content_of_line:
                yield self._image(as_path(content_of_line), None)

    def _columns(self, names: Sequence[str], where: str) -> tuple[str | None, str | None]:
        """Return the column of the input (None for a table of features, which reads all columns),
        and the column of the label (None if there is none).

        Refused are a missing input column, a missing column of --label, and columns of one name.
        """
        if not names:
            raise InputError(f"{where}: there are no examples in it; check the file")
        column = find_column(names, self.input, INPUTS, where)
        label = find_column(names, self.label, LABELS, where)
        if "--label" in self.options and label is None:
            problem = f"{where}: there is no column {self.label!r} (--label)"
            advice = "name another column, or leave --label out"
            raise InputError(f"{problem}; {advice}. Its columns are {listed(names)}")
        if self.kind == "table":
            for name in names:
                find_column(names, name, (), where)  # refuses a second one of the name
            return None, label
        if column is None:
            problem = f"no column is called {', '.join(INPUTS[:-1])} or {INPUTS[-1]}"
            if self.input:
                problem = f"there is no column {self.input}"
            advice = f"name the column of the {self.kind}s with --input"
            columns = f"Its columns are {listed(names)}{other_separator(names)}"
            raise InputError(f"{where}: {problem}; {advice}. {columns}")
        return column, label

    def _check_no_columns(self, where: str) -> None:
        """Refuse --input and --label for inputs without columns."""
        if self.options:
            problem = f"{where}: has no columns, so {' and '.join(self.options)} cannot name one"
            raise InputError(f"{problem}; leave it out, or give a csv, tsv, jsonl or parquet file")

    def _row(
        self,
        file: str,
        number: int,
        row: Mapping[str, Any],
        columns: tuple[str | None, str | None],
        names: list[str] | None,
    ) -> Item:
        """Return the input in a row. `columns` are the two that `_columns` returns, and `names` the
        class names of numbers in the label column. A cell that is not of the model's kind is
        refused.
        """
        column, label = columns
        truth = None
        if label is not None:
            truth = self._truth(row[label], names)
        if column is None:
            return Item(_written(file), number, row, truth)
        raw = content(row[column])
        if self.kind == "text" and raw is None:
            raw = ""
        if not isinstance(raw, _TYPES[self.kind]):
            words: dict[type, str] = {type(None): "nothing", bytes: "an image", str: "a text"}
            thing = words.get(type(raw), f"a {type(raw).__name__}")
            problem = f"{file}: row {number} holds {thing}, but the model reads {self.kind}s"
            raise InputError(f"{problem}; name another column with --input, or repair the row")
        return Item(_written(file), number, raw, truth)

    def _hint(self, culprit: str, name: str) -> None:
        """Warn if a true class is only spelt in another way than in training: it then counts as not
        known.
        """
        class_ = self._spellings.get(loose(name))
        if class_ is not None:
            problem = f"{culprit} {short(name)!r} is not the class {short(class_)!r} of the model"
            advice = "spell them alike to get the accuracy"
            warn_once(f"{problem}, because case and blanks count; {advice}")

    def _truth(self, value: Any, names: list[str] | None) -> frozenset[str] | None:
        """Return the classes of a row from its label cell; None without a label, or for a class
        that the model lacks. Warns if the label is only another spelling of a class.
        """
        if isinstance(value, list):
            return self._truths(value, names or list(map(str, range(len(value)))))
        label = label_of(value, names)
        if label is None or self.several:  # with several labels at once a cell must be a list
            return None
        if label not in self.classes:
            self._hint("the label", label)
            return None
        return frozenset([label])

    def _truths(self, values: Sequence[Any], names: Sequence[str]) -> frozenset[str] | None:
        """Return the classes of a row from its list of 0 and 1; None if the list does not have the
        classes of the model.
        """
        if not self.several or len(names) != len(values) or not set(self.classes) <= set(names):
            return None
        present = {name for name, has in zip(names, values, strict=True) if has}
        return frozenset(present.intersection(self.classes))


def _joined(
    sources: Sequence[tuple[int | None, Iterator[Item]]],
) -> tuple[int | None, Iterator[Item]]:
    """Return the number of all inputs (None if one source does not know its own), and the inputs
    one after the other.
    """
    total: int | None = 0
    every = []
    for count, items in sources:
        every.append(items)
        if total is not None and count is not None:
            total += count
        else:
            total = None
    return total, chain.from_iterable(every)


def _written(path: Path | str) -> str:
    """Return a path as text that a UTF-8 file can hold, even if the path itself is not valid
    UTF-8.
    """
    return str(path).encode("utf-8", "backslashreplace").decode()


def _is_object(line: str) -> bool:
    """Return whether a line is an object of JSON, and so no text or path."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
