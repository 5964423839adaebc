"""Tables as features: what is learned about a column, what no row may leak, and odd tables that are
read right or refused.
"""

import csv
import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from attittud_lab.config.load import loads
from attittud_lab.config.schema import Config
from attittud_lab.data import source
from attittud_lab.data.features import FARTHEST, MOST_LEVELS, Features
from attittud_lab.data.prepare import Prepared, prepare
from attittud_lab.data.rows import read_file
from attittud_lab.errors import InputError
from attittud_lab.models.network import load_weights
from attittud_lab.training.train import run

Table = Mapping[str, Sequence[Any]]


def write(path: Path, table: Table) -> Path:
    """A table as a csv, jsonl or parquet file."""
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    if path.suffix == ".parquet":
        pq.write_table(pa.table({name: list(values) for name, values in table.items()}), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerows(
                [
                    list(table),
                    *(["" if cell is None else cell for cell in row.values()] for row in rows),
                ]
            )
    return path


def job(primary: Path, auxiliary: Path | None = None, **table: Any) -> Config:
    others = {} if auxiliary is None else {"other": {"path": str(auxiliary)}}
    data = {"kind": "table", "primary": {"path": str(primary)}, "auxiliary": others, "table": table}
    return loads(json.dumps({"data": data, "model": {"name": "table-mlp", "width": 8}}))


def read(primary: Path, auxiliary: Path | None = None, **table: Any) -> Prepared:
    return prepare(job(primary, auxiliary, **table).data, 0)


def numbers(count: int = 60, seed: int = 0, **more: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """Two columns of numbers and a label that follows from them."""
    generator = np.random.default_rng(seed)
    x, y = generator.normal(size=(2, count)).round(4)
    return {
        "x": x.tolist(),
        "y": (100 + 7 * y).tolist(),
        "label": ["ab"[int(a > 0)] for a in x],
        **more,
    }


def fitted(table: Table, **config: Any) -> Features:
    chosen = job(Path("none"), **config).data.table
    return Features.fit(
        pa.table({name: list(values) for name, values in table.items()}), chosen, "file"
    )


# ------------------------------------------------------------------------------------------ columns


@pytest.mark.parametrize("suffix", [".csv"])
def test_numbers_are_standardised_by_the_training_examples(tmp_path: Path, suffix: str) -> None:
    data = read(write(tmp_path / f"a{suffix}", numbers()))
    inputs = data.primary.examples.inputs
    assert inputs.dtype == torch.float32 and inputs.shape[1] == 2
    torch.testing.assert_close(inputs.mean(0), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(inputs.std(0, correction=0), torch.ones(2))
    assert data.test.inputs.mean(0).abs().max() > 1e-4  # by the same figures, so not by its own


def test_all_formats_give_the_same_bits(tmp_path: Path) -> None:
    table = numbers(c=["u", "v", ""] * 20, n=[1, None, 3, 4] * 15)
    first, *others = (
        read(write(tmp_path / f"a{suffix}", table), categorical=["n"])
        for suffix in (".csv", ".jsonl", ".parquet")
    )
    for other in others:
        assert first.record["sha256"] == other.record["sha256"]


def test_missing_numbers_are_the_mean_with_an_indicator() -> None:
    features = fitted({"x": [1.0, None, 3.0, float("nan")]})
    encoded = features.encode(pa.table({"x": [1.0, None, 3.0]}), "file")
    assert encoded.tolist() == [[-1, 0], [0, 1], [1, 0]]
    # Without a gap in training there is nothing to learn about gaps.
    whole = fitted({"x": [1.0, 3.0]})
    assert whole.encode(pa.table({"x": [None, 3.0]}), "file").tolist() == [[0], [1]]


@pytest.mark.parametrize("word", ["", "NA"])
def test_words_such_as_na_count_as_missing_numbers(tmp_path: Path, word: str) -> None:
    table = write(tmp_path / "a.csv", numbers(z=[word, "1", "2", "3"] * 15))
    assert read(table).primary.examples.inputs.shape[1] == 4  # x, y, z and its indicator


def test_texts_are_categories_and_unseen_texts_share_a_feature() -> None:
    features = fitted({"c": ["b", "a", "b", ""]})
    assert features.columns[0].levels == ["", "a", "b"]
    encoded = features.encode(pa.table({"c": ["a", "b", "z", None]}), "file")
    assert encoded.tolist() == [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0]]


def test_only_the_most_frequent_texts_become_categories(caplog: pytest.LogCaptureFixture) -> None:
    texts = [f"t{number}" for number in range(MOST_LEVELS + 50)] + ["t149"] * 3
    features = fitted({"c": texts})
    assert features.width == MOST_LEVELS + 1 and "t149" in features.columns[0].levels
    assert "150 different texts" in caplog.text


def test_ids_and_constants_are_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(
        tmp_path / "a.csv",
        numbers(id=[f"p{n}" for n in range(60)], same=[3] * 60, row=list(range(60))),
    )
    data = read(path)
    assert data.record["table"]["left_out"].keys() == {"id", "same"}
    assert (
        "column 'id' is left out: a different text" in caplog.text
        and "column 'same' is left out: the same value" in caplog.text
    )
    assert "'row' rises or falls from row to row" in caplog.text
    assert read(path, columns=["x", "id"]).primary.examples.inputs.shape[1] > 30


def test_one_odd_number_does_not_outweigh_the_others() -> None:
    features = fitted({"x": [0.0, 1.0, 0.0, 1.0]})
    assert features.encode(pa.table({"x": [1e308, -1e308]}), "file").tolist() == [
        [FARTHEST],
        [-FARTHEST],
    ]
    huge = fitted({"x": [1e308, -1e308, 5e307]}).encode(pa.table({"x": [1e308, 0.0]}), "file")
    assert np.isfinite(huge).all() and huge[0, 0] > 0.5
    tiny = fitted({"x": [1e-300, 2e-300]}).encode(pa.table({"x": [1e-300, 2e-300]}), "file")
    np.testing.assert_allclose(tiny, [[-1], [1]], rtol=1e-5)


@pytest.mark.parametrize("suffix", [".jsonl"])
def test_lists_of_numbers_become_features(tmp_path: Path, suffix: str) -> None:
    vectors = np.random.default_rng(0).normal(size=(60, 5)).round(3).tolist()
    data = read(write(tmp_path / f"a{suffix}", numbers(e=[None, *vectors[1:]])), columns=["e"])
    assert data.primary.examples.inputs.shape[1] in (
        5,
        6,
    )  # with an indicator, if the gap is in training
    with pytest.raises(InputError, match=r"column 'e' has lists of 4, 5 numbers"):
        read(
            write(tmp_path / f"b{suffix}", numbers(e=[[1.0] * 4, *vectors[1:]] * 1)), columns=["e"]
        )


def test_a_row_does_not_depend_on_the_rows_around_it() -> None:
    features = fitted({"c": ["1", "2", "", "a"], "x": [1.0, 2.0, None, 4.0]})
    rows = [
        {"c": 1.0, "x": "2"},
        {"c": "2", "x": 2},
        {"c": math.nan, "x": math.nan},
        {"c": None},
        {"c": 2, "x": 3.5},
    ]
    together = features.encode_rows(rows, "file")
    alone = [features.encode_rows([row], "file")[0] for row in rows]
    np.testing.assert_array_equal(together, np.stack(alone))
    np.testing.assert_array_equal(
        together[3:4], features.encode_rows([{"c": None, "x": None}], "file")
    )


def test_a_row_may_lack_a_cell_only_if_training_has_gaps_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source.warn_once.cache_clear()
    features = fitted({"x": [1.0, 2.0, None], "c": ["a", "b", "b"], "d": ["a", "", "b"]})
    whole = {"x": 1.0, "c": "a", "d": "a"}
    for rows in ([{"x": 1.0, "d": "a"}], [whole, {"x": 1.0, "d": "a"}]):
        with pytest.raises(
            InputError, match=r"needs the columns c once each; its columns are x, d.* write null"
        ):
            features.encode_rows(rows, "file")
    assert not caplog.text
    lacking, empty = ([row, whole] for row in ({"c": "a"}, {"x": None, "c": "a", "d": None}))
    np.testing.assert_array_equal(
        features.encode_rows(lacking, "file"), features.encode_rows(empty, "file")
    )
    assert (
        caplog.text.count("rows without the column") == 2
    )  # of x and d; a misspelt name is noticed


@pytest.mark.parametrize(
    ("texts", "cells"),
    [
        (["true", "false", "true"], pa.array([True, False, True])),
        (["1.0", "2.0", "1.0"], pa.array([1.0, 2.0, 1.0])),
        (["0.1", "0.2", "0.1"], pa.array([0.1, 0.2, 0.1], pa.float32())),
    ],
)
def test_categories_are_the_same_in_all_formats(
    texts: list[str], cells: pa.Array, caplog: pytest.LogCaptureFixture
) -> None:
    """csv files have other spellings than parquet files."""
    features = fitted({"c": texts})
    found = features.encode(pa.table({"c": cells}), "file")
    np.testing.assert_array_equal(found, features.encode(pa.table({"c": texts}), "file"))
    assert not found[:, -1].any() and not caplog.text


def test_spellings_that_mean_the_same_share_a_feature() -> None:
    """Also within one file: joined files may have 1 where gaps turned it into 1.0 elsewhere."""
    cells = ["TRUE", "true", "true", "01", "1", "1.0", "1", ""]
    features = fitted({"c": cells})
    assert features.columns[0].levels == ["", "01", "1", "true"]
    found = features.encode(pa.table({"c": cells}), "file")
    np.testing.assert_array_equal(found.sum(0), [1, 1, 3, 3, 0])


@pytest.mark.parametrize(
    "cell",
    ["a", True, None, 10**400, ["a"], [1]],
)
def test_cells_of_new_rows_are_read_or_refused(cell: Any) -> None:
    features = fitted(
        {"x": [1.0, 3.0, 2.0], "c": ["a", "b", "b"], "e": [[1.0, 2.0], [3.0, 5.0], [3.0, 4.0]]}
    )
    good = {"x": 2.0, "c": "b", "e": [1, 2]}
    assert features.encode_rows([], "file").shape == (0, features.width)
    for name in good:
        try:
            encoded = features.encode_rows([{**good, name: cell}, good], "file")
        except InputError as error:
            words = str(error)
            assert words.startswith(f"file: column {name!r}") and "\n" not in words
        else:
            assert np.isfinite(encoded).all() and encoded.shape == (2, features.width)


# ---------------------------------------------------------------------------------- what is refused


def test_columns_must_agree_between_sources(tmp_path: Path) -> None:
    primary = write(tmp_path / "a.csv", numbers(mine=[1, 2, 3] * 20))
    other = write(tmp_path / "b.csv", numbers(seed=1, its=[1, 2, 3] * 20))
    with pytest.raises(InputError, match=r"\(its, mine\) in data.table.exclude") as caught:
        read(primary, other)
    assert "primary source has mine, x, y; other has its, x, y" in str(caught.value)
    assert read(primary, other, exclude=["mine", "its"]).primary.examples.inputs.shape[1] == 2
    with pytest.raises(InputError, match=r"no source has a column 'mime'; did you mean 'mine'\?"):
        read(primary, other, exclude=["mime", "its"])
    for key in ("columns", "categorical"):
        with pytest.raises(InputError, match=rf"there is no column 'its' \(data.table.{key}:\)"):
            read(primary, other, **{key: ["its"]})


# ---------------------------------------------------------------------------- labels, splits, leaks


def test_groups_stay_together_and_are_not_a_feature(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", numbers(patient=[f"p{n // 3}" for n in range(60)]))
    config = {"kind": "table", "primary": {"path": str(path), "group": "patient"}}
    data = prepare(loads(json.dumps({"data": config})).data, 0)
    assert data.primary.examples.inputs.shape[1] == 2
    groups = [
        {row // 3 for row in data.record["primary"][part]["rows"]}
        for part in ("train", "validation", "test")
    ]
    assert not groups[0] & groups[1] and not groups[0] & groups[2] and not groups[1] & groups[2]


def test_rows_of_the_primary_table_are_left_out_of_auxiliary_tables(tmp_path: Path) -> None:
    mine, its = numbers(code=[1, 2, 3] * 20), numbers(seed=1, code=[1, 2, 3] * 20)
    both = {name: [*mine[name], *its[name]] for name in mine}
    for suffix in (".csv", ".parquet"):
        data = read(
            write(tmp_path / "a.csv", mine),
            write(tmp_path / f"b{suffix}", both),
            categorical=["code"],
        )
        assert data.record["auxiliary"]["other"]["left_out_as_primary"] == 60


def test_other_rows_change_no_bit_of_training(tmp_path: Path) -> None:
    """Neither the features of training nor the weights that are trained depend on test examples."""
    table, other = (
        numbers(c=["u", "v", "w"] * 20, n=[1, None, 3, 4] * 15),
        numbers(seed=1, c=["u", "v"] * 30, n=[1, 2] * 30),
    )
    write(tmp_path / "b.csv", other)
    found = []
    for number in range(2):
        if number:  # far away, with gaps, and with a text that training does not know
            for row in found[0][0].record["primary"]["test"]["rows"]:
                for name, odd in {"x": 1e6, "y": None, "c": "new", "n": 77}.items():
                    table[name] = [*table[name][:row], odd, *table[name][row + 1 :]]
        config = job(write(tmp_path / "a.csv", table), tmp_path / "b.csv")
        steps = [
            "training.guided.steps=6",
            "training.finetune.steps=3",
            "training.guided.evaluations=2",
        ]
        config = loads(json.dumps(_plain(config)), steps)
        result = run(config, run_dir=tmp_path / str(number))
        found.append(
            (prepare(config.data, 0), load_weights(result.run_dir / "weights.safetensors"))
        )
    (first, weights), (second, again) = found
    assert not torch.equal(first.test.inputs, second.test.inputs)
    for one, two in (
        (first.primary.examples, second.primary.examples),
        (first.validation, second.validation),
    ):
        assert torch.equal(one.inputs, two.inputs)
    assert weights.keys() == again.keys() and all(
        torch.equal(weights[name], again[name]) for name in weights
    )


def _plain(config: Config) -> dict[str, Any]:
    from attittud_lab.config.schema import to_dict

    plain = to_dict(config)
    return {"data": plain["data"], "model": plain["model"]}


# --------------------------------------------------------------------------------------- odd tables

TEXTS = [
    "",
    " ",
    "a",
    "é漢🙂",
    'say "no"',
    "x,y",
    "line\nbreak",
    "NA",
    "None",
    "01",
    "no",
    "nan",
    "inf",
    "-inf",
    "[1]",
    "true",
]
CELLS = [*TEXTS, 0, 1, -3, 2**53 + 1, 10**40, 0.5, 1e308, -1e308, 5e-324, math.pi, None]
NAMES = ["x", "y", "", " ", "é", 'a "b"', "c,d", "label ", "id", "x"]


def odd_table(draw: random.Random) -> list[list[Any]]:
    """A heading and rows; every column draws its cells from a few of the odd ones, so that most are
    of one type.
    """
    names = [*draw.sample(NAMES, draw.randint(1, 4)), "label"]
    pools = [draw.sample(CELLS, draw.randint(1, 4)) for _ in names[:-1]]
    simple = [draw.random() < 0.6 for _ in names]  # else hardly a table would be read to its end
    rows = [
        [
            draw.gauss(0, 1) if plain else draw.choice(pool)
            for pool, plain in zip(pools, simple, strict=False)
        ]
        + [draw.choice("ab")]
        for _ in range(draw.choice([1, 2, 5, 30, 60]))
    ]
    return [names, *rows]


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("suffix", [".csv"])
def test_odd_tables_are_read_right_or_refused(tmp_path: Path, suffix: str) -> None:
    draw, whole, refused = random.Random(0), 0, list[str]()
    for number in range(120):
        heading, *cells = odd_table(draw)
        path = tmp_path / f"{number}{suffix}"
        if suffix == ".jsonl":
            path.write_text(
                "".join(json.dumps(dict(zip(heading, row, strict=True))) + "\n" for row in cells)
            )
        else:
            with path.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows(
                    [["" if cell is None else cell for cell in row] for row in (heading, *cells)]
                )
        config = job(path)
        try:
            data = prepare(config.data, 0)
        except InputError as error:
            refused.append(str(error))
            continue
        whole += 1
        for part in data.all_examples:
            assert part.inputs.isfinite().all() and part.inputs.abs().max() <= FARTHEST
        kept = Features.read(json.loads(json.dumps(data.record["table"])))
        rows = data.record["primary"]["test"]["rows"]
        encoded = kept.encode(read_file(path), "file")[rows]
        np.testing.assert_array_equal(encoded, data.test.inputs.numpy())
    assert whole > 20 and all("\n" not in words and len(words) < 1500 for words in refused)
