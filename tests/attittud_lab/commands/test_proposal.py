"""The configuration that `attittud init` proposes for all kinds of data, and what it refuses."""

import csv
import json
from pathlib import Path

from attittud_lab.config.load import load
from tests.helpers.commands import FEW_RUNS, call


def test_init_proposes_a_configuration_for_texts(capsys):
    Path("a.csv").write_text(
        "text,label\n" + "".join(f"word{n} here,{'no' if n % 2 else 'yes'}\n" for n in range(40))
    )
    Path("b c.jsonl").write_text(
        "".join(json.dumps({"text": f"more {n}"}) + "\n" for n in range(30))
    )
    assert call("init", "text", "--primary", "a.csv", "--auxiliary", "b c.jsonl") == 0
    config = load("attittud.yaml")
    assert config.data.auxiliary["b_c"].objective == "masked_lm"
    assert config.training.guided.primary_batch == 24
    found = call(
        "train",
        "attittud.yaml",
        "training.guided.steps=2",
        "training.finetune.steps=2",
        "model.width=8",
    )
    assert found == 0
    assert call("init", "image", "--primary", "a.csv", "--force") == 2
    assert "use `attittud init text`" in capsys.readouterr().err
    assert call("init", "sound", "--primary", "a.csv", "--force") == 2


QUICK = ["training.guided.steps=4", "training.finetune.steps=2", "model.width=8"]


def cancer(*, id_column: bool = True) -> None:
    """Scikit-learn's breast cancer as two tables of different women."""
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


def test_a_table_from_init_to_the_report(capsys):
    cancer()
    assert call("init", "table", "--primary", "a.csv", "--auxiliary", "b.csv") == 0
    config = load("attittud.yaml")
    expected = ("table", ["id"], "table-mlp")
    assert (config.data.kind, config.data.table.exclude, config.model.name) == expected
    assert "a different text in each of the 200 rows" in Path("attittud.yaml").read_text()
    steps = ["training.guided.steps=60", "training.finetune.steps=20", "model.width=16"]
    assert call("train", "attittud.yaml", *steps, "--quiet") == 0
    result = json.loads(Path("runs/attittud/portfolio/seed-0/result.json").read_text())
    assert result["test"]["accuracy"] > 0.85
    record = json.loads(Path("runs/attittud/portfolio/seed-0/data.json").read_text())
    assert record["kind"] == "table" and len(record["table"]["columns"]) == 30
    assert call("report", "runs/attittud/portfolio/seed-0") == 0
    assert call("compare", "attittud.yaml", *QUICK, *FEW_RUNS, "--quiet") == 0
    assert "Decision" in capsys.readouterr().out


def test_columns_that_a_source_lacks_are_no_features():
    for first, (name, own) in enumerate({"a.csv": "mine", "b.csv": "theirs"}.items()):
        rows = [[i * 7 % 40 + first / 2, i % 5, "yes" if i % 2 else "no"] for i in range(40)]
        with Path(name).open("w", newline="") as file:
            csv.writer(file).writerows([["size", own, "label"], *rows])
    assert call("init", "table", "--primary", "a.csv", "--auxiliary", "b.csv") == 0
    assert load("attittud.yaml").data.table.exclude == ["mine", "theirs"]
