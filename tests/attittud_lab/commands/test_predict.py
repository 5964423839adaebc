"""`attittud predict` as a person types it."""

import csv
import io
import json
import os
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.helpers.commands import run as typed
from tests.helpers.predictions import train, workplace

PICTURES = "data/pictures/test"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, before = workplace(tmp_path_factory.mktemp("trained")), Path.cwd()
    os.chdir(folder)
    try:
        for name in ("pictures", "words", "findings"):
            train(name)
    finally:
        os.chdir(before)
    return folder


@pytest.fixture(autouse=True)
def _here(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)


RUNS = {
    "pictures": "new/pictures/drop_harmful/seed-0",
    "words": "new/words/flip/seed-0",
    "findings": "new/findings/flip/seed-0",
}


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_known_labels_give_an_accuracy(capsys):
    code, out, err = typed("predict", RUNS["pictures"], PICTURES, capsys=capsys)
    wanted = json.loads(Path(RUNS["pictures"], "result.json").read_text())["test"]["accuracy"]
    assert code == 0
    assert err == f"8 predictions, accuracy {wanted:.4f} on 8 inputs whose label is known\n"
    assert [row["file"] for row in rows(out)] == sorted(map(str, Path(PICTURES).rglob("*.png")))
    code, _, err = typed("predict", RUNS["findings"], "data/findings.parquet", capsys=capsys)
    assert code == 0 and " on 144 known labels\n" in err
    code, _, err = typed("predict", RUNS["pictures"], PICTURES, "--quiet", capsys=capsys)
    assert (code, err) == (0, "")


def test_predictions_can_be_written_to_files(tmp_path, capsys):
    for suffix in ("csv", "jsonl", "parquet"):
        path = tmp_path / f"out.{suffix}"
        code, out, err = typed(
            "predict", RUNS["words"], "data/reviews.csv", "--output", str(path), capsys=capsys
        )
        assert code == 0
        assert out == ""
        assert f"48 predictions in {path}" in err
        assert path.stat().st_size > 100


def test_inputs_of_training_are_counted(tmp_path, capsys, monkeypatch):
    """By content: another name changes nothing, and another picture is another input."""
    new = Image.new("L", (8, 8), 77)
    old = sorted(Path("data/pictures/train").rglob("*.png"))[:2]
    for number, path in enumerate(old):
        (tmp_path / f"copy {number}.png").write_bytes(path.read_bytes())
    new.save(tmp_path / old[0].name)
    _, _, err = typed("predict", RUNS["pictures"], str(tmp_path), capsys=capsys)
    assert "2 of 3 inputs are also in" in err
    with monkeypatch.context() as patch:
        # nothing shows the count, so nothing is hashed
        patch.delattr("attittud_lab.predict.restore.used_examples")
        code, _, err = typed("predict", RUNS["pictures"], str(tmp_path), "--quiet", capsys=capsys)
        assert (code, err) == (0, "")
    with Path("data/reviews.csv").open(newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    record = json.loads(Path(RUNS["words"], "data.json").read_text())["primary"]
    known = [texts[record[part]["rows"][0]] for part in ("train", "validation", "test")]
    given = "\n".join([known[0].upper(), *known[1:], "", "new words"])
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(given.encode())))
    )
    _, _, err = typed("predict", RUNS["words"], "-", capsys=capsys)
    assert err.startswith("5 predictions\n2 of 5 inputs are also in")


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Five pictures, two of them damaged."""
    folder = tmp_path / "images"
    folder.mkdir()
    for name in "abcde":
        Image.new("L", (8, 8)).save(folder / f"{name}.png")
    (folder / "b.png").write_bytes((folder / "b.png").read_bytes()[:45])
    (folder / "d.png").write_bytes(b"no picture")
    return folder


def test_damaged_images_can_be_left_out(damaged, capsys):
    command = ["predict", RUNS["pictures"], str(damaged), "--skip-broken"]
    code, out, err = typed(*command, capsys=capsys)
    assert code == 0 and [Path(row["file"]).name for row in rows(out)] == [
        "a.png",
        "c.png",
        "e.png",
    ]
    assert err.splitlines()[2] == "3 predictions, 2 inputs left out"
    code, _, err = typed(*command, "--quiet", capsys=capsys)
    assert code == 0 and len(err.splitlines()) == 2 and "b.png" in err and "d.png" in err
    for name in "ace":
        (damaged / f"{name}.png").unlink()
    code, out, err = typed(*command, capsys=capsys)
    assert code == 2
    assert out == ""
    assert "2 of 2 inputs cannot be read, so there is nothing to predict" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", PICTURES], "nowhere"),
        ([RUNS["pictures"], PICTURES, "--output", "out.xml"], ".xml"),
        ([RUNS["words"], PICTURES], PICTURES),
    ],
    ids=str,
)
def test_mistakes_are_explained(arguments, said, capsys):
    code, out, err = typed("predict", *arguments, capsys=capsys)
    assert code == 2 and out == "" and err.count("\n") == 1 and said in err
