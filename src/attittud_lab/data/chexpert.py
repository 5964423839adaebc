"""CheXpert's own layout (Irvin et al. 2019): train.csv and valid.csv with 14 findings, images by
patient and study.

Uncertain findings (-1) count as positive and blank findings as negative, as in the ATTITTUD paper's
release. Frontal and lateral views are read, since the paper's 231 test images are nearly all of
valid.csv, which has only 202 frontal ones. `where: {Frontal/Lateral: Frontal}` reads the frontal
views alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Self

import numpy as np
import pyarrow as pa

from attittud_lab.config.options import as_path
from attittud_lab.data.rows import read_file
from attittud_lab.data.source import Columns, Listing, Raw, Rows, inside, joined
from attittud_lab.data.tables import filtered, shards
from attittud_lab.errors import InputError

ABOUT = ("Path", "Sex", "Age", "Frontal/Lateral", "AP/PA")
COMPETITION = ["Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Pleural Effusion"]
"""The five findings that the data set's authors, and the paper, evaluate."""
GROUP = "patient"
_SPLITS = ("train", "valid", "test")
_PATIENT = re.compile(r"patient\d+")
_MEANING = {"": 0, "nan": 0, "0": 0, "0.0": 0, "1": 1, "1.0": 1, "-1": 1, "-1.0": 1}
"""The meaning of the cells of a finding."""


@dataclass(frozen=True)
class CheXpert:
    """Reads `root/train.csv`, `root/valid.csv` and the images below `root`. A patient is never in
    two splits.
    """

    root: Path

    @classmethod
    def recognises(cls, folder: Path) -> bool:
        """Whether a folder is CheXpert, by the heading of one of its tables."""
        for path in (folder / f"{name}.csv" for name in _SPLITS):
            try:
                if path.is_file():
                    with path.open(encoding="utf-8-sig", errors="replace") as file:
                        return file.read(100).startswith(",".join(ABOUT[:4]))
            except OSError:  # one that may not be read
                continue
        return False

    @classmethod
    def open(cls, name: str) -> Self | None:
        """Open only the whole folder: a part of it would be a table without inputs, or images
        sorted by patient.
        """
        path = as_path(name)
        meant = path.parent if path.stem in _SPLITS and cls.recognises(path.parent) else None
        if path.is_dir() and meant is None:
            if cls.recognises(path):
                return cls(path)
            if not shards(path):  # perhaps the folder that it was unpacked into
                inner = (
                    inner
                    for inner in sorted(path.iterdir())
                    if inner.is_dir() and cls.recognises(inner)
                )
                meant = next(inner, None)
        if meant is not None:
            raise InputError(
                f"{path}: CheXpert is read from the folder of its tables; did you mean {meant}?"
            )
        return None

    @property
    def splits(self) -> list[str]:
        return [name for name in _SPLITS if (self.root / f"{name}.csv").is_file()]

    def columns(self, split: str | None) -> list[str]:
        return [*ABOUT, GROUP]

    def listing(self, split: str | None, columns: Columns) -> Listing:
        if split is None:
            return joined([self.listing(name, columns) for name in self.splits])
        where = f"{self.root} ({split})"
        table = read_file(inside(self.root, self.root / f"{split}.csv"))
        _check(table, where, columns)
        table = filtered(table, where, columns.where)
        paths: list[str] = table["Path"].to_pylist()
        findings = [name for name in table.column_names if name not in ABOUT]
        labels = np.stack([_finding(table, name, where) for name in findings], 1)
        # The paths in a table begin with the name that the folder had when it was made.
        first = 0 if _is_file(self.root / paths[0]) else 1

        def fetch(rows: Rows) -> list[Raw]:
            return [self._image(paths[row], first) for row in rows]

        usual = COMPETITION if all(name in findings for name in COMPETITION) else None
        groups = [_patient(path, where) for path in paths]
        listing = Listing(where, "image", len(paths), fetch, labels, findings, usual, groups)
        return replace(listing, names=lambda rows: [paths[row] for row in rows])

    def _image(self, path: str, first: int) -> Path:
        parts = PurePosixPath(path).parts
        if ".." in parts or PurePosixPath(path).is_absolute():
            raise InputError(
                f"{self.root}: the Path {path!r} leaves the folder; use the table that came with the data"
            )
        image = self.root.joinpath(*parts[first:])
        if not _is_file(image):
            raise InputError(
                f"{image}: the table names this image, but it is not there; unpack the images too"
            )
        return inside(self.root, image)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that no file can have
        return False


def _check(table: pa.Table, where: str, columns: Columns) -> None:
    names = table.column_names
    twice = [name for name in names if names.count(name) > 1]
    if "Path" not in names or twice:
        wrong = f"has the column {twice[0]} twice" if twice else "has no column Path"
        raise InputError(f"{where}: its table {wrong}; use the table that came with the data")
    if columns.group not in (None, GROUP):
        raise InputError(
            f"{where}: is always grouped by {GROUP}; set data.primary.group: {GROUP}, or leave it out"
        )
    if columns.label is not None:
        raise InputError(
            f"{where}: its labels are its findings; choose them with classes:, not with label:"
        )
    if columns.input not in (None, "Path"):
        raise InputError(f"{where}: its images are named in the column Path; leave input: out")


def _finding(table: pa.Table, name: str, where: str) -> np.ndarray:
    """0 or 1 for each row."""
    cells = [cell.strip() for cell in table[name].to_pylist()]
    for row, cell in enumerate(cells, 1):
        if cell not in _MEANING:
            problem = f"{where}: {name!r} has the value {cell!r} in row {row}"
            raise InputError(f"{problem}; a finding is 1, 0, -1 (uncertain) or blank")
    return np.array([_MEANING[cell] for cell in cells], dtype=np.int64)


def _patient(path: str, where: str) -> str:
    match = _PATIENT.search(path)
    if match is None:
        raise InputError(
            f"{where}: the Path {path!r} names no patient (patient00001/...); use the table that came with the data"
        )
    return match[0]
