"""A folder of images: one folder per class, optionally below folders train, validation and test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from attittud_lab.config.options import as_path
from attittud_lab.data.source import Columns, Listing, Source, inside, warn_once
from attittud_lab.errors import InputError, counted

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
_SPLITS = ("train", "validation", "val", "valid", "dev", "test")


@dataclass(frozen=True)
class ImageFolder(Source):
    """Reads `root/CLASS/*.png` or `root/SPLIT/CLASS/*.png`."""

    root: Path

    @classmethod
    def open(cls, name: str) -> Self | None:
        """Return the source for a folder, which may not be empty; None for anything else."""
        path = as_path(name)
        if not path.is_dir():
            return None
        if not any(path.iterdir()):
            advice = "put one folder of images per class into it, or parquet, csv or jsonl files"
            raise InputError(f"{path}: the folder is empty; {advice}")
        return cls(path)

    @property
    def splits(self) -> list[str]:
        """Return the folders that are splits; none unless one is called train and has folders."""
        names = {folder.name for folder in _folders_in(self.root)}
        if "train" not in names or not _folders_in(self.root / "train"):
            return []
        return [name for name in _SPLITS if name in names]

    def listing(self, split: str | None, columns: Columns) -> Listing:
        """Return the images of all class folders, or of those of a split.

        Refused are a folder without class folders, a class without images, and a folder that is
        probably a misspelt split. Images outside of class folders are only warned of.
        """
        root = self.root
        if split:
            root = self.root / split
        folders = [inside(self.root, folder) for folder in _folders_in(root)]
        loose_images = sum(map(is_image, root.iterdir()))
        if not folders:
            advice = "make one for each class"
            if loose_images:
                advice = f"if it is itself a class, give {root.parent}"
            raise InputError(f"{root}: it contains no folder of images; {advice}")
        for folder in folders:
            _check_name(folder)
            if folder.name.lower() in _SPLITS and _folders_in(folder):
                names = "splits are called train, validation and test in lower case"
                raise InputError(f"{folder}: would be read as a class; {names}, so rename them")
        if loose_images:
            warn_once(f"{root}: {counted(loose_images, 'image')} in no class folder, not read")
        paths: list[Path] = []
        labels: list[int] = []
        for number, folder in enumerate(folders):
            images = list(filter(is_image, files_in(folder, self.root)))
            if not images:
                problem = f"{folder}: it contains no image ({', '.join(SUFFIXES)})"
                other = "give the path of the folder whose folders are the classes"
                raise InputError(f"{problem}; fill or remove it, or {other}")
            paths += images
            labels += [number] * len(images)
        return Listing(
            str(root),
            "image",
            len(paths),
            fetch=lambda rows: [paths[row] for row in rows],
            labels=np.array(labels),
            classes=[folder.name for folder in folders],
            names=lambda rows: [str(paths[row]) for row in rows],
        )


def _check_name(folder: Path) -> None:
    """Refuse a class whose folder has a name that is not UTF-8: no file could hold the name."""
    try:
        folder.name.encode()
    except UnicodeError:
        problem = f"{str(folder)!r}: the name of this class is not text in UTF-8"
        raise InputError(f"{problem}; rename the folder") from None


def _folders_in(root: Path) -> list[Path]:
    """Return the folders in a folder but hidden ones, in order of their names."""
    return sorted(
        path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")
    )


def files_in(root: Path, whole: Path) -> Iterator[Path]:
    """Yield all files below a folder but hidden ones, in order of their names, folder by folder.

    No link may leave the folder `whole`. Links to folders are not followed.
    """
    for name, inner, files in os.walk(root, onerror=_refuse):
        folder = Path(name)
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        for path in map(folder.joinpath, inner):
            if inside(whole, path).is_symlink():
                warn_once(f"{path}: is a link to a folder, so its files are left out")
        for path in map(folder.joinpath, sorted(files)):
            if not path.name.startswith("."):
                yield inside(whole, path)


def _refuse(error: OSError) -> None:
    """Refuse a folder that cannot be listed; os.walk would leave it out silently."""
    raise InputError(f"{error.filename}: cannot be read ({error.strerror}); change its permissions")


def is_image(path: Path) -> bool:
    """Return whether the suffix of a file is one of an image."""
    return path.suffix.lower() in SUFFIXES
