"""`attittud init` writes a configuration that `attittud train` reads."""

from pathlib import Path

import pytest

from tests.helpers.commands import JOB, call


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)


def test_init_writes_a_configuration_that_train_reads(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        call("init", "image", "--primary", "digits", "--auxiliary", "digits", "-o", "mine.yaml")
        == 0
    )
    text = Path("mine.yaml").read_text()
    out = capsys.readouterr().out  # what was found, and where the rest is
    assert (
        out.startswith("# Primary: 1797 images, shorter side 8 pixels, 10 classes.\n")
        and "data:" not in out
    )
    assert text.startswith(out.partition("# written to mine.yaml")[0])
    assert "      share_head: true  # it has the primary classes" in text
    chosen = [
        line for line in text.splitlines() if any(c.isdigit() for c in line.partition("#")[0])
    ]
    assert len(chosen) > 8 and all("#" in line for line in chosen)
    assert (
        "    train: 0.2  # the rest of this source is auxiliary data" in text
    )  # both are the same digits
    quick = ["training.guided.steps=3", "training.finetune.steps=2"]
    assert call("train", "mine.yaml", *quick) == 0
    assert call("init", "image", "--primary", "digits", "-o", "mine.yaml") == 2
    assert "--force" in capsys.readouterr().err
    # A wrong path comes first: whoever adds --force should not learn of it only then.
    for wrong in (["--primary", "digit"], ["--primary", "digits", "--auxiliary", "digit"]):
        assert call("init", "image", *wrong, "-o", "mine.yaml") == 2
        assert "digit: there is no such file or folder" in capsys.readouterr().err
