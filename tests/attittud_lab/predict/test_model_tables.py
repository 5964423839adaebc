"""Models of tables: new rows are read as those of training were, whatever form they come in."""

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import attittud_lab
from attittud_lab.errors import InputError
from tests.helpers.commands import call

Row = dict[str, Any]


def made_up(count: int, seed: int) -> list[Row]:
    generator = np.random.default_rng(seed)
    x, y = generator.normal(size=(2, count)).round(4).tolist()
    return [
        {
            "x": a,
            "y": None if n % 7 == 0 else b,
            "c": "uvw"[n % 3],
            "label": "no" if a + (n % 3 == 0) > 0 else "01",
        }
        for n, (a, b) in enumerate(zip(x, y, strict=True))
    ]


def write(path: Path, rows: list[Row]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(
                [list(rows[0]), *(["" if v is None else v for v in row.values()] for row in rows)]
            )
    return path


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder, before = tmp_path_factory.mktemp("tables"), Path.cwd()
    os.chdir(folder)
    write(Path("a.csv"), made_up(120, 0))
    write(Path("b.parquet"), made_up(120, 1))
    assert call("init", "table", "--primary", "a.csv", "--auxiliary", "b.parquet") == 0
    assert (
        call(
            "train",
            "attittud.yaml",
            "training.guided.steps=40",
            "training.finetune.steps=10",
            "strategy.name=auto",
            "--quiet",
        )
        == 0
    )
    yield folder
    os.chdir(before)


@pytest.fixture
def run(here: Path) -> Path:
    return here / "runs/attittud/auto/seed-0"


def unseen(run: Path, *, label: bool = False) -> list[Row]:
    """The test examples, in their order."""
    rows = json.loads((run / "data.json").read_text())["primary"]["test"]["rows"]
    everything = made_up(120, 0)
    return [
        {name: cell for name, cell in everything[row].items() if label or name != "label"}
        for row in rows
    ]


@pytest.mark.parametrize("suffix", [".csv"])
def test_files_without_labels_are_predicted(
    run: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(Path(f"new{suffix}"), unseen(run))
    assert call("predict", str(run), str(path), "--output", "out.csv") == 0
    with Path("out.csv").open(newline="") as file:
        labels = [row["label"] for row in csv.DictReader(file)]
    right = [row["label"] for row in unseen(run, label=True)]
    accuracy = json.loads((run / "result.json").read_text())["test"]["accuracy"]
    assert np.mean(np.array(labels) == np.array(right)) == pytest.approx(accuracy)
    capsys.readouterr()
    assert call("predict", str(run), str(write(Path(f"new{suffix}"), unseen(run, label=True)))) == 0
    said = capsys.readouterr().err
    assert f"accuracy {accuracy:.4f} on" in said and "same features" not in said
    trained = [
        made_up(120, 0)[row]
        for row in json.loads((run / "data.json").read_text())["primary"]["train"]["rows"]
    ]
    known = [row | {"another": 1} for row in reversed(trained[:5] + made_up(120, 1)[:5])]
    assert call("predict", str(run), str(write(Path(f"known{suffix}"), known))) == 0
    said = capsys.readouterr().err
    assert said.endswith(
        "\n10 of 10 inputs have the same features as training or validation rows of this run\n"
    )


@pytest.mark.usefixtures("here")
def test_numbers_in_single_precision_are_the_categories_of_training() -> None:
    """Python has no such numbers, and would write them with more digits than training did."""
    generator = np.random.default_rng(0)
    dose = generator.choice([0.1, 0.2, 0.3], 120).astype(np.float32)
    table = pa.table(
        {
            "x": generator.normal(size=120),
            "dose": dose,
            "label": np.where(dose > 0.15, "high", "low"),
        }
    )
    pq.write_table(table, "doses.parquet")
    job = {
        "data": {"kind": "table", "primary": "doses.parquet", "table": {"categorical": ["dose"]}}
    }
    Path("doses.yaml").write_text(
        json.dumps({**job, "strategy": "primary_only", "model": {"name": "table-mlp"}})
    )
    steps = ("training.guided.steps=1", "training.finetune.steps=80")
    assert call("train", "doses.yaml", *steps, "--quiet") == 0
    run = "runs/doses/primary_only/seed-0"
    assert call("predict", run, "doses.parquet", "--output", "doses.csv", "--quiet") == 0
    with Path("doses.csv").open(newline="") as file:
        assert [row["label"] for row in csv.DictReader(file)] == table["label"].to_pylist()
    for form in (table, table.to_pandas(), table.to_pylist()):
        assert attittud_lab.load(run).predict(form) == table["label"].to_pylist()


def test_rows_in_all_forms_give_the_same_predictions(run: Path) -> None:
    model, rows = attittud_lab.load(run), unseen(run)
    expected = model.predict_proba(rows)
    assert expected.shape == (len(rows), 2) and model.classes == ["01", "no"]
    np.testing.assert_array_equal(model.predict_proba(pa.Table.from_pylist(rows)), expected)
    np.testing.assert_allclose(model.predict_proba(rows[0]), expected[:1], rtol=1e-5)
    pandas = pytest.importorskip("pandas")
    np.testing.assert_array_equal(model.predict_proba(pandas.DataFrame(rows)), expected)
    assert model.predict_proba([]).shape == (0, 2)
    np.testing.assert_array_equal(
        model.predict_proba(pandas.DataFrame(rows).iloc[1]), model.predict_proba(rows[1])
    )
    for wrong in ("a text", [1, 2], np.zeros((2, 3)), None, 3, pandas.Series([1, 2])):
        with pytest.raises(InputError, match="the model reads rows of a table"):
            model.predict(wrong)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"x": "high"}, "new.csv, row 3: column 'x' holds 'high'")],
)
def test_a_bad_row_is_named(
    run: Path, change: Row, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = unseen(run)
    write(Path("new.csv"), [*rows[:2], {**rows[2], **change}, *rows[3:]])
    assert call("predict", str(run), "new.csv") == 2
    assert message in capsys.readouterr().err


def test_other_columns_than_in_training_are_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(Path("new.csv"), [{"x": 1, "z": 2}])
    assert call("predict", str(run), "new.csv") == 2
    assert "needs the columns y, c once each; its columns are x, z" in capsys.readouterr().err
    Path("new.csv").write_text("x;y;c\n1;2;u\n")
    assert call("predict", str(run), "new.csv") == 2
    assert (
        "its columns are x;y;c, and the training data had x, y, c (its cells seem"
        in capsys.readouterr().err
    )
    Path("new.csv").write_text("x,x,y,c\n1,2,3,u\n")
    assert call("predict", str(run), "new.csv") == 2
    assert "has the column 'x' more than once" in capsys.readouterr().err
