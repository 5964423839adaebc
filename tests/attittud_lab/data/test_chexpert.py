"""CheXpert's layout in miniature: its tables, its paths, its uncertain findings, and what is
refused.
"""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attittud_lab.config.load import load, loads
from attittud_lab.data.chexpert import COMPETITION, CheXpert
from attittud_lab.data.prepare import Prepared, prepare
from attittud_lab.data.source import Columns, open_source
from attittud_lab.data.tables import Tables
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


def test_grey_x_rays_mixed_with_photographs_have_three_channels(root: Path, tmp_path: Path) -> None:
    for number in range(8):
        folder = tmp_path / "photos" / str(number % 2)
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 255, (12, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    config = load(Path(__file__).parents[3] / "configs" / "chexpert.yaml")
    assert config.data.primary.test_split == "valid" and config.data.primary.group == "patient"
    text = f"data: {{primary: {root}, auxiliary: {{photographs: {tmp_path / 'photos'}}}, image_size: 12}}"
    data = prepare(loads(text).data, 0)
    assert (
        data.primary.examples.inputs.shape[1:]
        == data.auxiliary["photographs"].examples.inputs.shape[1:]
        == (3, 12, 12)
    )


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


@pytest.mark.parametrize("named", ["train", "valid", "train.csv", ".."])
def test_subfolders_and_parent_folders_are_not_mistaken_for_chexpert(
    root: Path, named: str
) -> None:
    """Otherwise patients would be the classes of its images, or X-rays one class next to
    photographs.
    """
    (root.parent / "photographs").mkdir()
    Image.new("RGB", (4, 4)).save(root.parent / "photographs" / "one.png")
    path = root.parent if named == ".." else root / named
    with pytest.raises(
        InputError, match=rf"read from the folder of its tables; did you mean {root}\?"
    ):
        read(path)
    assert read(root).primary.objective == "multi_label"
    # Next to tables it is ignored.
    (root.parent / "mine.csv").write_text(
        "text,label\n" + "".join(f"word {i},{i % 2}\n" for i in range(40))
    )
    assert isinstance(open_source(str(root.parent)), Tables)


def test_broken_tables_are_explained(root: Path) -> None:
    table = (root / "valid.csv").read_text()
    head, *rows = table.splitlines()
    twice = [f"{head},Edema", *(f"{row},0.0" for row in rows)]
    for lines, message in {
        (head,): r"\(valid\): there are no examples in it",
        (head.replace("Path", "File"), *rows): "its table has no column Path",
        tuple(twice): "its table has the column Edema twice",
        (
            head,
            *(f"{number},{row.split(',', 1)[1]}" for number, row in enumerate(rows)),
        ): "the Path '0' names no patient",
        (
            head,
            *(row.replace(".jpg", "x" * 300) for row in rows),
        ): "the table names this image, but it is not there",
    }.items():
        (root / "valid.csv").write_text("\n".join(lines) + "\n")
        with pytest.raises(InputError, match=message):
            read(root)


def test_tables_with_and_without_blanks_are_read_as_one(root: Path) -> None:
    """One column comes as numbers, the other as text."""
    listing = CheXpert(root).listing(None, Columns())
    assert (
        listing.count == 60 + 14 and listing.labels is not None and listing.labels.shape == (74, 14)
    )
    assert listing.groups is not None and listing.groups[-1] == "patient64549"
    assert str(listing.fetch(np.array([73]))[0]).endswith(
        "valid/patient64549/study1/view1_lateral.jpg"
    )


def test_excluding_all_labels_and_repeating_one_are_refused(root: Path) -> None:
    with pytest.raises(InputError, match="exclude: leaves none of its classes"):
        read(root, ", exclude: [" + ", ".join(COMPETITION) + "]")
    with pytest.raises(InputError, match="names 'Edema' twice"):
        read(root, ", classes: [Edema, Edema]")
