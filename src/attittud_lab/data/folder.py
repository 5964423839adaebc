"""A folder of images: one folder per class, optionally below folders train, validation and test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attittud_lab.data.listing import Columns, Listing
from attittud_lab.errors import InputError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
_SPLITS = ("train", "validation", "val", "valid", "dev", "test")


def inside(root: Path, path: Path) -> Path:
    """`path`, if it really lies below `root`: a link out of the folder would read what nobody meant to share."""
    if not path.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{path}: is a link out of {root}; copy the file into the folder, or remove the link")
    return path


@dataclass(frozen=True)
class ImageFolder:
    """Reads `root/CLASS/*.png` or `root/SPLIT/CLASS/*.png`."""

    root: Path

    @property
    def splits(self) -> list[str]:
        """Folders are splits when one of them is called train and no image lies directly in it."""
        names = {folder.name for folder in self._folders(self.root)}
        if "train" not in names or not self._folders(self.root / "train"):
            return []
        return [name for name in _SPLITS if name in names]

    def listing(self, split: str | None, columns: Columns) -> Listing:
        root = self.root / split if split else self.root
        folders = self._folders(root)
        if not folders:
            raise InputError(
                f"{root}: there is no folder in it; make one folder of images for each class, named after the class"
            )
        paths: list[Path] = []
        labels: list[int] = []
        for number, folder in enumerate(folders):
            found = sorted(
                path
                for path in folder.rglob("*")
                if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
            )
            if not found:
                raise InputError(
                    f"{folder}: there is no image in it ({', '.join(SUFFIXES)}); fill or remove the folder"
                )
            paths += [inside(self.root, path) for path in found]
            labels += [number] * len(found)
        return Listing(
            str(root),
            "image",
            len(paths),
            lambda rows: [paths[row] for row in rows],
            np.array(labels),
            [f.name for f in folders],
        )

    def columns(self, split: str | None) -> list[str]:
        return []

    def _folders(self, root: Path) -> list[Path]:
        found = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
        return [inside(self.root, path) for path in found]
