"""Several labels at once, through every command."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.commands import call
from tests.helpers.runs import metrics_of

NAMES = ["heart", "lung", "rare"]
JOB = """
data:
  kind: table
  table: {{columns: [v]}}
  primary: {{path: {folder}/labelled.parquet, group: patient}}
  auxiliary: {{other: {{path: {folder}/other.parquet}}}}
model: {{name: table-mlp, width: 8}}
training:
  guided: {{steps: 6, batch_size: 8, primary_batch: 8, evaluations: 2}}
  finetune: {{steps: 4, primary_batch: 8, evaluations: 2}}
strategy: {{name: auto, rank: 2}}
compare: {{seeds: 2, tuning_seeds: 1, weights: [0.5, 1], strategies: [flip], equal: steps}}
output: {folder}/runs
log_every: 2
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    v = random.normal(size=(150, 4))
    labels = (v[:90, :3] > [0, 0.5, 1]).astype(int).tolist()
    patients = [row % 12 for row in range(90)]
    own = pa.table({"v": v[:90].tolist(), "labels": labels, "patient": patients})
    named = own.replace_schema_metadata({"class_names": json.dumps(NAMES)})
    pq.write_table(named, tmp_path / "labelled.parquet")
    other = pa.table({"v": v[90:].tolist(), "label": [row % 4 for row in range(60)]})
    pq.write_table(other, tmp_path / "other.parquet")
    (tmp_path / "job.yaml").write_text(JOB.format(folder=tmp_path))
    return tmp_path / "job.yaml"


def test_every_command_takes_several_labels(job, capsys):
    assert call("train", str(job), "--quiet") == 0, capsys.readouterr().err
    run = job.parent / "runs" / "job" / "auto" / "seed-0"
    result = json.loads((run / "result.json").read_text())
    assert result["metric"] == "auc"
    labels = [f"auc/{name}" for name in NAMES]
    for part in ("validation", "test"):
        assert list(result[part]) == ["loss", "accuracy", "macro_f1", "auc", *labels]
        shown = result[part]["auc"]
        assert shown == pytest.approx(np.mean([result[part][name] for name in labels]))
    # The model that leaves a phase is the one with the best AUC on validation.
    lines = [line for line in metrics_of(run) if line["phase"] == "finetune"]
    seen = [line["validation/auc"] for line in lines if "validation/auc" in line]
    assert result["validation"]["auc"] == max(seen) and "auc/rare" in capsys.readouterr().out
    assert call("report", str(run)) == 0 and "auc/rare" in (run / "report.html").read_text()
    capsys.readouterr()
    assert call("compare", str(job), "--quiet") == 0
    out = capsys.readouterr().out
    assert "auc by label, equal steps, test %:" in out and "| strategy" in out and "rare" in out
    folder = job.parent / "runs" / "job" / "compare"
    found = json.loads((folder / "comparison.json").read_text())
    assert found["metric"] == "auc"
    for row in found["tables"][0]["rows"]:
        assert list(row["labels"]) == NAMES
        # The mean of the means is the mean.
        expected = pytest.approx(row["test"]["mean"])
        assert np.mean([value["mean"] for value in row["labels"].values()]) == expected
    assert "<summary>auc by label, equal steps</summary>" in (folder / "report.html").read_text()
