"""Several labels at once, through every command."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from attittud_lab import cli
from attittud_lab.config.load import load, loads
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
