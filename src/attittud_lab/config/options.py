"""The types of settings, and what all sections of a configuration share.

The type of its field decides how a setting is read, never a guess: `lr: 1e-4` is a number, and a
class called `no` is text. `schema.py` builds its fields from these types and pydantic's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, ConfigDict, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from attittud_lab.errors import InputError, nearest, short


class Scalar(str):
    """A text from YAML or the command line, and where it was read: a file and a line."""

    __slots__ = ("origin",)
    origin: str

    def __new__(cls, text: str, origin: str) -> Self:
        scalar = super().__new__(cls, text)
        scalar.origin = origin
        return scalar


def refusal(words: str, **more: str) -> PydanticCustomError:
    """Return the error that a validator raises; the loader adds file, line and path."""
    return PydanticCustomError("refused", "{words}", {"words": words, **more})


def meant(word: Any, choices: Sequence[str], cutoff: float = 0.6) -> str:
    """Return a hint at the choice that a misspelt word probably means; empty if there is none."""
    if not isinstance(word, str):
        return ""
    near = nearest(word, choices, cutoff)
    if near is None:
        return ""
    return f"; did you mean {near!r}?"


def as_path(text: str) -> Path:
    """Return the path that a text names, with ~ replaced by the home folder."""
    if text == "" or "\0" in text:
        raise InputError(f"expected a path or name, got {short(repr(text))}")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise InputError(f"{short(text)!r}: {error}; write the whole path") from None


def _path_text(text: str) -> str:
    """Return a text that can be a path; pydantic refuses others with the path of the setting."""
    try:
        as_path(text)
    except InputError as error:
        raise refusal(str(error)) from None
    return text


def known(kind: str) -> AfterValidator:
    """Return a validator that checks names of a kind, such as "basis", with the loader's check for
    this kind; see `Names` in the loader.

    Without such a check every name is allowed.
    """

    def check(name: str, info: ValidationInfo) -> str:
        """Return the name; raises an error if the check of its kind does."""
        checks = info.context or {}
        check_name = checks.get(kind, str)
        try:
            check_name(short(name, 200))
        except (InputError, ValueError) as error:
            raise refusal(str(error)) from None
        return name

    return AfterValidator(check)


PathText = Annotated[str, AfterValidator(_path_text)]


class Section:
    """A mapping of a configuration, read into a dataclass.

    The text below a field is its documentation.
    """

    __pydantic_config__ = ConfigDict(
        extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )
    shorthand: ClassVar[str] = ""
    """The field that a bare scalar stands for: `strategy: auto`."""
    given: ClassVar[frozenset[str]] = frozenset()
    """The keys that the user wrote; an entry of compare.strategies inherits the others."""

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, value: Any, handler: Callable[[Any], Any]) -> Any:
        """Read a mapping or a shorthand, and refuse unknown keys.

        `handler` is pydantic's own validation. The keys that were written become `given`.
        """
        if cls.shorthand and isinstance(value, str):
            value = {cls.shorthand: value}
        if not isinstance(value, dict):
            return handler(value)
        # The classes that inherit are dataclasses.
        valid = [entry.name for entry in fields(cls)]  # type: ignore[arg-type]
        # The key "" is a bare scalar, such as `strategy: flip`, that got other settings later.
        value = {key or cls.shorthand: item for key, item in value.items()}
        for key in value:
            if key not in valid:
                hint = meant(key, valid, cutoff=0.5) or "."
                words = f"unknown key{hint} Valid here: {', '.join(valid)}"
                raise refusal(words, key=key)
        section = handler(value)
        object.__setattr__(section, "given", frozenset(map(str, value)))
        return section
