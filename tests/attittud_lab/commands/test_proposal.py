"""The configuration that `attittud init` proposes for all kinds of data, and what it refuses."""

import json
from pathlib import Path

import pytest
from PIL import Image

from attittud_lab.config.load import load
from tests.helpers.commands import JOB, call


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)


def picture_folders(**classes: list[int]) -> None:
    """Folders with so many images of class a, b, ..."""
    for folder, counts in classes.items():
        for name, count in zip("abcdef", counts, strict=False):
            for number in range(count):
                path = Path(folder) / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (8, 8), (len(folder), ord(name), number)).save(path)


def test_init_refuses_what_train_would_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    picture_folders(mine=[8], others=[9, 9])
    assert call("init", "image", "--primary", "mine", "--auxiliary", "others") == 2
    said = capsys.readouterr().err
    assert "only one class ('a')" in said and not Path("attittud.yaml").exists()
    # Word by word the same.
    Path("job.yaml").write_text(
        JOB.replace("{path: digits, train: 60, validation: 60, test: 200}", "mine")
    )
    assert call("train", "job.yaml") == 2
    assert capsys.readouterr().err == said


def test_init_proposes_a_configuration_for_texts(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.csv").write_text(
        "text,label\n" + "".join(f"word{n} here,{'no' if n % 2 else 'yes'}\n" for n in range(40))
    )
    Path("b c.jsonl").write_text(
        "".join(json.dumps({"text": f"more {n}"}) + "\n" for n in range(30))
    )
    assert call("init", "text", "--primary", "a.csv", "--auxiliary", "b c.jsonl") == 0
    config = load("attittud.yaml")
    assert (
        config.data.auxiliary["b_c"].objective == "masked_lm"
        and config.training.guided.primary_batch == 24
    )
    assert (
        call(
            "train",
            "attittud.yaml",
            "training.guided.steps=2",
            "training.finetune.steps=2",
            "model.width=8",
        )
        == 0
    )
    assert call("init", "image", "--primary", "a.csv", "--force") == 2
    assert "use `attittud init text`" in capsys.readouterr().err
    assert call("init", "sound", "--primary", "a.csv", "--force") == 2
