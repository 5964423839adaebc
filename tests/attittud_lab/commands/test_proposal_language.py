"""`attittud init text` proposes a language model for chats and for texts without labels."""

from pathlib import Path

import pytest

from attittud_lab.config.load import load
from tests.helpers.commands import call
from tests.helpers.language import save_lines

CHATS = [
    {"messages": [{"role": "user", "content": f"{i}"}, {"role": "assistant", "content": "yes"}]} for i in range(40)
]
PAIRS = [{"prompt": f"{i}", "completion": "yes"} for i in range(4000)]
TEXTS = [{"text": f"{i}"} for i in range(40)]
PROMPTS = [{"prompt": f"{i}"} for i in range(40)]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, rows in {"chats": CHATS, "pairs": PAIRS, "texts": TEXTS, "prompts": PROMPTS, "one": TEXTS[:1]}.items():
        save_lines(f"{name}.jsonl", rows)


@pytest.mark.parametrize(
    ("new", "columns", "steps"),
    [("chats", ["messages"], 50), ("pairs", ["prompt", "completion"], 1500), ("texts", ["text"], 50)],
)
def test_columns_and_steps_follow_from_the_data(new: str, columns: list[str], steps: int) -> None:
    assert call("init", "text", "--primary", f"{new}.jsonl", "--protect", "texts.jsonl") == 0
    found = load("attittud.yaml")
    assert found.task == "causal-lm" and found.language.guard == "kl" and found.language.steps == steps
    assert found.language.learn is not None and found.language.learn.columns == columns
    assert found.language.protect is not None and found.language.protect.path == "texts.jsonl"


def test_protected_data_may_be_prompts_or_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("init", "text", "--primary", "chats.jsonl", "--protect", "prompts.jsonl") == 0
    assert "next: attittud train attittud.yaml model=hf:FOLDER" in capsys.readouterr().out
    found = load("attittud.yaml").language
    assert found.protect is None and found.protect_prompts is not None and found.protect_prompts.columns == ["prompt"]
    assert "# Is the guard worth its cost?" in Path("attittud.yaml").read_text()
    assert call("init", "text", "--primary", "chats.jsonl", "--force") == 0
    found = load("attittud.yaml").language
    assert found.protect is None and found.guard == "none"
    assert "Is the guard worth" not in Path("attittud.yaml").read_text()  # there is no guard


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("text", "--protect", "texts.jsonl", "--auxiliary", "texts.jsonl"),
            "--auxiliary and --protect cannot be combined",
        ),
        (
            ("text", "--auxiliary", "texts.jsonl"),
            "A language model learns these, and takes no auxiliary data. Give --protect",
        ),
        (("text", "--protect", "texts.jsonl", "--label", "text"), "--label and --protect cannot be combined"),
        (("table", "--protect", "texts.jsonl"), "use `attittud init text`"),
        (("text", "--protect", "nowhere.jsonl"), "there is no such file"),
        (("text", "--protect", "one.jsonl"), "--protect: 1 examples leave 0 for training and 1 for measuring"),
    ],
)
def test_wrong_input_is_refused(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("init", *arguments, "--primary", "chats.jsonl") == 2
    assert words in capsys.readouterr().err
