"""CheXpert's layout in miniature: its tables, its paths, its uncertain findings, and what is
refused.
"""

from pathlib import Path

import pytest

from attittud_lab.config.load import loads
from attittud_lab.data.chexpert import COMPETITION, CheXpert
from attittud_lab.data.prepare import Prepared, prepare
from attittud_lab.data.source import Columns
from attittud_lab.errors import InputError
from tests.helpers.chexpert import FINDINGS, root, write

__all__ = ["root"]  # fixtures


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


def test_a_finding_of_an_unknown_value_is_refused(root: Path) -> None:
    change(root, ",1.0", ",2.0")
    with pytest.raises(InputError, match=r"'2\.0'"):
        read(root)


def change(root: Path, old: str, new: str) -> None:
    path = root / "train.csv"
    path.write_text(path.read_text().replace(old, new, 1))
