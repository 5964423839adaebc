"""CheXpert's layout in miniature: its tables, its paths, its uncertain findings, and what is
refused.
"""

from pathlib import Path

import numpy as np
import pytest

from attittud_lab.config.load import loads
from attittud_lab.data.chexpert import COMPETITION, CheXpert
from attittud_lab.data.prepare import Prepared, prepare
from attittud_lab.data.source import Columns
from attittud_lab.errors import InputError
from tests.helpers.chexpert import FINDINGS, root, write

__all__ = ["root"]  # fixtures
NAME = "CheXpert-v1.0-small"


def read(path: Path, more: str = "") -> Prepared:
    return prepare(loads(f"data: {{primary: {{path: {path}{more}}}, image_size: 12}}").data, 0)


def test_uncertain_is_positive_and_blank_is_negative(root: Path) -> None:
    rows = write(root, "train", range(1, 41))
    listing = CheXpert(root).listing("train", Columns())
    assert listing.classes == FINDINGS and listing.labels is not None and listing.multi_label
    wanted = [[int(row[name] in ("1.0", "-1.0")) for name in FINDINGS] for row in rows]
    assert listing.labels.tolist() == wanted
    assert {row[name] for row in rows for name in FINDINGS} == {"", "0.0", "1.0", "-1.0"}


def test_the_five_findings_of_the_competition_and_all_views_unless_others_are_named(
    root: Path,
) -> None:
    data = read(root, ", test_split: valid, validation: 10")
    assert data.primary.classes == COMPETITION and data.primary.objective == "multi_label"
    assert data.primary.examples.inputs.shape[1:] == (
        1,
        12,
        12,
    )  # grey stays grey, the middle square is scaled
    counts = {name: part["count"] for name, part in data.record["primary"].items()}
    assert (
        counts["test"] == 14
        and counts["validation"] <= 10
        and counts["train"] + counts["validation"] == 60
    )
    data = read(
        root,
        ", test_split: valid, validation: 10, classes: [Fracture, Edema], where: {Frontal/Lateral: Frontal}",
    )
    assert data.primary.classes == ["Fracture", "Edema"]
    assert sum(part["count"] for part in data.record["primary"].values()) == 40 + 9


def test_no_patient_is_in_two_splits(root: Path) -> None:
    data = read(root)
    listing = CheXpert(root).listing("train", Columns())
    assert listing.groups is not None
    parts = data.record["primary"]
    # valid.csv is validation unless it is named as test; the test set is cut out of train.csv.
    assert parts["validation"]["count"] == 14 and 9 <= parts["test"]["count"] <= 12
    train, test = (
        {listing.groups[row] for row in parts[name]["rows"]} for name in ("train", "test")
    )
    assert not train & test and len(train | test) == 40
    write(root, "valid", range(40, 50), blanks=False)
    with pytest.raises(
        InputError, match=r"1 group is in (validation and in train|test and in validation)"
    ):
        read(root)


def change(root: Path, old: str, new: str) -> None:
    path = root / "train.csv"
    path.write_text(path.read_text().replace(old, new, 1))


def test_paths_stay_in_the_folder(root: Path, tmp_path: Path) -> None:
    first = f"{NAME}/train/patient00001/study1/view1_frontal.jpg"
    (tmp_path / "patient1.jpg").write_bytes(
        (root / "train/patient00001/study1/view1_frontal.jpg").read_bytes()
    )
    before = (root / "train.csv").read_text()
    for path in (f"{NAME}/../patient1.jpg", f"{tmp_path}/patient1.jpg"):
        change(root, first, path)
        with pytest.raises(InputError, match="leaves the folder"):
            CheXpert(root).listing("train", Columns()).fetch(np.array([0]))
        (root / "train.csv").write_text(before)
    image = root / "train/patient00001/study1/view1_frontal.jpg"
    image.unlink()
    with pytest.raises(InputError, match="the table names this image, but it is not there"):
        read(root)
    image.symlink_to(tmp_path / "patient1.jpg")
    with pytest.raises(InputError, match="is a link out of"):
        CheXpert(root).listing("train", Columns()).fetch(np.array([0]))


def test_other_tables_are_refused_with_an_explanation(root: Path) -> None:
    change(root, ",1.0", ",2.0")
    with pytest.raises(
        InputError,
        match=r"has the value '2.0' in row \d+; a finding is 1, 0, -1 \(uncertain\) or blank",
    ):
        read(root)
    change(root, ",2.0", ",1.0")
    change(root, "patient00001", "person")
    with pytest.raises(InputError, match="names no patient"):
        read(root)
    for more, message in {
        "label: Edema": "choose them with classes:, not with label:",
        "group: Sex": "is always grouped by patient",
        "input: Sex": "leave input: out",
    }.items():
        with pytest.raises(InputError, match=message):
            read(root, f", {more}")
    # It ignores a table of another kind in a folder of csv files.
    (root / "train.csv").write_text("text,label\n")
    assert not CheXpert.recognises(root)
