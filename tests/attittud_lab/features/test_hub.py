"""Where no encoder is installed, one of the hub stands in: from the cache, or fetched by `init`."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from attittud_lab import features
from attittud_lab.errors import InputError
from attittud_lab.features import hub
from tests.helpers.commands import call
from tests.helpers.texts import reviews, tiny_encoder

huggingface_hub = pytest.importorskip(
    "huggingface_hub", reason="the extra pretrained is not installed"
)
NAME = "sentence-transformers/all-MiniLM-L6-v2"
TEXTS = [row["text"] for row in reviews(10, 0)]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and no package with an encoder."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    entry, _ = features.find("minilm")
    monkeypatch.setitem(features._ENTRIES, "minilm", replace(entry, needs=("no_such_package",)))
    return tmp_path / "hub"


def write_texts() -> None:
    rows = [f"film number {number},{'ab'[number % 2]}" for number in range(40)]
    Path("own.csv").write_text("\n".join(["text,label", *rows]))


def put(cache: Path, leave_out: str = "") -> None:
    """Keep a tiny encoder under the name of the real one, as the hub's library does."""
    revision = "0" * 40
    folder = cache / f"models--{NAME.replace('/', '--')}"
    target = folder / "snapshots" / revision
    shutil.copytree(tiny_encoder(cache.parent / "encoder"), target)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(revision)
    if leave_out:
        (target / leave_out).unlink()


def test_a_cached_encoder_is_tried_by_default(cache):
    put(cache)
    choice = features.choose_features("text")
    assert choice.names == ["tfidf", f"hf:{NAME}"]
    assert "no_such_package" in choice.lines[1]
    assert len(features.build(choice.names[1], "text").transform(TEXTS)) == len(TEXTS)


@pytest.mark.parametrize("lacking", hub.NEEDED)
def test_half_an_encoder_is_left_out(cache, lacking):
    put(cache, lacking)
    choice = features.choose_features("text")
    assert choice.names == ["tfidf"]
    assert "pip install" in choice.lines[1]


def test_an_installed_encoder_comes_first(cache, monkeypatch):
    put(cache)
    entry, _ = features.find("minilm")
    monkeypatch.setitem(features._ENTRIES, "minilm", replace(entry, needs=()))
    assert features.choose_features("text").names == ["tfidf", "minilm"]
    assert features.absent_encoder("text") is None


@pytest.mark.parametrize("answer", ["y", "n", "fails"])
def test_init_asks(cache, answer, tmp_path, monkeypatch, capsys):
    asked = []

    def confirm(question: str, **_: object) -> bool:
        asked.append(question)
        return answer != "n"

    def download(name: str, **_: object) -> None:
        assert name == NAME
        if answer == "fails":
            raise OSError("no route to host")
        put(cache)

    monkeypatch.setattr("typer.confirm", confirm)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.chdir(tmp_path)
    write_texts()
    assert call("init", "text", "--primary", "own.csv") == 0
    assert Path("attittud.yaml").exists()
    (question,) = asked
    assert NAME in question
    assert hub.is_cached(NAME) == (answer == "y")
    told = capsys.readouterr().err
    assert ("no route to host" in told and "pip install" in told) == (answer == "fails")
    if answer == "y":
        assert call("init", "text", "--primary", "own.csv", "--force") == 0
        assert len(asked) == 1


@pytest.mark.usefixtures("cache")
def test_nobody_is_asked_who_cannot_answer(tmp_path, monkeypatch):
    monkeypatch.setattr("typer.confirm", lambda *_, **__: pytest.fail("asked"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    monkeypatch.chdir(tmp_path)
    write_texts()
    assert call("init", "text", "--primary", "own.csv") == 0


def test_a_repository_without_safetensors_is_named(cache, monkeypatch):
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *_, **__: put(cache, "model.safetensors")
    )
    with pytest.raises(InputError, match=NAME):
        hub.fetch(NAME)
