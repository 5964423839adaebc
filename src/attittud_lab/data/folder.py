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
        path = as_path(name)
        if not path.is_dir():
            return None
        if not any(path.iterdir()):
            cure = "put one folder of images per class into it, or parquet, csv or jsonl files"
            raise InputError(f"{path}: the folder is empty; {cure}")
        return cls(path)

    @property
    def splits(self) -> list[str]:
        """The folders that are splits: one of them must be called train and contain folders."""
        names = {folder.name for folder in self._folders(self.root)}
        if "train" not in names or not self._folders(self.root / "train"):
            return []
        return [name for name in _SPLITS if name in names]

    def listing(self, split: str | None, columns: Columns) -> Listing:
        root = self.root / split if split else self.root
        folders = self._folders(root)
        loose = sum(is_image(path) for path in root.iterdir())
        if not folders:
            above = "the folder above it" if root.parent == Path() else root.parent
            low = f"; if it is itself one of the classes, give {above}" if loose else ""
            raise InputError(
                f"{root}: it contains no folder; make one folder of images for each class{low}"
            )
        splits = [
            folder.name
            for folder in folders
            if folder.name.lower() in _SPLITS and self._folders(folder)
        ]
        if splits:
            cure = "splits are called train, validation and test in lower case, so rename them"
            raise InputError(
                f"{root}: its folders {', '.join(splits)} would be read as classes; {cure}"
            )
        if loose:
            warn_once(
                f"{root}: {counted(loose, 'image is', 'images are')} in no class folder and not read"
            )
        paths: list[Path] = []
        labels: list[int] = []
        for number, folder in enumerate(folders):
            images = [inside(self.root, path) for path in files_in(folder) if is_image(path)]
            if not images:
                lower = class_root(root)
                if lower is None:
                    hint = ""
                else:
                    hint = f", or did you mean {lower}, which contains folders of images?"
                raise InputError(
                    f"{folder}: it contains no image ({', '.join(SUFFIXES)}); fill or remove it{hint}"
                )
            paths += images
            labels += [number] * len(images)
        names = [folder.name for folder in folders]
        return Listing(
            str(root),
            "image",
            len(paths),
            fetch=lambda rows: [paths[i] for i in rows],
            labels=np.array(labels),
            classes=names,
            names=lambda rows: [str(paths[i]) for i in rows],
        )

    def _folders(self, root: Path) -> list[Path]:
        return [inside(self.root, path) for path in _folders_in(root)]


def class_root(root: Path, deepest: int = 3) -> Path | None:
    """Return the first folder inside of `root` that contains folders of images: perhaps the one
    that was meant.
    """
    folders = _folders_in(root)
    for folder in folders:
        if any(path.is_dir() and any(map(is_image, path.iterdir())) for path in folder.iterdir()):
            return folder
    for folder in folders if deepest else ():
        lower = class_root(folder, deepest - 1)
        if lower is not None:
            return lower
    return None


def _folders_in(root: Path) -> list[Path]:
    return sorted(
        path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")
    )


def files_in(root: Path) -> Iterator[Path]:
    """Yield all files below a folder but hidden ones, in order of their names, folder by folder."""

    def refuse(error: OSError) -> None:
        raise InputError(
            f"{error.filename}: cannot be read ({error.strerror}); change its permissions"
        )

    for folder, inner, files in os.walk(root, onerror=refuse):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        for name in inner:
            path = Path(folder, name)
            if path.is_symlink():
                warn_once(
                    f"{path}: is a link to a folder, so its files are left out; copy them if you need them"
                )
        yield from (Path(folder, name) for name in sorted(files) if not name.startswith("."))


def is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
