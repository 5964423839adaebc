"""The types of settings: how each type reads YAML, and its limits with their reasons.

The type of its field decides how a setting is read, never a guess: `lr: 1e-4` is a number, and a class called `no` is text.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, get_args

from pydantic import AfterValidator, BeforeValidator, ConfigDict, GetCoreSchemaHandler, ValidationInfo, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from attittud_lab.errors import InputError, nearest, short

TYPED = "command line"
"""The `origin` of a scalar from the command line begins with this."""

_NUMBERS: dict[Any, re.Pattern[str]] = {
    int: re.compile(r"[-+]?[0-9]+(_[0-9]+)*"),
    float: re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"),
}


class Scalar(str):
    """A text that may stand for a number or anything else; `origin` is its file and line."""

    __slots__ = ("origin", "quoted")
    origin: str
    quoted: bool

    def __new__(cls, text: str, origin: str = "", quoted: bool = False) -> Self:
        made = super().__new__(cls, text)
        made.origin, made.quoted = origin, quoted
        return made


def refusal(words: str, **more: str) -> PydanticCustomError:
    """The error that a validator raises; the loader adds file, line and path."""
    return PydanticCustomError("refused", "{words}", {"words": words, **more})


def got(value: Any) -> str:
    """Describe a value as a message shows it."""
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    cure = ", which is read as text; write null for nothing" if str(value).lower() in ("none", "nil") else ""
    return "nothing (null)" if value is None else f"{short(str(value))!r}{cure}"


def meant(word: Any, known: Sequence[str], cutoff: float = 0.6) -> str:
    """Return a hint at the known name that a misspelt word probably means; empty if there is none."""
    near = nearest(word, known, cutoff) if isinstance(word, str) else None
    return f"; did you mean {near!r}?" if near else ""


@dataclass(frozen=True)
class Limits:
    """The smallest and largest allowed number, and why it is the largest; `above`: the number must exceed the smallest."""

    least: float
    most: float
    why: str = ""
    above: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        limits = {"exclusiveMinimum" if self.above else "minimum": self.least, "maximum": self.most}
        return core_schema.no_info_before_validator_function(
            lambda value: self._read(value, source), handler(source), metadata={"pydantic_js_updates": limits}
        )

    def _read(self, value: Any, kind: Any) -> Any:
        number = value
        if isinstance(value, Scalar) and not value.quoted and len(value) < 400:  # Python may refuse longer numbers
            number = next((one(value) for one in get_args(kind) or [kind] if _NUMBERS[one].fullmatch(value)), value)
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            expected = {int: "a whole number", float: "a number"}.get(kind, "a count, a fraction or null")
            raise refusal(f"expected {expected}, got {got(value)}")
        if isinstance(number, float) and not math.isfinite(number):
            raise refusal(f"expected a finite number, got {short(str(value))}")
        if self.above and number <= self.least:
            raise refusal(f"must be above {self.least}, got {value}: {self.above}")
        if number < self.least:
            raise refusal(f"must be at least {self.least}, got {value}")
        if number > self.most:
            raise refusal(f"must be at most {self.most}, got {short(str(value))}{self.why and f': {self.why}'}")
        return number


def _flag(value: Any) -> bool:
    plain = isinstance(value, Scalar) and not value.quoted
    found = {"true": True, "false": False}.get(value.lower()) if plain else value
    if not isinstance(found, bool):
        raise refusal(f"expected true or false, got {got(value)}")
    return found


def as_path(text: str) -> Path:
    """Return the path that a text names, with ~ replaced by the home folder; refuses a text that cannot be a file name."""
    said, path = repr(short(text)), Path(text)
    if text == "":
        raise InputError("expected a path or name, got an empty text")
    if "\0" in text:
        raise InputError(f"{said} contains a NUL character, which no path can")
    if len(text) > 4000 or any(len(part.encode(errors="replace")) > 255 for part in path.parts):
        raise InputError(f"{said} is too long for a path: file systems allow 255 bytes between two slashes")
    try:
        return path.expanduser()
    except RuntimeError:
        raise InputError(f"{said}: no user of this name has a home folder; write the whole path") from None


def check_path(text: str, *, typed: bool) -> str:
    """Check a path, or a name that may be one. Only a path `typed` on the command line may leave its folder with `..`."""
    prefix = "hf:" if text.startswith("hf:") else ""
    rest = text.removeprefix(prefix)
    as_path(rest or text)
    if ".." not in Path(rest).parts:
        return text
    if typed:  # absolute, so that the saved copy of a configuration can be read again
        return prefix + os.path.normpath(Path.cwd() / rest)
    raise InputError(
        f"{short(text)!r} leaves its folder with '..', which a configuration file must not do; write an absolute path or a path "
        "from the folder you work in, or give it on the command line as KEY=VALUE"
    )


def _path_text(value: Any) -> Any:
    """Check a path from YAML or the command line; paths from Python code are left as they are."""
    try:
        return check_path(str(value), typed=value.origin.startswith(TYPED)) if isinstance(value, Scalar) else value
    except InputError as error:
        raise refusal(str(error)) from None


def known(kind: str) -> AfterValidator:
    """Check a name with the loader's check for this kind of name, if there is one; see `Names` in the loader."""

    def check(name: str, info: ValidationInfo) -> str:
        try:
            (info.context or {}).get(kind, str)(short(name, 200))
        except (InputError, ValueError) as error:
            raise refusal(str(error)) from None
        return name

    return AfterValidator(check)


def _some(entries: list[str]) -> list[str]:
    if not entries:
        raise refusal("the list is empty; name the classes to keep, or null for all")
    return entries


Flag = Annotated[bool, BeforeValidator(_flag)]
PathText = Annotated[str, BeforeValidator(_path_text)]
Classes = Annotated[list[str], AfterValidator(_some)]


class Section:
    """A mapping of a configuration, read into a dataclass. The text below a field is its documentation."""

    __pydantic_config__ = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    shorthand: ClassVar[str] = ""
    """The field that a bare scalar stands for: `strategy: auto`."""
    given: ClassVar[frozenset[str]] = frozenset()
    """The keys that the user wrote; an entry of compare.strategies inherits the others."""

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, value: Any, handler: Callable[[Any], Any]) -> Any:
        if cls.shorthand and isinstance(value, str):
            value = {cls.shorthand: value}
        elif cls.shorthand and isinstance(value, dict) and "" in value:  # a bare scalar that got other settings later
            value = {key or cls.shorthand: item for key, item in value.items()}
        valid = [entry.name for entry in fields(cls)]  # type: ignore[arg-type]  # the classes that inherit are dataclasses
        if not isinstance(value, (dict, cls)):
            raise refusal(f"expected a mapping with the keys {', '.join(valid)}, got {got(value)}")
        for key in value if isinstance(value, dict) else ():
            if key not in valid:
                words = f"unknown key{meant(key, valid, cutoff=0.5) or '.'} Valid here: {', '.join(valid)}"
                raise refusal(words, key=key)
        made = handler(value)
        if isinstance(value, dict):
            object.__setattr__(made, "given", frozenset(value))
        return made
