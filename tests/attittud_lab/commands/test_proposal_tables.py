"""The configuration that `attittud init table` proposes, and what the other commands make of it."""

import csv
import json
from pathlib import Path

import pytest

from attittud_lab.config.load import load
from tests.helpers.commands import call


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


QUICK = ["training.guided.steps=4", "training.finetune.steps=2", "model.width=8"]


def cancer(*, id_column: bool = True) -> None:
    """Scikit-learn's breast cancer as two tables; the labels of the second one are the same, of
    other women.
    """
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    heading = ["id"] * id_column + [*bunch.feature_names, "label"]
    for name, rows in (("a.csv", range(200)), ("b.csv", range(200, 569))):
        with Path(name).open("w", newline="") as file:
            csv.writer(file).writerows(
                [heading]
                + [
                    [f"p{row}"] * id_column
                    + [*bunch.data[row].tolist(), bunch.target_names[bunch.target[row]]]
                    for row in rows
                ]
            )


def test_a_table_from_init_to_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    cancer()
    assert call("init", "table", "--primary", "a.csv", "--auxiliary", "b.csv") == 0
    config = load("attittud.yaml")
    assert (config.data.kind, config.data.table.exclude, config.model.name) == (
        "table",
        ["id"],
        "table-mlp",
    )
    assert "a different text in each of the 200 rows" in Path("attittud.yaml").read_text()
    steps = ["training.guided.steps=60", "training.finetune.steps=20", "model.width=16"]
    assert call("train", "attittud.yaml", *steps, "--quiet") == 0
    result = json.loads(Path("runs/attittud/portfolio/seed-0/result.json").read_text())
    assert result["test"]["accuracy"] > 0.85
    record = json.loads(Path("runs/attittud/portfolio/seed-0/data.json").read_text())
    assert record["kind"] == "table" and len(record["table"]["columns"]) == 30
    assert call("report", "runs/attittud/portfolio/seed-0") == 0
    few = [
        "compare.strategies=[]",
        "compare.seeds=2",
        "compare.weights=[0.5, 1]",
        "compare.tuning_seeds=1",
    ]
    assert call("compare", "attittud.yaml", *QUICK, *few, "compare.equal=steps", "--quiet") == 0
    assert "Decision" in capsys.readouterr().out


def test_columns_that_a_source_lacks_are_no_features() -> None:
    for first, (name, own) in enumerate({"a.csv": "mine", "b.csv": "theirs"}.items()):
        rows = [[i * 7 % 40 + first / 2, i % 5, "yes" if i % 2 else "no"] for i in range(40)]
        with Path(name).open("w", newline="") as file:
            csv.writer(file).writerows([["size", own, "label"], *rows])
    assert call("init", "table", "--primary", "a.csv", "--auxiliary", "b.csv") == 0
    assert load("attittud.yaml").data.table.exclude == ["mine", "theirs"]
