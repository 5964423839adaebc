"""Data from which nothing can be learned are refused with the culprit; data that look odd but can
be used train.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from attittud_lab.commands.proposal import propose
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


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(
    "texts",
    [[str(n / 2) for n in range(30)], [""] * 30, [" \t"] * 30],
    ids=["numbers", "empty", "blank"],
)
def test_texts_without_words_are_refused(suffix: str, texts: list[str]) -> None:
    name = f"odd.{suffix}"
    write(name, texts, ["a", "b"] * 15)
    write("ordinary.csv", ORDINARY, ["a", "b"] * 15)
    for job in (
        f"primary: {{path: {name}, overlap: allow}}",
        f"primary: ordinary.csv, auxiliary: {{odd: {name}}}",
    ):
        with pytest.raises(InputError, match=f"odd.{suffix}"):
            load(job)
    with pytest.raises(InputError, match=f"odd.{suffix}.*--input"):
        propose("text", name, [])


def test_some_texts_may_be_empty_or_numbers() -> None:
    write("some.csv", ["", "12", *ORDINARY[:28]], ["a", "b"] * 15)
    data = load("primary: some.csv")
    assert sum(map(len, (data.primary.examples, data.validation, data.test))) == 30


def test_pictures_that_all_show_the_same_are_refused() -> None:
    """The files differ, so they are no copies; the pixels are equal."""
    for name in "ab":
        Path("flat", name).mkdir(parents=True)
        for number in range(10):
            Image.new("RGB", (10 + number, 20 + ord(name)), (9, 90, 9)).save(
                f"flat/{name}/{number}.png"
            )
    with pytest.raises(InputError, match="flat"):
        load("primary: flat", "mlp")


def test_pictures_of_one_colour_each_can_be_learned() -> None:
    for name in "ab":
        Path("flat", name).mkdir(parents=True)
        for number in range(10):
            Image.new("RGB", (16, 16), (9 + number, ord(name), 9)).save(f"flat/{name}/{number}.png")
    examples = load("primary: flat", "mlp").primary.examples
    assert len(np.unique(examples.inputs.numpy().reshape(len(examples), -1), axis=0)) == len(
        examples
    )


def test_one_label_for_each_class_is_not_enough_to_measure_but_enough_to_train() -> None:
    write("two.csv", ["one text", "another text"], ["a", "b"])
    with pytest.raises(InputError, match="train"):
        load("primary: two.csv")
    Path("own").mkdir()
    for part, count in {"train": 1, "validation": 5, "test": 5}.items():
        write(
            f"own/{part}.csv",
            [f"{part} {word}" for word in ORDINARY[: 2 * count]],
            ["a", "b"] * count,
        )
    assert len(load("primary: own").primary.examples) == 2


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
