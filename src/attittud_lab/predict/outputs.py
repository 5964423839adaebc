"""Predictions as csv, jsonl or parquet, row by row; a file appears under its name when it is
complete.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from attittud_lab.errors import InputError
from attittud_lab.files import replacing
from attittud_lab.predict.inputs import Item

CURE = "choose another file with --output"
_FORMULA = re.compile(
    "^(?=[-=+@\uff1d\uff0b\uff0d\uff20\t\r\n])|(?<=[;\t\r\n])(?=[-=+@\uff1d\uff0b\uff0d\uff20])"
)
"""A spreadsheet takes a cell that begins with one of these for a formula, which may open links or
run programs. In many countries it begins a new cell behind a semicolon.
"""
Write = Callable[[Sequence[Item], Sequence[Any], npt.NDArray[np.float32]], None]
"""Takes the inputs of a batch, their labels (each a text, or a list of them) and their
probabilities, n x classes.
"""


def check_output(
    path: Path | None, inputs: Sequence[str], classes: Sequence[str], *, several: bool
) -> None:
    """Refuse an output that cannot be written, before anything is predicted: an unknown format, a
    folder that is not there, an input file that it would replace, or classes that csv cannot hold.
    """
    suffix = ".csv"
    if path is not None:
        suffix = path.suffix.lower()
    if suffix not in FORMATS:
        problem = f"{path}: cannot write a {suffix or 'file without a suffix'}"
        raise InputError(f"{problem}; {CURE}, with one of {', '.join(FORMATS)}")
    if suffix == ".csv" and several and any(";" in name for name in classes):
        problem = "a class has a semicolon in its name, which separates labels in csv"
        raise InputError(f"{problem}; use --output FILE.jsonl")
    if path is None:
        return
    if not path.parent.is_dir():
        raise InputError(f"{path}: its folder does not exist; make it, or {CURE}")
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is not a regular file; {CURE}")
    for name in inputs:
        if Path(name).exists() and path.exists() and path.samefile(name):
            raise InputError(f"{path}: is also an input, and would be replaced; {CURE}")


def harmless(cell: str) -> str:
    """Put an apostrophe wherever a spreadsheet would find the beginning of a formula."""
    return _FORMULA.sub("'", cell)


@contextmanager
def open_output(
    path: Path | None, classes: Sequence[str], *, several: bool, raw: bool = False
) -> Iterator[Write]:
    """Return a function that writes a batch, to standard output if there is no path.

    `raw`: texts in csv are written as they are, also those that a spreadsheet would take for a
    formula. The file has another name until the end, so that a file cut short by an error or a
    signal cannot be mistaken for a whole one.
    """
    if path is None:
        with _csv(sys.stdout, classes, several, raw=raw) as write:
            yield write
            sys.stdout.flush()
        return
    open_format = FORMATS[path.suffix.lower()]
    if open_format is _csv:
        open_format = partial(_csv, raw=raw)
    with replacing(path, CURE) as part, open_format(part, classes, several) as write:
        yield write


@contextmanager
def _csv(
    target: Path | TextIO, classes: Sequence[str], several: bool, *, raw: bool
) -> Iterator[Write]:
    """Write one row for each input: file, row, label (several with semicolons), probabilities."""
    with _opened(target) as file:
        plain_rows = csv.writer(file, lineterminator="\n")
        quoted_rows = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)

        def write_row(cells: Sequence[Any]) -> None:
            # Before Python 3.13 the writer leaves a carriage return unquoted, and a reader would
            # begin a new row there.
            if "\r" in "".join(map(str, cells)):
                quoted_rows.writerow(cells)
            else:
                plain_rows.writerow(cells)

        heading = ["file", "row", _label(several), *(f"p_{name}" for name in classes)]
        if not raw:
            heading = list(map(harmless, heading))

        # The heading is written with the first batch, so an error before it leaves standard output
        # empty.
        def write(
            items: Sequence[Item], labels: Sequence[Any], likely: npt.NDArray[np.float32]
        ) -> None:
            """Write a batch, see `Write`."""
            if heading:
                write_row(heading)
                heading.clear()
            for item, label, row in zip(items, labels, likely.tolist(), strict=True):
                file_name = item.file
                words = label
                if several:
                    words = ";".join(label)
                if not raw:
                    file_name = harmless(file_name)
                    words = harmless(words)
                write_row([file_name, item.row, words, *(f"{value:.6g}" for value in row)])

        yield write


@contextmanager
def _jsonl(target: Path, classes: Sequence[str], several: bool) -> Iterator[Write]:
    """Write one object for each input; its probabilities are an object by class."""
    with _opened(target) as file:

        def write(
            items: Sequence[Item], labels: Sequence[Any], likely: npt.NDArray[np.float32]
        ) -> None:
            """Write a batch, see `Write`; probabilities have six digits."""
            for item, label, row in zip(items, labels, likely.tolist(), strict=True):
                rounded = [float(f"{value:.6g}") for value in row]
                line = {
                    "file": item.file,
                    "row": item.row,
                    _label(several): label,
                    "probabilities": dict(zip(classes, rounded, strict=True)),
                }
                file.write(json.dumps(line, ensure_ascii=False) + "\n")

        yield write


@contextmanager
def _parquet(target: Path, classes: Sequence[str], several: bool) -> Iterator[Write]:
    """Write the columns of csv with types; several labels are a list."""
    import pyarrow as pa
    import pyarrow.parquet

    words = pa.string()
    if several:
        words = pa.list_(words)
    columns = [("file", pa.string()), ("row", pa.int64()), (_label(several), words)]
    columns += [(f"p_{name}", pa.float32()) for name in classes]
    schema = pa.schema(columns)
    with pa.parquet.ParquetWriter(target, schema) as file:

        def write(
            items: Sequence[Item], labels: Sequence[Any], likely: npt.NDArray[np.float32]
        ) -> None:
            """Write a batch, see `Write`: one array for each column of the schema."""
            arrays = [
                pa.array([item.file for item in items], pa.string()),
                pa.array([item.row for item in items], pa.int64()),
                pa.array(list(labels), words),
                *map(pa.array, likely.T.copy()),
            ]
            file.write_table(pa.Table.from_arrays(arrays, schema=schema))

        yield write


def _opened(target: Path | TextIO) -> AbstractContextManager[TextIO]:
    """Return a block that closes a file at its end, but not standard output."""
    if isinstance(target, Path):
        return target.open("w", encoding="utf-8", newline="")
    return nullcontext(target)


def _label(several: bool) -> str:
    """Return the name of the column of labels."""
    if several:
        return "labels"
    return "label"


FORMATS: Mapping[str, Callable[..., Any]] = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
