"""`attittud predict` as a person types it."""

import csv
import io
import json
import os
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.helpers.command_line import run as typed
from tests.helpers.predictions import INPUTS, train, workplace

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


@pytest.mark.parametrize("name", RUNS)
def test_predictions_have_the_accuracy_of_the_run(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(RUNS[name])
    path, labels = INPUTS[name](run, tmp_path)
    code, out, err = typed("predict", str(run), str(path), capsys=capsys)
    found = rows(out)
    assert (
        code == 0 and len(found) == len(labels) and err.startswith(f"{len(labels)} predictions\n")
    )
    if name == "findings":
        given = [
            [int(label in row["labels"].split(";")) for label in ("Edema", "Fracture")]
            for row in found
        ]
        right = sum(
            a == b
            for row, wanted in zip(given, labels, strict=True)
            for a, b in zip(row, wanted, strict=True)
        )
        share = right / (2 * len(labels))
    else:
        share = sum(row["label"] == label for row, label in zip(found, labels, strict=True)) / len(
            labels
        )
    assert share == pytest.approx(
        json.loads((run / "result.json").read_text())["test"]["accuracy"], abs=1e-6
    )


def test_known_labels_give_an_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = typed("predict", RUNS["pictures"], PICTURES, capsys=capsys)
    wanted = json.loads(Path(RUNS["pictures"], "result.json").read_text())["test"]["accuracy"]
    assert (
        code == 0
        and err == f"8 predictions, accuracy {wanted:.4f} on 8 inputs whose label is known\n"
    )
    assert [row["file"] for row in rows(out)] == sorted(map(str, Path(PICTURES).rglob("*.png")))
    code, _, err = typed("predict", RUNS["findings"], "data/findings.parquet", capsys=capsys)
    assert code == 0 and " on 144 known labels\n" in err
    code, _, err = typed("predict", RUNS["pictures"], PICTURES, "--quiet", capsys=capsys)
    assert (code, err) == (0, "")


def test_predictions_can_be_written_to_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for suffix in ("csv", "jsonl", "parquet"):
        path = tmp_path / f"out.{suffix}"
        code, out, err = typed(
            "predict", RUNS["words"], "data/reviews.csv", "--output", str(path), capsys=capsys
        )
        assert (
            code == 0
            and out == ""
            and f"48 predictions in {path}" in err
            and path.stat().st_size > 100
        )


def test_inputs_of_training_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By content: other names change nothing, and another picture under the same name is another
    input.
    """
    new = Image.new("L", (8, 8), 77)
    old = sorted(Path("data/pictures/train").rglob("*.png"))[:2]
    for number, path in enumerate(old):
        (tmp_path / f"copy {number}.png").write_bytes(path.read_bytes())
    new.save(tmp_path / old[0].name)
    said = "2 of 3 inputs are also in the training or validation data of this run; results on them say little\n"
    _, _, err = typed("predict", RUNS["pictures"], str(tmp_path), capsys=capsys)
    assert err == f"3 predictions\n{said}"
    with monkeypatch.context() as patch:
        patch.delattr(
            "attittud_lab.predict.model.used_examples"
        )  # nothing shows the count, so nothing is hashed
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


@pytest.mark.parametrize("at_once", [2])
@pytest.mark.parametrize("to_file", [True])
def test_all_damaged_images_are_named_and_leave_no_output(
    to_file: bool,
    at_once: int,
    damaged: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("attittud_lab.predict.model.AT_ONCE", at_once)
    output = ["--output", str(damaged.parent / "out.csv")] if to_file else []
    code, out, err = typed("predict", RUNS["pictures"], str(damaged), *output, capsys=capsys)
    first, second, last = err.splitlines()
    assert (
        code == 2
        and f"{damaged}/b.png is damaged" in first
        and f"{damaged}/d.png cannot be read" in second
    )
    cure = "repair or remove them, or leave them out with --skip-broken"
    assert last == f"attittud: 2 of 5 inputs cannot be read; {cure}"
    assert [path.name for path in damaged.parent.iterdir()] == ["images"]
    assert "a.png" not in out


def test_damaged_images_can_be_left_out(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert (
        code == 2
        and out == ""
        and "2 of 2 inputs cannot be read, so there is nothing to predict" in err
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", PICTURES], "is not the folder of a run"),
        ([RUNS["pictures"]], "there is nothing to predict"),
        ([RUNS["pictures"], PICTURES, "--output", "out.xml"], "cannot write a .xml"),
        ([RUNS["words"], PICTURES], "it contains no file that can be read"),
    ],
    ids=str,
)
def test_mistakes_are_explained(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = typed("predict", *arguments, capsys=capsys)
    assert code == 2 and out == "" and err.count("\n") == 1 and said in err


def test_a_threshold_decides_which_labels_are_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    counts = []
    for threshold in ("0", "0.5", "1"):
        command = ["predict", RUNS["findings"], "data/findings.parquet", "--threshold", threshold]
        code, out, _ = typed(*command, capsys=capsys)
        assert code == 0
        counts.append(
            sum(len([name for name in row["labels"].split(";") if name]) for row in rows(out))
        )
    assert counts[0] == 144 >= counts[1] >= counts[2] == 0


def test_a_model_can_be_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.pt2"
    code, out, _ = typed("predict", RUNS["pictures"], "--export", str(path), capsys=capsys)
    assert code == 0 and out.strip() == str(path)
    found = torch.export.load(path).module()(torch.zeros(4, 1, 8, 8, dtype=torch.uint8))
    assert found.shape == (4, 2)
