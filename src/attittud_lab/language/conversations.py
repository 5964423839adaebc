"""Chats, prompts with replies, and texts: read from tables, held out, and turned into tokens with labels.

A row has `input_ids` and `labels`, in which -100 marks tokens that do not count: all but the replies of a chat.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attittud_lab.config.schema import TextsConfig
from attittud_lab.data.source import open_source, warn_once
from attittud_lab.data.tables import LABELS, filtered
from attittud_lab.errors import InputError, listed, one_line, short

Row = dict[str, list[int]]

USUAL = (
    ("messages",),
    ("conversations",),
    ("prompt", "completion"),
    ("prompt", "response"),
    ("prompt", "reply"),
    ("prompt", "answer"),
    ("question", "answer"),
    ("instruction", "input", "output"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("text",),
    ("content",),
)
"""Columns of public data sets, in the order in which they are looked for. The last of several is the reply."""
PROMPTS = ("prompt", "question", "instruction")
IGNORED = -100
_WRITTEN = re.compile(
    r"""\s*\[\s*\{\s*['"](role|content|from|value)['"]\s*:"""
)  # a list of messages as one text, as in csv


@dataclass(frozen=True)
class Example:
    """A text, a prompt with its reply, or a chat, as text or JSON, so that equal examples can be found."""

    kind: str
    """text, reply or chat"""
    prompt: str
    """The prompt; for a chat, the messages that are not learned, as JSON."""
    reply: str = ""
    """The reply or the text; for a chat, all other messages as JSON. Empty if the model should write it."""


def usual_columns(names: Sequence[str]) -> tuple[str, ...] | None:
    """Return the columns that a table of chats or texts is read from; None if no column fits."""
    return next((columns for columns in USUAL if set(columns) <= set(names)), None)


def looks_like_language(names: Sequence[str]) -> bool:
    """Whether a table has something that a language model can learn, and no labels to predict."""
    return usual_columns(names) is not None and not set(LABELS) & set(names)


def read(config: TextsConfig, where: str, seed: int, *, prompts: bool = False) -> list[Example]:
    """Return the examples of a source in random order; with `prompts`, each may end before its reply."""
    source = open_source(config.path)
    if not hasattr(source, "table"):
        raise InputError(f"{config.path}: holds no texts ({where}:); give a parquet, csv or jsonl file")
    split = config.split or ("train" if "train" in source.splits else None)
    if split is not None and split not in source.splits:
        raise InputError(
            f"{config.path}: there is no split {split!r}; the source has {listed(source.splits) or 'none'}"
        )
    table = filtered(source.table(split), config.path, config.where)
    names = table.column_names
    columns = usual_columns(names) if config.columns is None else tuple(config.columns)
    if columns is None or (prompts and config.columns is None and len(columns) == 1):
        # A table of prompts alone has no column of replies.
        alone = next((name for name in ("messages", *PROMPTS, "text") if name in names), None)
        columns = (alone,) if prompts and alone is not None else columns
    for name in columns or ():
        if name not in names:
            raise InputError(f"{config.path}: there is no column {name!r} ({where}.columns); it has {listed(names)}")
    if not columns:
        known = "messages, prompt and completion, or text"
        raise InputError(
            f"{config.path}: has no column of {known}; name it with {where}.columns. It has {listed(names)}"
        )
    cells = [table[name].to_pylist() for name in columns]
    found = [_example(config.path, number, row, prompts) for number, row in enumerate(zip(*cells, strict=True), 1)]
    rows, found = len(found), [example for example in found if example.reply or (prompts and example.prompt)]
    lack = "a prompt" if prompts else "a text, a reply, or in a chat a reply of the role assistant"
    if not found:
        raise InputError(f"{config.path}: no row has {lack}, in {listed(columns)}; check the file ({where}:)")
    if len(found) < rows:
        left = f"{rows - len(found)} of {rows} rows {'is' if rows - len(found) == 1 else 'are'} left out"
        warn_once(f"{config.path}: {left}, for lack of {lack} ({where}:)")
    order = np.random.default_rng(seed).permutation(len(found))
    return [found[number] for number in order[: counted(config.examples, len(found), config.path)]]


def counted(wanted: float | None, there: int, where: str) -> int:
    """Return a number of examples: a count, a share of all, or None for all."""
    many = there if wanted is None else int(wanted) if wanted >= 1 or wanted == 0 else max(1, round(wanted * there))
    if many > there:
        raise InputError(f"{where}: {many} examples are asked for, but there are only {there}; lower the number")
    return many


def hold_out(found: Sequence[Example], wanted: float | None, where: str) -> tuple[list[Example], list[Example]]:
    """Divide examples into those that train and those that measure; no example is in both parts."""
    count = counted(wanted, len(found), where)
    measured, known = list(found[:count]), set(found[:count])
    rest = [example for example in found[count:] if example not in known]
    if not measured or not rest:
        raise InputError(
            f"{where}: {len(found)} examples leave {len(rest)} for training and {len(measured)} for measuring; both parts "
            "need examples, and none may be in both; give more examples, or change the number that is held out"
        )
    return rest, measured


def _example(path: str, number: int, cells: Sequence[Any], prompts: bool) -> Example:
    *before, last = cells
    if isinstance(last, list):
        chats = [_messages(path, number, cell) for cell in cells]
        asked = [message for chat in chats[:-1] for message in chat]
        if prompts and not before:
            asked = chats[-1]
            while asked and asked[-1]["role"] == "assistant":
                asked = asked[:-1]
        # A first message of the assistant is not a reply.
        behind = [*asked, *chats[-1]][max(1, len(asked)) :] if not prompts else []
        replied = any(message["role"] == "assistant" for message in behind)
        return Example("chat", json.dumps(asked) if asked else "", json.dumps(chats[-1]) if replied else "")
    if not all(cell is None or isinstance(cell, str) for cell in cells):
        raise InputError(f"{path}: row {number} holds {short(str(cells))}, neither text nor a list of messages")
    if any(_WRITTEN.match(cell) for cell in cells if cell):
        raise InputError(
            f"{path}: row {number} has a list of messages written as one text ({short(str(cells))}); save them as lists, in a "
            "jsonl or parquet file"
        )
    if prompts:
        return Example("reply", "\n\n".join(cell for cell in before or cells if cell))
    if not before:
        return Example("text", "", last or "")
    return Example("reply", "\n\n".join(cell for cell in before if cell), last or "")


def _messages(path: str, number: int, cell: Any) -> list[dict[str, str]]:
    for message in cell if isinstance(cell, list) else [cell]:
        known = isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))
        if not known:
            raise InputError(
                f"{path}: row {number} has a message without a text for role and content ({short(str(message))}); write "
                'messages as [{"role": "user", "content": "..."}, ...]'
            )
    return [{"role": message["role"], "content": message["content"]} for message in cell]


