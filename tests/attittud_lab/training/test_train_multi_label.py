"""Several labels at once, through every command."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from attittud_lab import cli
from attittud_lab.commands.proposal import propose
from attittud_lab.config.load import load, loads
from attittud_lab.errors import InputError
from attittud_lab.training.train import load_data, run

NAMES = ["heart", "lung", "rare"]


# -------------------------------------------------------------------------------------- the product


def xray(number: int, labels: list[int], size: int = 8) -> bytes:
    """Each label lights its own row of pixels, so there is something to learn."""
    pixels = np.random.default_rng(number).integers(0, 120, (size, size)).astype(np.uint8)
    for row, label in enumerate(labels):
        pixels[2 * row] += 80 * np.uint8(label)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write(
    path: Path,
    count: int,
    first: int = 0,
    labels: list[list[int]] | None = None,
    patients: int = 12,
) -> None:
    random = np.random.default_rng(first)
    rows = labels or (random.random((count, 3)) < [0.5, 0.3, 0.15]).astype(int).tolist()
    images = [{"bytes": xray(first + i, row), "path": None} for i, row in enumerate(rows)]
    table = pa.table(
        {
            "image": images,
            "labels": rows,
            "patient": [first + i % patients for i in range(len(rows))],
        }
    )
    pq.write_table(table.replace_schema_metadata({"class_names": json.dumps(NAMES)}), path)


def write_other(folder: Path) -> Path:
    random = np.random.default_rng(9)
    images = [
        {"bytes": xray(1000 + i, random.integers(0, 2, 3).tolist()), "path": None}
        for i in range(60)
    ]
    pq.write_table(
        pa.table({"image": images, "label": [i % 4 for i in range(60)]}), folder / "other.parquet"
    )
    return folder / "other.parquet"


JOB = """
data:
  primary: {{path: {data}, group: patient, train: {train}}}
  auxiliary: {{other: {{path: {other}}}}}
model: {{name: mlp, width: 8}}
training:
  guided: {{steps: 6, batch_size: 8, primary_batch: 8, evaluations: 2}}
  finetune: {{steps: 4, primary_batch: 8, evaluations: 2}}
strategy: {{name: auto, rank: 2}}
compare: {{seeds: 2, tuning_seeds: 1, weights: [0.5, 1], strategies: [flip], equal: steps}}
output: {output}
log_every: 2
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    write(tmp_path / "labelled.parquet", 90)
    values = {
        "data": tmp_path / "labelled.parquet",
        "other": write_other(tmp_path),
        "output": tmp_path / "runs",
    }
    (tmp_path / "job.yaml").write_text(JOB.format(**values, train="null"))
    return tmp_path / "job.yaml"


