"""Runs of each kind of data, and the inputs of their test examples without labels."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from attittud_lab.config.load import load
from attittud_lab.runs.model import ModelFile
from attittud_lab.training.train import run
from tests.helpers.commands import call
from tests.helpers.data_files import read_rows, write_columns

FILES = Path(__file__).parent / "prediction_files"
JOBS = ("pictures", "words", "texts", "findings", "labels")
"""Images in folders, hashed words, an encoder, several labels of images and of texts."""


def workplace(folder: Path) -> Path:
    """A folder with the data and the encoder of the jobs."""
    for name in ("jobs", "data", "encoder"):
        (folder / name).symlink_to(FILES / name)
    return folder


def train(name: str, *settings: str) -> Path:
    """The folder of a run, trained in the current folder."""
    assert call("train", f"jobs/{name}.yaml", "output=new", "--quiet", *settings) == 0
    (result,) = Path("new", name).rglob("result.json")
    return result.parent


def digits_run(folder: Path) -> Path:
    """The folder of a short run on the digits 1, 4 and 7, whose data are built in."""
    config = load(
        FILES / "jobs" / "several.yaml",
        ["training.guided.steps=2", "training.guided.evaluations=1"],
    )
    run(config, run_dir=folder / "several")
    return folder / "several"


def reseal(run: Path) -> None:
    """Write the checksums of the files as they are now."""
    about = json.loads((run / "model.json").read_text())
    ModelFile(**about).sealed(run).write(run)


def tested(run: Path) -> list[int] | None:
    """The rows of the source that the run was tested on; None for all."""
    rows = json.loads((run / "data.json").read_text())["primary"]["test"]["rows"]
    return None if rows == "all" else rows


def of_table(
    path: str, input_: str, label: str, where: Callable[[dict[str, Any]], bool] = lambda _: True
) -> Any:
    """A way to write the inputs of some rows as a file without labels, and their labels."""

    def write(run: Path, folder: Path) -> tuple[Path, list[Any]]:
        source = Path(path)
        rows = list(filter(where, read_rows(source)))
        chosen = [rows[number] for number in tested(run) or range(len(rows))]
        inputs = {input_: [row[input_] for row in chosen]}
        target = write_columns(folder / f"unlabelled{source.suffix}", inputs)
        return target, [row[label] for row in chosen]

    return write


def of_pictures(_run: Path, folder: Path) -> tuple[Path, list[Any]]:
    """Copies without their folders' names, which are the classes."""
    paths = sorted(Path("data/pictures/test").rglob("*.png"))
    (folder / "all").mkdir()
    for number, path in enumerate(paths):
        shutil.copy(path, folder / "all" / f"{number:03}.png")
    return folder / "all", [path.parent.name for path in paths]


def of_digits(run: Path, folder: Path) -> tuple[Path, list[Any]]:
    """PNG files of the embedded images."""
    (folder / "images").mkdir()
    bunch = load_digits()
    rows = tested(run) or []
    for position, row in enumerate(rows):
        pixels = np.round(bunch.images[row] * (255 / 16)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{position:04}.png")
    return folder / "images", [str(bunch.target[row]) for row in rows]


INPUTS: dict[str, Callable[[Path, Path], tuple[Path, list[Any]]]] = {
    "pictures": of_pictures,
    "digits": of_digits,
    "words": of_table("data/reviews.csv", "text", "label"),
    "texts": of_table("data/reviews.csv", "text", "label"),
    "findings": of_table(
        "data/findings.parquet", "image", "labels", lambda row: row["view"] == "front"
    ),
    "labels": of_table("data/labels.jsonl", "text", "tags"),
}