class TextEncoder:
    """Turns examples into rows of tokens."""

    def __init__(self, tokenizer: Any, longest: int, *, chat: bool | None) -> None:
        self.tokenizer, self.longest = tokenizer, longest
        has = bool(getattr(tokenizer, "chat_template", None))
        if chat and not has:
            raise InputError("language.chat: the tokenizer of the model has no chat template; set chat: false")
        self.chat = has if chat is None else chat

    def rows(self, examples: Sequence[Example], where: str) -> list[Row]:
        """Return all rows with something to learn. A long text gives several rows; everything else is cut."""
        made = [row for example in examples for row in self._rows(example)]
        kept = [row for row in made if any(label != IGNORED for label in row["labels"][1:])]
        if not kept:
            raise InputError(
                f"{where}: no reply or text has tokens within language.max_length {self.longest}; raise it"
            )
        if len(kept) < len(made):
            lack = f"have no text or reply within language.max_length {self.longest}; raise it to use them"
            warn_once(f"{where}: {len(made) - len(kept)} of {len(made)} examples {lack}")
        return kept

    def prompt(self, example: Example) -> str | list[dict[str, str]]:
        """A prompt as text or as messages, ready for the model's reply."""
        if example.kind == "chat":
            self._check_template()
            messages: list[dict[str, str]] = json.loads(example.prompt)
            return messages
        return [{"role": "user", "content": example.prompt}] if self.chat else example.prompt

    def room(self, example: Example) -> int:
        """How many tokens a reply to a prompt may have."""
        asked = self.prompt(example)
        return self.longest - len(self._ids(asked) if isinstance(asked, str) else self._template(asked, reply=True))

    def _rows(self, example: Example) -> list[Row]:
        end = [] if self.tokenizer.eos_token_id is None else [self.tokenizer.eos_token_id]
        if example.kind == "text":
            ids = self._ids(example.reply) + end
            parts = [ids[start : start + self.longest] for start in range(0, len(ids), self.longest)]
            return [{"input_ids": part, "labels": list(part)} for part in parts]
        if example.kind == "chat" or self.chat:
            row = self._conversation(example)
        else:
            # Words without a space between them would become other tokens.
            apart = "" if example.prompt[-1:].isspace() or example.reply[:1].isspace() else "\n"
            asked = self._ids(f"{example.prompt}{apart}") if example.prompt else []
            said = self._ids(example.reply, special=not asked) + end
            row = {"input_ids": asked + said, "labels": [IGNORED] * len(asked) + said}
        return [{name: values[: self.longest] for name, values in row.items()}]

    def _conversation(self, example: Example) -> Row:
        """Write a chat with the tokenizer's template. Only the assistant's messages count, after the prompt if there is one."""
        if example.kind == "chat":
            self._check_template()
            asked, said = json.loads(example.prompt or "[]"), json.loads(example.reply)
        else:
            asked = [{"role": "user", "content": example.prompt}]
            said = [{"role": "assistant", "content": example.reply}]
        messages = asked + said
        whole = self._template(messages)
        labels = [IGNORED] * len(whole)
        for number in range(max(1, len(asked)), len(messages)):
            if messages[number]["role"] != "assistant":
                continue
            before = self._template(messages[:number], reply=True)
            if len(before) >= self.longest:
                break  # the rest is cut anyway, and long chats would take long
            until = self._template(messages[: number + 1])
            if whole[: len(before)] != before or whole[: len(until)] != until:
                raise InputError(
                    "model: its chat template writes the beginning of a chat differently when the chat goes on, so the "
                    "tokens of single replies cannot be told apart; give prompt and completion of the last turn alone"
                )
            labels[len(before) : len(until)] = whole[len(before) : len(until)]
        return {"input_ids": whole, "labels": labels}

    def _template(self, messages: Sequence[Any], *, reply: bool = False) -> list[int]:
        try:
            found = self.tokenizer.apply_chat_template(list(messages), add_generation_prompt=reply, return_dict=True)
        except Exception as error:  # templates raise errors of their own, about roles for example
            said = f"the chat template of the model refuses a chat ({one_line(error, 200)}) that begins with"
            chat = short(json.dumps(list(messages), ensure_ascii=False), 200)
            raise InputError(f"{said} {chat}; change the messages, or the template of the tokenizer") from None
        return [int(token) for token in found["input_ids"]]

    def _check_template(self) -> None:
        if not getattr(self.tokenizer, "chat_template", None):
            raise InputError(
                "model: the data are chats, and its tokenizer has no chat template; use the chat version of the model, or give "
                "prompt and completion as texts"
            )

    def _ids(self, text: str, *, special: bool = True) -> list[int]:
        settings = {"add_special_tokens": special, "padding": False, "truncation": False, "verbose": False}
        ids = [int(token) for token in self.tokenizer(text, **settings)["input_ids"]]
        # Some tokenizers add their end-of-text token; it comes once, at the very end.
        return ids[:-1] if ids and special and ids[-1] == self.tokenizer.eos_token_id else ids


