"""Chats, prompts with replies and texts: which columns are read, which tokens count, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs the extra 'transformers'")

from attittud_lab.config.schema import TextsConfig
from attittud_lab.errors import InputError
from attittud_lab.language.conversations import (
    Example,
    TextEncoder,
    hold_out,
    looks_like_language,
    read,
    usual_columns,
    without,
)
from tests.helpers.language import WORDS, save_lines, tokenizer

CHAT = [
    {"role": "user", "content": "1 2"},
    {"role": "assistant", "content": "3 4"},
    {"role": "user", "content": "5"},
    {"role": "assistant", "content": "6"},
]


def words(ids: list[int]) -> str:
    return " ".join("." if token < 0 else WORDS[token] for token in ids)


def encoded(path: Path, *, chat: bool | None = None, longest: int = 64, **settings: object) -> list[tuple[str, str]]:
    found = read(TextsConfig(str(path), **settings), "language.learn", 0)
    rows = TextEncoder(tokenizer(), longest, chat=chat).rows(found, "language.learn")
    return sorted((words(row["input_ids"]), words(row["labels"])) for row in rows)


def test_only_replies_of_a_chat_count(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    save_lines(path, [{"messages": CHAT}])
    assert encoded(path) == [
        (
            "<user> 1 2 <eos> <assistant> 3 4 <eos> <user> 5 <eos> <assistant> 6 <eos>",
            ". . . . . 3 4 <eos> . . . . 6 <eos>",
        )
    ]


def test_only_the_completion_of_a_prompt_with_messages_counts(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    save_lines(path, [{"prompt": CHAT[:3], "completion": CHAT[3:]}])
    assert [labels for _, labels in encoded(path)] == [". . . . . . . . . . . . 6 <eos>"]


def test_prompt_and_reply_are_a_chat_or_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    save_lines(path, [{"question": "1 2", "answer": "3", "other": 1}])
    assert encoded(path) == [("<user> 1 2 <eos> <assistant> 3 <eos>", ". . . . . 3 <eos>")]
    assert encoded(path, chat=False) == [("1 2 3 <eos>", ". . 3 <eos>")]
    save_lines(path, [{"instruction": "1", "input": "2", "output": "3"}])
    assert encoded(path, chat=False) == [("1 2 3 <eos>", ". . 3 <eos>")]


def test_a_long_text_goes_on_in_the_next_row_and_a_long_reply_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    save_lines(path, [{"text": "1 2 3 4 5"}, {"text": ""}])
    assert encoded(path, longest=4) == [("1 2 3 4",) * 2, ("5 <eos>",) * 2]
    save_lines(path, [{"prompt": "1 2", "completion": "3 4 5"}, {"prompt": "1 2 3 4 5", "completion": "6"}])
    assert encoded(path, longest=4, chat=False) == [("1 2 3 4", ". . 3 4")]


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (["id", "messages"], ("messages",)),
        (["completion", "prompt", "text"], ("prompt", "completion")),
        (["source", "prompt", "reply"], ("prompt", "reply")),
        (["text"], ("text",)),
        (["image", "label"], None),
    ],
)
def test_the_usual_columns_are_found(names: list[str], columns: tuple[str, ...] | None) -> None:
    assert usual_columns(names) == columns
    assert looks_like_language(names) == (columns is not None) and not looks_like_language([*names, "label"])


def test_prompts_end_before_the_reply(tmp_path: Path) -> None:
    path, encoder = tmp_path / "some.jsonl", TextEncoder(tokenizer(), 64, chat=None)
    for row, want in (
        ({"messages": CHAT}, CHAT[:3]),
        ({"prompt": "1", "reply": "2"}, [{"role": "user", "content": "1"}]),
        ({"prompt": "1", "text": "2"}, [{"role": "user", "content": "1"}]),
        ({"text": "1"}, [{"role": "user", "content": "1"}]),
    ):
        save_lines(path, [row])
        (example,) = read(TextsConfig(str(path)), "language.protect_prompts", 0, prompts=True)
        assert encoder.prompt(example) == want and example.reply == ""


def test_held_out_examples_are_not_trained_on() -> None:
    examples = [Example("text", "", str(number % 3)) for number in range(9)]
    rest, measured = hold_out(examples, 1, "language.validation")
    assert measured == [Example("text", "", "0")] and {example.reply for example in rest} == {"1", "2"}
    with pytest.raises(InputError, match=r"language\.validation: 9 examples leave 0 for training"):
        hold_out(examples, 3, "language.validation")
    with pytest.raises(InputError, match="10 examples are asked for, but there are only 9"):
        hold_out(examples, 10, "language.validation")


def test_split_where_and_examples_choose_the_rows(tmp_path: Path) -> None:
    save_lines(tmp_path / "train.jsonl", [{"text": "1", "part": "a"}, {"text": "2", "part": "b"}])
    save_lines(tmp_path / "test.jsonl", [{"text": "3", "part": "a"}])
    assert [ids for ids, _ in encoded(tmp_path)] == ["1 <eos>", "2 <eos>"]
    assert [ids for ids, _ in encoded(tmp_path, split="test")] == ["3 <eos>"]
    assert [ids for ids, _ in encoded(tmp_path, where={"part": "b"})] == ["2 <eos>"]
    assert len(encoded(tmp_path, examples=1)) == 1


@pytest.mark.parametrize(
    ("row", "settings", "words"),
    [
        (
            {"image": "1"},
            {},
            r"has no column of messages, prompt and completion, or text; name it with language\.learn",
        ),
        ({"text": "1"}, {"columns": ["words"]}, r"there is no column 'words' \(language\.learn\.columns\)"),
        ({"text": 1}, {}, "row 1 holds .* neither text nor a list of messages"),
        ({"text": ""}, {}, "no row has a text, .* in text"),
        ({"messages": [{"from": "user", "value": "1"}]}, {}, "row 1 has a message without a text for role and content"),
        ({"text": "1"}, {"split": "dev"}, "there is no split 'dev'"),
        ({"prompt": "1 2 3 4 5 6 7 8 9", "completion": "1"}, {"longest": 8}, "raise it"),
    ],
)
def test_wrong_input_is_refused(
    tmp_path: Path, row: dict[str, object], settings: dict[str, object], words: str
) -> None:
    save_lines(tmp_path / "some.jsonl", [row])
    with pytest.raises(InputError, match=words):
        encoded(tmp_path / "some.jsonl", **settings)


def test_chats_need_a_template_that_keeps_beginnings(tmp_path: Path) -> None:
    path, plain = tmp_path / "chats.jsonl", tokenizer(chat=False)
    save_lines(path, [{"messages": CHAT}])
    (example,) = read(TextsConfig(str(path)), "language.learn", 0)
    with pytest.raises(InputError, match="its tokenizer has no chat template"):
        TextEncoder(plain, 64, chat=None).rows([example], "language.learn")
    with pytest.raises(InputError, match="set chat: false"):
        TextEncoder(plain, 64, chat=True)
    plain.chat_template = "{{ messages | length }} {% for message in messages %}{{ message.content }} {% endfor %}"
    with pytest.raises(InputError, match="writes the beginning of a chat differently"):
        TextEncoder(plain, 64, chat=None).rows([example], "language.learn")
    plain.chat_template = "{{ raise_exception('no such role') }}"
    with pytest.raises(InputError, match="refuses a chat"):
        TextEncoder(plain, 64, chat=None).rows([example], "language.learn")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"messages": CHAT[:1]}], "no row has .* a reply of the role assistant, in messages"),
        ([{"messages": [CHAT[0], {"role": "model", "content": "3"}]}], "no row has .* a reply of the role assistant"),
        ([{"messages": str(CHAT)}], "row 1 has a list of messages written as one text"),
        ([{"prompt": "1", "completion": json.dumps(CHAT[1:2])}], "row 1 has a list of messages written as one text"),
    ],
)
def test_chats_without_replies_and_chats_as_text_are_refused(tmp_path: Path, rows: list[Any], words: str) -> None:
    save_lines(tmp_path / "some.jsonl", rows)
    with pytest.raises(InputError, match=words):
        encoded(tmp_path / "some.jsonl")


def test_a_first_message_of_the_assistant_is_not_a_reply(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    save_lines(path, [{"messages": CHAT[1:]}, {"messages": CHAT[1:2]}])
    assert encoded(path) == [("<assistant> 3 4 <eos> <user> 5 <eos> <assistant> 6 <eos>", ". . . . . . . . 6 <eos>")]


def test_rows_without_a_reply_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "pairs.jsonl"
    save_lines(path, [{"prompt": "1", "completion": "2"}, {"prompt": "3", "completion": ""}])
    assert len(encoded(path)) == 1 and "1 of 2 rows is left out" in caplog.text


def test_messages_are_roles_and_contents_alone(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    save_lines(path, [{"messages": [{**message, "time": "2024-01-01T00:00:00"} for message in CHAT]}])
    (example,) = read(TextsConfig(str(path)), "language.learn", 0)
    assert json.loads(example.reply) == CHAT


def test_only_the_used_part_of_a_chat_is_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, lengths = TextEncoder(tokenizer(), 16, chat=None), list[int]()
    usual = encoder._template

    def counted(messages: Any, **settings: bool) -> list[int]:
        lengths.append(len(messages))
        return usual(messages, **settings)

    monkeypatch.setattr(encoder, "_template", counted)
    (row,) = encoder.rows([Example("chat", "", json.dumps(CHAT * 50))], "language.learn")
    assert words(row["labels"]) == ". . . . . 3 4 <eos> . . . . 6 <eos> . ." and max(lengths[1:]) < 8


def test_rows_that_are_held_out_elsewhere_are_not_trained_on(caplog: pytest.LogCaptureFixture) -> None:
    one, two, three = ({"input_ids": [number], "labels": [number]} for number in range(3))
    assert without([one, two], [three], "language.learn") == [one, two] and not caplog.text
    assert without([one, two], [two], "language.learn") == [one] and "1 of 2 rows is left out" in caplog.text
    with pytest.raises(InputError, match=r"language\.protect: all of it is also in the held-out data"):
        without([one], [one, two], "language.protect")
