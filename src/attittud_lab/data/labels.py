"""What the cells of a label column mean: one rule for every file format, for training and for
prediction.

`label_of` looks at one cell alone. So the same cell means the same in every file, split and batch.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from attittud_lab.data.cells import is_list, is_number, is_text, plain
from attittud_lab.data.rows import LABELS
from attittud_lab.data.source import Labels, first_of
from attittud_lab.data.spelling import HALF, NUMBER, folded
from attittud_lab.errors import InputError, short

_WHOLE = re.compile(r"(?P<sign>-?)(?P<digits>0|[1-9][0-9]*)(\.0*)?")
_LABEL = "a label is a whole number, a text or a list of 0 and 1"
_ADVICE = f"{_LABEL}; convert the column to one of them"


def label_of(cell: Any, names: Sequence[str] | None = None) -> str | None:
    """Return the class of a cell; None if it is no label: empty, blank, null, NaN, or a negative
    whole number.

    A whole number has the same class however it is written: 1, 1.0, or a text of either with blanks
    around it. A truth value is the class True or False in any spelling. Every other text is a class
    as it is. `names` are the class names of numbers.
    """
    if cell is None or cell != cell:  # NaN differs from itself
        return None
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    if names is not None and isinstance(cell, int) and 0 <= cell < len(names):
        return names[cell]
    text = str(cell)
    stripped = text.strip()
    if not stripped:
        return None
    whole = _WHOLE.fullmatch(stripped)
    if whole is not None:
        if whole["sign"] == "-" and whole["digits"] != "0":
            return None
        return whole["digits"]
    spelling = folded(stripped)
    if spelling in ("True", "False"):
        return spelling
    return text


def labels_of(table: pa.Table, column: str, culprit: str) -> tuple[Labels, list[str]]:
    """Return class numbers (n) with -1 for a missing label, or 0 and 1 (n x labels) for lists, and
    the classes.

    Classes are the class names of the file if it has some for numbers; else the labels in order,
    whole numbers first. Fractions, other types, and numbers without a class name are refused.
    """
    values = plain(table[column])
    kind = values.type
    names = class_names(table, column)
    if HALF.search("".join(names or ())):
        problem = f"{culprit} has a class name with half a character (a lone surrogate)"
        raise InputError(f"{problem}; correct the file's metadata")
    if is_list(kind):
        return _several(values.to_pylist(), names, culprit)
    if is_text(kind):
        names = None  # class names are for numbers
    elif not (pa.types.is_boolean(kind) or pa.types.is_null(kind) or is_number(kind)):
        raise InputError(f"{culprit} holds {str(kind)[:60]}; {_ADVICE}")
    cells = values.to_pylist()
    meaning = {cell: label_of(cell, names) for cell in set(cells)}
    present = {label for label in meaning.values() if label is not None}
    if names is None:
        _check_whole(present, culprit)
        classes = sorted(present, key=_in_order)
    else:
        unnamed = sorted(present.difference(names), key=_in_order)
        if unnamed:
            problem = f"{culprit} has the class number {unnamed[-1]}"
            reason = f"there are only {len(names)} class names"
            advice = "correct the labels or the file's metadata"
            raise InputError(f"{problem}, but {reason}; {advice}")
        classes = names
    number_of: dict[str | None, int] = {name: number for number, name in enumerate(classes)}
    # A cell of NaN differs from itself, so `meaning` may not have it.
    labels = [number_of.get(meaning.get(cell), -1) for cell in cells]
    return np.array(labels, dtype=np.int64), classes


def _in_order(name: str) -> tuple[int, str]:
    """Return a key that sorts whole numbers by their size, and other names behind them."""
    if _WHOLE.fullmatch(name):
        return len(name), name
    return sys.maxsize, name


def _check_whole(classes: Collection[str], culprit: str) -> None:
    """Refuse a column of numbers that are not all whole: they are measurements rather than
    classes.
    """
    fractions = []
    for name in classes:
        if not re.match(NUMBER, name):
            return
        if not _WHOLE.fullmatch(name) and not float(name).is_integer():
            fractions.append(name)
    if fractions:
        raise InputError(
            f"{culprit} holds fractions such as {short(min(fractions), 40)}; {_ADVICE}"
        )


def _several(rows: list[Any], names: list[str] | None, culprit: str) -> tuple[Labels, list[str]]:
    """Return rows of 0 and 1, one column for each label, and the names of the labels: without names
    their numbers.
    """
    if any(not row or len(row) != len(rows[0]) for row in rows):
        problem = f"{culprit} has lists that are empty or have different lengths"
        raise InputError(f"{problem}; give 0 or 1 for each label")
    if not all(label in (0, 1) for label in chain.from_iterable(rows)):
        raise InputError(f"{culprit} has lists of other values; they must hold 0 and 1 only")
    labels = np.array(rows, dtype=np.int64)
    count = labels.shape[1]
    if names is None or len(names) != count:
        names = list(map(str, range(count)))
    return labels, names


def class_names(table: pa.Table, column: str) -> list[str] | None:
    """Return the class names of one column from the schema's metadata.

    They are in the hub's own form, in a mapping `class_names` by column, under the column's own key
    (`fine_label_names`), or in a list `class_names`. A list applies to the column that is read by
    default, or to a column that has all its classes.
    """
    metadata = table.schema.metadata or {}
    key = f"{column}_names".encode()
    try:
        if b"huggingface" in metadata:
            feature = json.loads(metadata[b"huggingface"])["info"]["features"][column]
            names = feature.get("names") or feature.get("feature", {}).get("names")
        elif key in metadata:
            names = json.loads(metadata[key])
        else:
            names = json.loads(metadata[b"class_names"])
            usual = first_of(LABELS, table.column_names) or column
            if isinstance(names, dict):
                names = names.get(column)
            elif column != usual and not pa.types.is_nested(table[column].type):
                if len(table[column].unique()) != len(names):
                    return None  # the list belongs to another column
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(names, list) or not names:
        return None
    words = list(map(str, names))
    if len(set(words)) != len(words):
        return None
    return words
