"""`attittud train` with data and encoders that teach nothing: refused, or told in a warning."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

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


def one_label_per_class() -> str:
    write(Path("own.jsonl"), TEXTS[:2])
    return "data.primary={path: own.jsonl, validation: 0, test: 0}"


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
    one_label_per_class: "data.primary",
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
