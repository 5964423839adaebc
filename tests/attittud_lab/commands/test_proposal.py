"""The configuration that `attittud init` proposes for all kinds of data, and what it refuses."""

import json
from pathlib import Path

import pytest
from PIL import Image

from attittud_lab.commands.proposal import propose
from attittud_lab.config.load import load, loads
from attittud_lab.data.chexpert import COMPETITION
from attittud_lab.training.train import run
from tests.helpers.chexpert import root
from tests.helpers.commands import JOB, call

__all__ = ["root"]  # fixtures


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


@pytest.mark.parametrize(
    ("counts", "message"),
    [([8], "only one class ('a')")],
)
def test_init_refuses_what_train_would_refuse(
    counts: list[int], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    picture_folders(mine=counts, others=[9, 9])
    assert call("init", "image", "--primary", "mine", "--auxiliary", "others") == 2
    said = capsys.readouterr().err
    assert message in said and not Path("attittud.yaml").exists()
    # Word by word the same.
    Path("job.yaml").write_text(
        JOB.replace("{path: digits, train: 60, validation: 60, test: 200}", "mine")
    )
    assert call("train", "job.yaml") == 2
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("counts", "auxiliary", "strategy", "batch"),
    [([3, 3], True, "portfolio", 4)],
)
def test_what_init_writes_for_few_images_can_be_trained(
    counts: list[int], auxiliary: bool, strategy: str, batch: int
) -> None:
    picture_folders(mine=counts, others=[9, 9])
    assert (
        call(
            "init", "image", "--primary", "mine", *(["--auxiliary", "others"] if auxiliary else [])
        )
        == 0
    )
    found = load("attittud.yaml")
    assert (found.strategy.name, found.training.guided.primary_batch) == (strategy, batch)
    assert (
        call("train", "attittud.yaml", "training.guided.steps=2", "training.finetune.steps=2") == 0
    )


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


def test_init_takes_names_of_columns(capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"word{n} here,{'no' if n % 2 else 'yes'}\n" for n in range(40))
    Path("a.csv").write_text("body,verdict\n" + rows)
    Path("b.csv").write_text("text,label\n" + rows.replace("word", "other"))
    assert call("init", "text", "--primary", "a.csv") == 2
    assert "name it with --input. Columns: body, verdict" in capsys.readouterr().err
    assert call("init", "text", "--primary", "a.csv", "--input", "body") == 2
    assert "name it with --label" in capsys.readouterr().err
    columns = ["--input", "body", "--label", "verdict"]
    assert call("init", "text", "--primary", "a.csv", "--auxiliary", "b.csv", *columns) == 0
    assert "#   no (20), yes (20)" in capsys.readouterr().out
    data = load("attittud.yaml").data
    assert (data.primary.input, data.primary.label) == ("body", "verdict")
    assert (data.auxiliary["b"].input, data.auxiliary["b"].label) == (
        None,
        None,
    )  # it has the usual ones
    quick = ["training.guided.steps=2", "training.finetune.steps=2", "model.width=8"]
    assert call("train", "attittud.yaml", *quick) == 0
    assert call("init", "text", "--primary", "a.csv", "--input", "bdy", "--force") == 2
    assert "there is no column 'bdy'" in capsys.readouterr().err


def test_a_first_configuration_can_be_trained(root: Path, tmp_path: Path) -> None:
    few = ["training.guided.steps=2", "training.finetune.steps=2", "data.image_size=8", "model=mlp"]
    config = loads(propose("image", str(root), []), few)
    assert config.data.primary.group == "patient"
    result = run(config, strategy="primary_only", run_dir=tmp_path / "run")
    assert result.metric == "auc" and {f"auc/{name}" for name in COMPETITION} <= result.test.keys()