def command(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as exit_:
        cli.main([str(argument) for argument in arguments])
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


def test_every_command_takes_several_labels(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("train", job, "--quiet") == 0, capsys.readouterr().err
    run = job.parent / "runs" / "job" / "auto" / "seed-0"
    result = json.loads((run / "result.json").read_text())
    assert result["metric"] == "auc"
    labels = [f"auc/{name}" for name in NAMES]
    for part in ("validation", "test"):
        assert list(result[part]) == ["loss", "accuracy", "macro_f1", "auc", *labels]
        assert result[part]["auc"] == pytest.approx(
            np.mean([result[part][name] for name in labels])
        )
    # The model that leaves a phase is the one with the best AUC on validation.
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    seen = [
        line["validation/auc"]
        for line in lines
        if line["phase"] == "finetune" and "validation/auc" in line
    ]
    assert result["validation"]["auc"] == max(seen) and "auc/rare" in capsys.readouterr().out
    assert any(f"attittud/weight_{part}" in line for line in lines for part in ("neutral",))
    assert command("report", run) == 0 and "auc/rare" in (run / "report.html").read_text()
    capsys.readouterr()
    assert command("compare", job, "--quiet") == 0
    out = capsys.readouterr().out
    assert "auc by label, equal steps, test %:" in out and "| strategy" in out and "rare" in out
    folder = job.parent / "runs" / "job" / "compare"
    found = json.loads((folder / "comparison.json").read_text())
    assert found["metric"] == "auc"
    for row in found["tables"][0]["rows"]:
        assert list(row["labels"]) == NAMES
        # The mean of the means is the mean.
        assert np.mean([value["mean"] for value in row["labels"].values()]) == pytest.approx(
            row["test"]["mean"]
        )
    assert "<summary>auc by label, equal steps</summary>" in (folder / "report.html").read_text()


def test_a_report_of_an_unfinished_run_shows_its_metric(job: Path) -> None:
    assert command("train", job, "--quiet") == 0
    run = job.parent / "runs" / "job" / "auto" / "seed-0"
    (run / "result.json").unlink()
    assert command("report", run) == 0
    assert json.loads((run / "report.json").read_text())["metric"] == "auc"


def test_no_patient_is_in_two_splits_of_a_table(job: Path) -> None:
    config = load(job)
    data = load_data(config)
    parts = data.record["primary"]
    patients = [
        {row % 12 for row in parts[name]["rows"]} for name in ("train", "validation", "test")
    ]
    assert sum(map(len, patients)) == 12 and len(set.union(*patients)) == 12 and all(patients)
    assert sum(part["count"] for part in parts.values()) == 90
    # By rows it would be otherwise.
    mixed = load_data(load(job, ["data.primary.group=null"])).record["primary"]
    assert {row % 12 for row in mixed["train"]["rows"]} & {
        row % 12 for row in mixed["test"]["rows"]
    }


def test_a_tables_own_splits_are_kept_and_checked(job: Path) -> None:
    folder = job.parent / "own"
    folder.mkdir()
    for first, name in enumerate(("train", "validation", "test")):
        write(folder / f"{name}-00000-of-00001.parquet", 40, 100 * first)
    sizes = load_data(load(job, [f"data.primary.path={folder}"])).record["primary"]
    assert {name: part["count"] for name, part in sizes.items()} == {
        "train": 40,
        "validation": 40,
        "test": 40,
    }
    write(folder / "test-00000-of-00001.parquet", 40, 11)  # patient 11 is in train too
    with pytest.raises(InputError, match=r"1 group is in test and in train \(for example '11'\)"):
        load_data(load(job, [f"data.primary.path={folder}"]))


def test_labels_without_positive_examples_are_reported(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = job.parent / "own"
    folder.mkdir()
    some = [[i % 2, i % 3 == 0, i % 5 == 0] for i in range(40)]
    some = [[int(value) for value in row] for row in some]
    rows: dict[str, Any] = {
        "train": some,
        "validation": some,
        "test": [[*row[:2], 0] for row in some],
    }
    for first, (name, labels) in enumerate(rows.items()):
        write(folder / f"{name}.parquet", 40, 100 * first, labels)
    own = [f"data.primary.path={folder}"]
    assert command("train", job, *own, "strategy=primary_only", "--quiet") == 0
    assert "auc/rare undefined" in capsys.readouterr().out
    run = job.parent / "runs" / "job" / "primary_only" / "seed-0"
    result = json.loads((run / "result.json").read_text())
    test = result["test"]
    assert test["auc/rare"] is None and test["auc"] == pytest.approx(
        (test["auc/heart"] + test["auc/lung"]) / 2
    )
    assert command("report", run) == 0 and "<td>undefined</td>" in (run / "report.html").read_text()
    assert (
        command("train", job, *own, "strategy=primary_only", "--quiet") == 0
    )  # reads the finished run
    assert (
        command("compare", job, *own, "compare.strategies=[]", "strategy=multitask", "--quiet") == 0
    )
    assert "undefined" in capsys.readouterr().out
    write(folder / "validation.parquet", 40, 100, [[0, 0, 0]] * 40)
    assert command("train", job, *own, "seed=1") == 2
    assert "no label has both positive and negative validation examples" in capsys.readouterr().err
    write(folder / "train.parquet", 40, 0, [[*row[:2], 0] for row in some])
    assert command("train", job, *own, "seed=2") == 2
    assert (
        "has no positive examples of rare, so there is nothing to learn" in capsys.readouterr().err
    )


def test_rows_can_be_chosen_by_value_and_impossible_values_are_refused(job: Path) -> None:
    data = load_data(
        load(
            job,
            [
                "data.primary.where={patient: '3'}",
                "data.primary.group=null",
                "data.primary.exclude=[rare]",
            ],
        )
    )
    assert sum(part["count"] for part in data.record["primary"].values()) == 8
    for change, message in {
        "data.primary.where={patient: '99'}": "no row has '99' in column 'patient'",
        "data.primary.where={nobody: '1'}": "there is no column 'nobody'",
        "data.primary.group=doctor": r"there is no column 'doctor' \(group:\)",
    }.items():
        with pytest.raises(InputError, match=message):
            load_data(load(job, [change]))
    with pytest.raises(InputError, match="has no columns, so group: patient has no effect"):
        load_data(loads("data: {primary: {path: digits, group: patient}}"))


def test_a_first_configuration_splits_by_patient(job: Path) -> None:
    text = propose(
        "image", str(job.parent / "labelled.parquet"), [str(job.parent / "other.parquet")]
    )
    assert (
        loads(text).data.primary.group == "patient"
        and "90 images, shorter side 8 pixels, 3 labels" in text
    )


def test_texts_may_have_several_labels(tmp_path: Path) -> None:
    words = ["good", "long", "late"]
    rows = [[n % 2, n % 3 == 0, n % 5 == 0] for n in range(60)]
    lines = [
        {
            "text": f"review {n} " + " ".join(w for w, y in zip(words, row, strict=True) if y),
            "labels": [int(y) for y in row],
        }
        for n, row in enumerate(rows)
    ]
    (tmp_path / "reviews.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "more.csv").write_text(
        "text\n" + "".join(f"more words of review {n}\n" for n in range(30))
    )
    text = f"""
data:
  primary: {tmp_path}/reviews.jsonl
  auxiliary: {{more: {{path: {tmp_path}/more.csv, objective: masked_lm}}}}
  max_length: 8
model: {{name: text-cnn, width: 16}}
training: {{guided: {{steps: 4, batch_size: 8, primary_batch: 8}}, finetune: {{steps: 60, primary_batch: 16, lr: 1e-2}}}}
strategy: {{name: flip, rank: 2}}
"""
    result = run(loads(text), run_dir=tmp_path / "run")
    assert result.metric == "auc" and result.test["auc"] > 0.9  # the words say it all
    assert {"auc/0", "auc/1", "auc/2"} <= result.test.keys()


def test_splits_with_different_kinds_of_labels_are_refused(tmp_path: Path) -> None:
    """Found before training, not when the test set is looked at behind it."""
    several = [{"text": f"review {n}", "label": [n % 2, n % 3 % 2]} for n in range(40)]
    one = [{"text": f"other {n}", "label": n % 2} for n in range(40)]

    def splits(train: list[dict[str, Any]], test: list[dict[str, Any]]) -> None:
        for name, rows in {"train": train, "test": test}.items():
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    config = loads(f"data: {{primary: {tmp_path}}}\nmodel: text-cnn\noutput: {tmp_path}/runs")
    splits(several, one)
    with pytest.raises(
        InputError, match=r"\(test\): holds texts with one label each, but .*several labels each"
    ):
        load_data(config)
    splits(one, several)
    with pytest.raises(InputError, match=r"\(test\): holds texts with several labels each"):
        load_data(config)
    (tmp_path / "test.jsonl").unlink()
    images = pa.table({"image": [{"bytes": b"", "path": ""}] * 4, "label": [0, 1, 0, 1]})
    pq.write_table(images, tmp_path / "test.parquet")
    with pytest.raises(
        InputError, match=r"\(test\): holds images with one label each, but .* texts"
    ):
        load_data(config)
