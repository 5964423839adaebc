"""`attittud init` writes a configuration that `attittud train` reads."""

from pathlib import Path

from PIL import Image

from tests.helpers.commands import call


def test_init_writes_a_configuration_that_train_reads(capsys):
    found = call("init", "image", "--primary", "digits", "--auxiliary", "digits", "-o", "mine.yaml")
    assert found == 0
    text = Path("mine.yaml").read_text()
    assert "share_head: true" in text  # it has the primary classes
    assert "train: 0.2" in text  # both are the same digits
    quick = [f"portfolio.{name}" for name in ("features=[histogram]", "learners=[linear]")]
    quick += ["portfolio.uses=[alone]", "portfolio.folds=2", "data.auxiliary.digits.examples=60"]
    assert call("train", "mine.yaml", *quick) == 0
    assert call("init", "image", "--primary", "digits", "-o", "mine.yaml") == 2
    assert "--force" in capsys.readouterr().err
    assert call("init", "image", "--primary", "digit", "-o", "mine.yaml") == 2
    assert "digit" in capsys.readouterr().err


def test_the_folder_of_the_classes_is_named(capsys):
    for name in ("cat", "dog"):
        folder = Path("pictures/animals", name)
        folder.mkdir(parents=True)
        for number in range(4):
            Image.new("L", (8, 8), 9 * number).save(folder / f"{number}.png")
    assert call("init", "image", "--primary", "pictures") == 2
    assert "did you mean pictures/animals?" in capsys.readouterr().err
