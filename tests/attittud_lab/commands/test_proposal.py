"""The configuration that `attittud init` proposes for all kinds of data, and what it refuses."""

import json
from pathlib import Path

import pytest

from attittud_lab.config.load import load
from tests.helpers.commands import JOB, call


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)


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