def without(rows: Sequence[Row], held_out: Sequence[Row], where: str) -> list[Row]:
    """Return the rows to train on: none equals a held-out row of any file, also after both were cut."""
    known = {tuple(row["input_ids"]) for row in held_out}
    rest = [row for row in rows if tuple(row["input_ids"]) not in known]
    if not rest:
        raise InputError(f"{where}: all of it is also in the held-out data; give other data to train on")
    if len(rest) < len(rows):
        left = f"{len(rows) - len(rest)} of {len(rows)} rows {'is' if len(rows) - len(rest) == 1 else 'are'} left out"
        warn_once(f"{where}: {left}, since the held-out data contain the same")
    return rest


def warn_of_common(new: Sequence[Row], protected: Sequence[Row]) -> None:
    """Warn if protected rows are learned too: the model then improves on such rows, which hides what it forgets."""
    known = {tuple(row["input_ids"]) for row in new}
    if common := sum(tuple(row["input_ids"]) in known for row in protected):
        warn_once(
            f"language.protect: {common} of {len(protected)} protected rows are also learned (language.learn), so forgetting "
            "looks smaller than it is and says little; protect examples of what the model could do before"
        )


def checksum(rows: Sequence[Row]) -> str:
    """Recognises rows that are the same, token by token."""
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
