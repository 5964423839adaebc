"""The configuration that `attittud init table` proposes, and what the other commands make of it."""

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attittud_lab import strategies
from attittud_lab.commands.proposal import propose
from attittud_lab.config.load import load, loads
from attittud_lab.training.train import run
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


def test_a_comparison_recognises_a_table() -> None:
    """Without `init`, nothing says what kind of data it is."""
    cancer()
    assert propose(None, "a.csv", ["b.csv"]) == propose("table", "a.csv", ["b.csv"])
    assert "share_head: true" in propose(None, "a.csv", ["b.csv"])


def test_init_warns_of_groups_that_leave_a_portfolio_without_auxiliary_data(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [(n % 7 + n / 100, n // 3, "uv"[n % 2]) for n in range(90)]
    for name, shift, first in (("a", 0.0, 0), ("b", 0.001, 0), ("c", 0.001, 100)):
        text = "".join(f"{x + shift},{first + patient},{z}\n" for x, patient, z in rows)
        Path(f"{name}.csv").write_text("area,patient,label\n" + text)
    words = ["init", "table", "--primary", "a.csv", "--force", "--auxiliary"]
    assert call(*words, "c.csv") == 0 and "Warning" not in capsys.readouterr().err
    assert call(*words, "b.csv") == 0
    shown = capsys.readouterr()
    refused = "Warning: `attittud train` will refuse these data as they are. data.auxiliary.b: 90 of its 90 examples belong"
    assert f"{refused} to groups of the primary data" in shown.err
    assert "heed the warning first, then: attittud train" in shown.out and "next:" not in shown.out
    assert call("train", "attittud.yaml", "--quiet") == 2
    assert "and no example is left; name data of other groups" in " ".join(
        capsys.readouterr().err.split()
    )


def test_a_source_with_the_classes_in_another_order_shares_the_output_layer() -> None:
    for name, names in (("a", ["no", "yes"]), ("b", ["yes", "no"])):
        table = pa.table(
            {
                "x": [(n * 37 % 60 + (name == "b") / 9) for n in range(60)],
                "label": [n % 2 for n in range(60)],
            }
        )
        about = {"class_names": json.dumps(names)}
        pq.write_table(table.replace_schema_metadata(about), f"{name}.parquet")
    assert "share_head: true" in propose("table", "a.parquet", ["b.parquet"])


def test_init_warns_of_a_misspelt_column(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(n % 7 + n / 100, n * n % 11, "uv"[n % 2]) for n in range(60)]
    Path("a.csv").write_text(
        "area,mean_size,class\n" + "".join(f"{x},{y},{z}\n" for x, y, z in rows)
    )
    text = "".join(f"{x + 0.001},{y},{z}\n" for x, y, z in rows)
    Path("b.csv").write_text("area,mean_szie,class\n" + text)
    words = [
        "init",
        "table",
        "--primary",
        "a.csv",
        "--auxiliary",
        "b.csv",
        "--label",
        "class",
        "--force",
    ]
    assert call(*words) == 0
    told = capsys.readouterr().err
    assert (
        "Warning: mean_size is not used, because b.csv has no such column. It has mean_szie; if both mean"
        in told
    )
    Path("b.csv").write_text("area,another,class\n" + text)
    assert call(*words) == 0 and "Warning" not in capsys.readouterr().err
    Path("b.csv").write_text("area,mean_size,klass\n" + text)
    assert call(*words) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert (
        "it has no column 'class'; did you mean 'klass'? Its columns are area, mean_size, klass. Name the"
        in told
    )


def test_init_leaves_columns_out_that_only_one_table_has(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [
        (n % 7 + n / 100, "uv"[n % 2], ["no", "01", "NA"][n % 3], n * n % 11) for n in range(60)
    ]
    Path("a.csv").write_text(
        "x,c,label,🙂: mine\n" + "".join(f"{x},{c},{y},{z}\n" for x, c, y, z in rows)
    )
    Path("b.csv").write_text(
        "x,c,label,its\n" + "".join(f"{x + 0.001},{c},{y},{z}\n" for x, c, y, z in rows)
    )
    assert call("init", "table", "--primary", "a.csv", "--auxiliary", "b.csv") == 0
    assert load("attittud.yaml").data.table.exclude == ["🙂: mine", "its"]
    assert call("train", "attittud.yaml", *QUICK, "--quiet") == 0
    capsys.readouterr()
    Path("c.csv").write_text("x,y\n1,2\n3,4\n")
    assert call("init", "table", "--primary", "c.csv", "--force") == 2
    assert "no label column was found; name it with --label" in capsys.readouterr().err
    Path("c.csv").write_text("x,label\n" + "1,a\n1,b\n" * 9)
    assert call("init", "table", "--primary", "c.csv", "--force") == 2
    told = capsys.readouterr().err
    assert (
        "no column can be a feature (x: the same value in all rows); give columns whose values differ"
        in told
    )
    Path("d.csv").write_text("y,label\n" + "1,a\n2,b\n" * 9)
    assert call("init", "table", "--primary", "d.csv", "--auxiliary", "c.csv", "--force") == 2
    told = capsys.readouterr().err
    assert (
        "(y: not in every source; x: not in every source); give sources that have columns in common"
        in told
    )
    assert call("init", "table", "--primary", "digits", "--force") == 2
    assert "use `attittud init image`" in capsys.readouterr().err
    assert call("init", "text", "--primary", "c.csv", "--force") == 2
    assert "attittud init table" in capsys.readouterr().err


def test_comments_count_only_examples_that_are_there() -> None:
    for name, count in (("a", 60), ("b", 90)):
        rows = [(n % 7 + n / 100 + (name == "b") / 999, "uv"[n % 2]) for n in range(count)]
        Path(f"{name}.csv").write_text("x,label\n" + "".join(f"{x},{y}\n" for x, y in rows))
    alone, both = propose("table", "a.csv", []), propose("table", "a.csv", ["b.csv"])
    assert "for 36 training examples" in alone and "largest auxiliary source" not in alone
    assert (
        "for 126 training and auxiliary examples" in both
        and "passes over the largest auxiliary source" in both
    )


def test_init_for_a_column_of_embeddings() -> None:
    rows = [
        {"vector": [n % 5, n * n % 7, n / 9], "note": f"n{n}", "class": "ab"[n % 2]}
        for n in range(60)
    ]
    Path("a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert call("init", "table", "--primary", "a.jsonl", "--input", "vector") == 0
    config = load("attittud.yaml")
    assert config.data.table.columns == ["vector"] and config.strategy.name == "primary_only"
    assert call("train", "attittud.yaml", *QUICK, "--quiet") == 0


@pytest.mark.parametrize(
    "strategy",
    [
        name
        for name in strategies.names()
        if not name.startswith(("custom", "torchjd_", "portfolio"))
    ],
)
def test_every_strategy_learns_from_a_table(strategy: str) -> None:
    cancer(id_column=False)
    text = propose("table", "a.csv", ["b.csv"])
    quick = [
        *QUICK,
        "data.auxiliary.b.share_head=true",
        "training.guided.evaluations=1",
        f"strategy.name={strategy}",
    ]
    result = run(loads(text, quick), run_dir="run")
    assert 0 <= result.test["accuracy"] <= 1
