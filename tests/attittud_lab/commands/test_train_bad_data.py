"""`attittud train` with data and encoders that teach nothing: refused, or told in a warning."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attittud_lab.data.source import warn_once
from tests.helpers.commands import call
from tests.helpers.data_sets import numbered, write
from tests.helpers.texts import tiny_encoder, tiny_images

SETTINGS = ["model=text-cnn", "portfolio.features=[tfidf]", "portfolio.learners=[linear]"]
TEXTS = numbered(0, ["a", "b"] * 40)
JOB = """
data:
  primary: {path: own.jsonl, train: 30, validation: 20, test: 20}
  auxiliary: {more: {path: more.jsonl}}
"""


@pytest.fixture(autouse=True)
def _data() -> None:
    Path("job.yaml").write_text(JOB)
    write(Path("own.jsonl"), TEXTS)
    write(Path("more.jsonl"), numbered(1000, ["a", "b"] * 30))


def without_weights() -> str:
    (tiny_encoder(Path("encoder")) / "model.safetensors").unlink()
    return "portfolio.features=[hf:encoder]"


def encoder_of_images() -> str:
    tiny_images(Path("encoder"))
    return "portfolio.features=[hf:encoder]"


def features_of_images() -> str:
    return "portfolio.features=[histogram]"


def text_column_with_numbers() -> None:
    rows = [{"text": 3.5 * n, "label": label} for n, (_, label) in enumerate(TEXTS)]
    Path("own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def texts_that_are_numbers() -> None:
    write(Path("own.jsonl"), [(str(n), label) for n, (_, label) in enumerate(TEXTS)])


def empty_texts() -> None:
    write(Path("own.jsonl"), [(" " * (n % 3), label) for n, (_, label) in enumerate(TEXTS)])


def empty_auxiliary_texts() -> None:
    write(Path("more.jsonl"), [("", label) for _, label in TEXTS])


def one_class() -> None:
    write(Path("own.jsonl"), [(text, "a") for text, _ in TEXTS])


def auxiliary_source_of_one_class() -> None:
    write(Path("more.jsonl"), numbered(1000, ["c"] * 60))


REFUSED: dict[Callable[[], str | None], str] = {
    without_weights: "hf:encoder",
    encoder_of_images: "hf:encoder",
    features_of_images: "'histogram'",
    text_column_with_numbers: "own.jsonl: column 'text'",
    texts_that_are_numbers: "own.jsonl",
    empty_texts: "own.jsonl",
    empty_auxiliary_texts: "more.jsonl",
    one_class: "own.jsonl",
    auxiliary_source_of_one_class: "data.auxiliary.more",
}


@pytest.mark.parametrize("damage", REFUSED, ids=lambda damage: damage.__name__)
def test_what_teaches_nothing_is_refused(damage, capsys):
    settings = [*SETTINGS, damage() or "seed=0"]
    assert call("train", "job.yaml", *settings) == 2
    *_, message = capsys.readouterr().err.splitlines()
    problem, _, cure = message.partition("; ")
    assert REFUSED[damage] in problem and cure


@pytest.mark.parametrize("held_out", ["0", "0.2"])
def test_one_label_for_each_class_needs_more_labels(held_out, capsys):
    """Raising data.primary.train, or lowering the other parts, would not help."""
    write(Path("own.jsonl"), numbered(0, "abcdefghij"))
    parts = f"data.primary={{validation: {held_out}, test: {held_out}, train: null}}"
    assert call("train", "job.yaml", *SETTINGS, parts) == 2
    *_, message = capsys.readouterr().err.splitlines()
    assert "; give more" in message and "data.primary.train" not in message


@pytest.mark.parametrize("train", ["null", "5"])
def test_a_class_that_is_held_out_is_cured_by_what_the_message_names(train, capsys):
    write(Path("own.jsonl"), numbered(0, ["a", "b"] * 10 + ["c"]))
    parts = f"data.primary={{validation: 7, test: 7, train: {train}}}"
    assert call("train", "job.yaml", *SETTINGS, parts, "data.seed=0") == 2
    *_, message = capsys.readouterr().err.splitlines()
    assert ("raise data.primary.train" in message) == (train != "null")
    parts = "data.primary={validation: 0, test: 0, train: null}"
    assert call("train", "job.yaml", *SETTINGS, parts) == 0


@pytest.mark.parametrize("command", ["init", "train"])
def test_texts_that_are_partly_empty_are_counted(command, caplog):
    """In all parts of the primary data, and in each auxiliary source."""
    warn_once.cache_clear()
    rows = TEXTS[:70]
    write(
        Path("own.jsonl"), [("" if n < 20 else text, label) for n, (text, label) in enumerate(rows)]
    )
    write(Path("more.jsonl"), [("  ", "a"), ("\u200b", "b"), *numbered(1000, ["a", "b"] * 30)])
    if command == "init":
        words = ["text", "--primary", "own.jsonl", "--auxiliary", "more.jsonl"]
        assert call("init", *words) == 0
    else:
        assert call("train", "job.yaml", *SETTINGS) == 0
    assert "own.jsonl: 20 of its 70 texts" in caplog.text
    assert "data.auxiliary.more: 2 of its 62 texts" in caplog.text


def test_pictures_of_one_colour_each_are_counted(caplog):
    """They train: the colour may tell the classes apart."""
    random = np.random.default_rng(0)
    for name, flat in (("primary", 15), ("auxiliary", 60)):
        for number in range(60):
            folder = Path(name, "ab"[number % 2])
            folder.mkdir(parents=True, exist_ok=True)
            pixels = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            if number < flat:
                pixels[:] = pixels[0, 0]
            Image.fromarray(pixels).save(folder / f"{number}.png")
    paths = ["data.primary.path=primary", "data.auxiliary.more.path=auxiliary"]
    settings = ["data.primary.train=null", "portfolio.learners=[linear]"]
    assert call("train", "job.yaml", *paths, *settings, "portfolio.features=[histogram]") == 0
    assert "primary: 15 of its 60 pictures show one colour" in caplog.text
    assert "data.auxiliary.more: 60 of its 60 pictures" in caplog.text


@pytest.mark.parametrize("source", ["primary", "auxiliary"])
def test_pictures_of_one_colour_are_refused(source, capsys):
    for number in range(60):
        for name in ("primary", "auxiliary"):
            folder = Path(name, "ab"[number % 2])
            folder.mkdir(parents=True, exist_ok=True)
            colour = 100 if name == source else number + 100 * (name == "primary")
            size = (8 + number, 8)  # they are equal only when they are scaled
            Image.new("L", size, colour).save(folder / f"{number}.png")
    paths = ["data.primary.path=primary", "data.auxiliary.more.path=auxiliary"]
    settings = [
        "data.primary.overlap=allow",
        "data.primary.train=20",
        "portfolio.learners=[linear]",
    ]
    assert call("train", "job.yaml", *paths, *settings, "portfolio.features=[histogram]") == 2
    *_, message = capsys.readouterr().err.splitlines()
    assert message.startswith(f"attittud: {source}: all ") and "; " in message


def test_a_source_of_one_primary_class_trains_with_a_warning(caplog):
    write(Path("more.jsonl"), numbered(1000, ["a"] * 60))
    assert call("train", "job.yaml", *SETTINGS) == 0
    assert "data.auxiliary.more: all its 60 examples have the class 'a'" in caplog.text


def test_a_class_that_only_the_auxiliary_data_have_trains_without_a_shared_head(capsys):
    write(Path("more.jsonl"), numbered(1000, ["a", "b", "c"] * 20))
    assert call("train", "job.yaml", *SETTINGS) == 0
    assert call("train", "job.yaml", *SETTINGS, "data.auxiliary.more.share_head=true") == 2
    assert "data.auxiliary.more.share_head" in capsys.readouterr().err
