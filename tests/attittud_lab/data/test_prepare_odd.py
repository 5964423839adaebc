"""Data from which nothing can be learned are refused with the culprit; data that look odd but can
be used train.
"""

from pathlib import Path
from typing import Any

import pytest

from attittud_lab.config.load import loads
from attittud_lab.data import source
from attittud_lab.data.prepare import Prepared
from attittud_lab.errors import InputError
from attittud_lab.training.train import load_data
from tests.helpers.data_files import write_columns

ORDINARY = [f"some words {number}" for number in range(30)]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source.warn_once.cache_clear()
    monkeypatch.chdir(tmp_path)


def write(name: str, texts: list[Any], labels: list[Any]) -> None:
    write_columns(Path(name), {"text": texts, "label": labels})


def load(text: str, model: str = "text-cnn") -> Prepared:
    return load_data(loads(f"data: {{{text}}}\nmodel: {model}\nstrategy: flip"))


def test_a_source_with_one_class() -> None:
    write("one.csv", ORDINARY, ["a"] * 30)
    write("two.csv", [f"other {text}" for text in ORDINARY], ["a", "b"] * 15)
    with pytest.raises(InputError, match=r"one\.csv.*'a'"):
        load("primary: one.csv")
    assert load("primary: two.csv, auxiliary: {more: one.csv}").auxiliary["more"].classes == ["a"]
    write("one.csv", ORDINARY, ["z"] * 30)
    with pytest.raises(InputError, match=r"data\.auxiliary\.more.*'z'"):
        load("primary: two.csv, auxiliary: {more: one.csv}")


def test_a_class_that_only_the_auxiliary_data_have_needs_an_output_layer_of_its_own() -> None:
    write("two.csv", ORDINARY, ["a", "b"] * 15)
    write("three.csv", [f"other {text}" for text in ORDINARY], ["a", "b", "c"] * 10)
    assert load("primary: two.csv, auxiliary: {more: three.csv}").auxiliary["more"].classes == [
        "a",
        "b",
        "c",
    ]
    with pytest.raises(InputError, match=r"data\.auxiliary\.more\.share_head"):
        load("primary: two.csv, auxiliary: {more: {path: three.csv, share_head: true}}")
