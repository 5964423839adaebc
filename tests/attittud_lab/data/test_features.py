"""Tables as features: what is learned about a column, and what no row may leak."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from attittud_lab.config.load import changed, loads
from attittud_lab.config.schema import Config
from attittud_lab.data.features import FARTHEST, Features
from attittud_lab.data.prepare import Prepared, prepare
from attittud_lab.errors import InputError
from attittud_lab.models.weights import load_weights
from attittud_lab.training.train import run
from tests.helpers.data_files import write_columns as write

Table = Mapping[str, Sequence[Any]]


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
    return Features.fit(pa.table(dict(table)), chosen, "file")


def test_numbers_are_standardised_by_the_training_examples(tmp_path):
    data = read(write(tmp_path / "a.csv", numbers()))
    inputs = data.primary.examples.inputs
    assert inputs.dtype == torch.float32 and inputs.shape[1] == 2
    torch.testing.assert_close(inputs.mean(0), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(inputs.std(0, correction=0), torch.ones(2))
    assert data.test.inputs.mean(0).abs().max() > 1e-4  # by the same figures, so not by its own


def test_all_formats_give_the_same_bits(tmp_path):
    table = numbers(c=["u", "v", ""] * 20, n=[1, None, 3, 4] * 15)
    first, *others = (
        read(write(tmp_path / f"a{suffix}", table), categorical=["n"])
        for suffix in (".csv", ".jsonl", ".parquet")
    )
    for other in others:
        assert first.record["sha256"] == other.record["sha256"]


def test_missing_numbers_are_the_mean_with_an_indicator():
    features = fitted({"x": [1.0, None, 3.0, float("nan")]})
    encoded = features.encode(pa.table({"x": [1.0, None, 3.0]}), "file")
    assert encoded.tolist() == [[-1, 0], [0, 1], [1, 0]]
    # Without a gap in training there is nothing to learn about gaps.
    whole = fitted({"x": [1.0, 3.0]})
    assert whole.encode(pa.table({"x": [None, 3.0]}), "file").tolist() == [[0], [1]]


def test_texts_are_categories_and_unseen_texts_share_a_feature():
    features = fitted({"c": ["b", "a", "b", ""]})
    assert features.columns[0].levels == ["", "a", "b"]
    encoded = features.encode(pa.table({"c": ["a", "b", "z", None]}), "file")
    assert encoded.tolist() == [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0]]


def test_spellings_that_mean_the_same_share_a_feature():
    """Also within one file: joined files may have 1 where gaps turned it into 1.0 elsewhere."""
    cells = ["TRUE", "true", "true", "01", "1", "1.0", "1", ""]
    features = fitted({"c": cells})
    assert features.columns[0].levels == ["", "01", "1", "true"]
    found = features.encode(pa.table({"c": cells}), "file")
    np.testing.assert_array_equal(found.sum(0), [1, 1, 3, 3, 0])


def test_ids_and_constants_are_left_out_with_a_warning(tmp_path, caplog):
    more = {"id": [f"p{n}" for n in range(60)], "same": [3] * 60, "row": list(range(60))}
    path = write(tmp_path / "a.csv", numbers(**more))
    data = read(path)
    assert data.record["table"]["left_out"].keys() == {"id", "same"}
    assert all(f"'{name}'" in caplog.text for name in ("id", "same", "row"))
    assert read(path, columns=["x", "id"]).primary.examples.inputs.shape[1] > 30


def test_one_odd_number_does_not_outweigh_the_others():
    features = fitted({"x": [0.0, 1.0, 0.0, 1.0]})
    expected = [[FARTHEST], [-FARTHEST]]
    assert features.encode(pa.table({"x": [1e308, -1e308]}), "file").tolist() == expected
    huge = fitted({"x": [1e308, -1e308, 5e307]}).encode(pa.table({"x": [1e308, 0.0]}), "file")
    assert np.isfinite(huge).all() and huge[0, 0] > 0.5
    tiny = fitted({"x": [1e-300, 2e-300]}).encode(pa.table({"x": [1e-300, 2e-300]}), "file")
    np.testing.assert_allclose(tiny, [[-1], [1]], rtol=1e-5)


@pytest.mark.parametrize("cell", ["a", True, None, 10**400, ["a"], [1]])
def test_cells_of_new_rows_are_read_or_refused(cell):
    """An error names the row that cannot be read, among others that can."""
    features = fitted(
        {"x": [1.0, 3.0, 2.0], "c": ["a", "b", "b"], "e": [[1.0, 2.0], [3.0, 5.0], [3.0, 4.0]]}
    )
    good = {"x": 2.0, "c": "b", "e": [1, 2]}
    assert features.encode_rows([], []).shape == (0, features.width)
    for name in good:
        try:
            encoded = features.encode_rows([good, {**good, name: cell}, good], ["1", "2", "3"])
        except InputError as error:
            words = str(error)
            assert words.startswith(f"2: column {name!r}") and "\n" not in words
        else:
            assert np.isfinite(encoded).all() and encoded.shape == (3, features.width)
    with pytest.raises(InputError, match=r"^2: .*'e'"):
        features.encode_rows([good, {"x": cell, "c": cell}], ["1", "2"])


def test_columns_must_agree_between_sources(tmp_path):
    primary = write(tmp_path / "a.csv", numbers(mine=[1, 2, 3] * 20))
    other = write(tmp_path / "b.csv", numbers(seed=1, its=[1, 2, 3] * 20))
    with pytest.raises(InputError, match=r"its, mine"):
        read(primary, other)
    assert read(primary, other, exclude=["mine", "its"]).primary.examples.inputs.shape[1] == 2
    with pytest.raises(InputError, match="no column of features"):
        read(primary, columns=[])


def test_other_rows_change_no_bit_of_training(tmp_path):
    """Neither the features of training nor the weights that are trained depend on test examples."""
    table = numbers(c=["u", "v", "w"] * 20, n=[1, None, 3, 4] * 15)
    other = numbers(seed=1, c=["u", "v"] * 30, n=[1, 2] * 30)
    write(tmp_path / "b.csv", other)
    found = []
    for number in range(2):
        if number:  # far away, with gaps, and with a text that training does not know
            for row in found[0][0].record["primary"]["test"]["rows"]:
                for name, odd in {"x": 1e6, "y": None, "c": "new", "n": 77}.items():
                    table[name] = [*table[name][:row], odd, *table[name][row + 1 :]]
        config = job(write(tmp_path / "a.csv", table), tmp_path / "b.csv")
        config = changed(config, ["strategy=auto", "training.guided.steps=6"])
        config = changed(config, ["training.guided.evaluations=2", "training.finetune.steps=3"])
        result = run(config, run_dir=tmp_path / str(number))
        weights = load_weights(result.run_dir / "weights.safetensors")
        found.append((prepare(config.data, 0), weights))
    (first, weights), (second, again) = found
    assert not torch.equal(first.test.inputs, second.test.inputs)
    assert torch.equal(first.primary.examples.inputs, second.primary.examples.inputs)
    assert torch.equal(first.validation.inputs, second.validation.inputs)
    assert weights.keys() == again.keys()
    assert all(torch.equal(weights[name], again[name]) for name in weights)
