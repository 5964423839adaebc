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
