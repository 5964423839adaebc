"""CheXpert's layout in miniature."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attittud_lab.data.chexpert import ABOUT

FINDINGS = [
    "No Finding",
    "Enlarged Cardiomediastinum",
    "Cardiomegaly",
    "Lung Opacity",
    "Lung Lesion",
    "Edema",
    "Consolidation",
    "Pneumonia",
    "Atelectasis",
    "Pneumothorax",
    "Pleural Effusion",
    "Pleural Other",
    "Fracture",
    "Support Devices",
]


NAME = "CheXpert-v1.0-small"


def write(root: Path, split: str, patients: range, *, blanks: bool = True) -> list[dict[str, str]]:
    """As the release has it: grey JPEGs that are not square, two views of every second study, blank
    cells.
    """
    random = np.random.default_rng(patients.start)
    rows = []
    for patient in patients:
        for view in ("frontal", "lateral")[: 1 + patient % 2]:
            path = f"{split}/patient{patient:05d}/study1/view1_{view}.jpg"
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            pixels = random.integers(0, 255, (18, 24), dtype=np.uint8)
            Image.fromarray(pixels).save(root / path)
            values = ["1.0", "0.0", "-1.0", ""] if blanks else ["1.0", "0.0"]
            row = dict(
                zip(ABOUT, [f"{NAME}/{path}", "Female", "61", view.capitalize(), "AP"], strict=True)
            )
            rows.append(row | {name: str(random.choice(values)) for name in FINDINGS})
    with (root / f"{split}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*ABOUT, *FINDINGS])
        writer.writeheader()
        writer.writerows(rows)
    return rows


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "x-rays"  # not under the name in the tables
    folder.mkdir()
    write(folder, "train", range(1, 41))
    write(folder, "valid", range(64541, 64550), blanks=False)
    return folder
