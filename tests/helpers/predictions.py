"""Runs of each kind of data, and the digits that a run was tested on."""

import json
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from attittud_lab.config.load import load
from attittud_lab.runs.model import ModelFile
from attittud_lab.training.train import run
from tests.helpers.commands import call

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
    short = ["training.guided.steps=2", "training.guided.evaluations=1"]
    run(load(FILES / "jobs" / "several.yaml", short), run_dir=folder / "several")
    return folder / "several"


def reseal(run: Path) -> None:
    """Write the checksums of the files as they are now."""
    about = json.loads((run / "model.json").read_text())
    ModelFile(**about).sealed(run).write(run)


def rows_of_test(run: Path) -> list[int] | None:
    """The rows of the source that the run was tested on; None for all."""
    rows = json.loads((run / "data.json").read_text())["primary"]["test"]["rows"]
    return None if rows == "all" else rows


def of_digits(run: Path, folder: Path) -> tuple[Path, list[str]]:
    """PNG files of the embedded images."""
    (folder / "images").mkdir()
    bunch = load_digits()
    rows = rows_of_test(run) or []
    for position, row in enumerate(rows):
        pixels = np.round(bunch.images[row] * (255 / 16)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{position:04}.png")
    return folder / "images", [str(bunch.target[row]) for row in rows]
