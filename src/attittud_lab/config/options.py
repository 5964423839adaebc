"""The types of settings: how each type reads YAML, and its limits with their reasons.

`schema.py` builds its fields from them. The type of its field decides how a setting is read, never
a guess: `lr: 1e-4` is a number, and a class called `no` is text.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    ValidationInfo,
    model_validator,
)
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
        scalar = super().__new__(cls, text)
        scalar.origin = origin
        scalar.quoted = quoted
        return scalar


def refusal(words: str, **more: str) -> PydanticCustomError:
    """Return the error that a validator raises; the loader adds file, line and path."""
    return PydanticCustomError("refused", "{words}", {"words": words, **more})


def got(value: Any) -> str:
    """Describe a value as a message shows it."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing (null)"
    text = repr(short(str(value)))
    if str(value).lower() in ("none", "nil"):
        text += ", which is read as text; write null for nothing"
    return text


def meant(word: Any, choices: Sequence[str], cutoff: float = 0.6) -> str:
    """Return a hint at the choice that a misspelt word probably means; empty if there is none."""
    if not isinstance(word, str):
        return ""
    near = nearest(word, choices, cutoff)
    return f"; did you mean {near!r}?" if near else ""


@dataclass(frozen=True)
class Limits:
    """The smallest and the largest allowed number of a setting."""

    least: float
    most: float
    why: str = ""
    """Why it is the largest."""
    above: str = ""
    """If not empty, the number must exceed the smallest, for this reason."""

    def __get_pydantic_core_schema__(
        self,
        source: Any,
        handler: GetCoreSchemaHandler,
    ) -> CoreSchema:
        limits = {"exclusiveMinimum" if self.above else "minimum": self.least, "maximum": self.most}
        return core_schema.no_info_before_validator_function(
            lambda value: self._read(value, source),
            handler(source),
            metadata={"pydantic_js_updates": limits},
        )

    def _read(self, value: Any, kind: Any) -> Any:
        """Return the number that a value stands for, if it is within the limits."""
        number = _number(value, kind)
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            kinds = {int: "a whole number", float: "a number"}
            expected = kinds.get(kind, "a count, a fraction or null")
            raise refusal(f"expected {expected}, got {got(value)}")
        text = short(str(value))
        if isinstance(number, float) and not math.isfinite(number):
            raise refusal(f"expected a finite number, got {text}")
        if self.above and number <= self.least:
            raise refusal(f"must be above {self.least}, got {value}: {self.above}")
        if number < self.least:
            raise refusal(f"must be at least {self.least}, got {value}")
        if number > self.most:
            why = f": {self.why}" if self.why else ""
            raise refusal(f"must be at most {self.most}, got {text}{why}")
        return number


def _number(value: Any, kind: Any) -> Any:
    """Return the number in a scalar; any other value as it is.

    `kind` is int, float or a union of both, of which the first that fits is taken.
    """
    # Python may refuse longer numbers.
    if not isinstance(value, Scalar) or value.quoted or len(value) >= 400:
        return value
    for number_type in get_args(kind) or [kind]:
        if _NUMBERS[number_type].fullmatch(value):
            return number_type(value)
    return value


def _flag(value: Any) -> bool:
    """Read true or false; yes, on and 1 are refused, since YAML 1.1 and 1.2 disagree about them."""
    flag = value
    if isinstance(value, Scalar) and not value.quoted:
        flag = {"true": True, "false": False}.get(value.lower())
    if not isinstance(flag, bool):
        raise refusal(f"expected true or false, got {got(value)}")
    return flag


def as_path(text: str) -> Path:
    """Return the path that a text names, with ~ replaced by the home folder.

    It refuses a text that cannot be a file name.
    """
    name = repr(short(text))
    path = Path(text)
    if text == "":
        raise InputError("expected a path or name, got an empty text")
    if "\0" in text:
        raise InputError(f"{name} contains a NUL character, which no path can")
    longest_part = max((len(part.encode(errors="replace")) for part in path.parts), default=0)
    if len(text) > 4000 or longest_part > 255:
        limit = "file systems allow 255 bytes between two slashes"
        raise InputError(f"{name} is too long for a path: {limit}")
    try:
        return path.expanduser()
    except RuntimeError:
        cure = "write the whole path"
        raise InputError(f"{name}: no user of this name has a home folder; {cure}") from None


def check_path(text: str, *, typed: bool) -> str:
    """Check a path, or a name that may be one.

    Only a path `typed` on the command line may leave its folder with `..`.
    """
    prefix = "hf:" if text.startswith("hf:") else ""
    rest = text.removeprefix(prefix)
    as_path(rest or text)
    if ".." not in Path(rest).parts:
        return text
    if typed:  # absolute, so that the saved copy of a configuration can be read again
        return prefix + os.path.normpath(Path.cwd() / rest)
    reason = "leaves its folder with '..', which a configuration file must not do"
    cure = "write an absolute path or a path from the folder you work in, or give it"
    raise InputError(f"{short(text)!r} {reason}; {cure} on the command line as KEY=VALUE")


def _path_text(value: Any) -> Any:
    """Check a path from YAML or the command line; paths from Python code are left as they are."""
    if not isinstance(value, Scalar):
        return value
    try:
        return check_path(str(value), typed=value.origin.startswith(TYPED))
    except InputError as error:
        raise refusal(str(error)) from None


def known(kind: str) -> AfterValidator:
    """Check a name with the loader's check for this kind of name; see `Names` in the loader.

    Without such a check every name is allowed.
    """

    def check(name: str, info: ValidationInfo) -> str:
        checks = info.context or {}
        check_name = checks.get(kind, str)
        try:
            check_name(short(name, 200))
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
    """A mapping of a configuration, read into a dataclass.

    The text below a field is its documentation.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", use_attribute_docstrings=True)
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
        # The key "" is a bare scalar that got other settings later.
        elif cls.shorthand and isinstance(value, dict) and "" in value:
            value = {key or cls.shorthand: item for key, item in value.items()}
        # The classes that inherit are dataclasses.
        valid = [entry.name for entry in fields(cls)]  # type: ignore[arg-type]
        names = ", ".join(valid)
        if isinstance(value, cls):
            return handler(value)
        if not isinstance(value, dict):
            raise refusal(f"expected a mapping with the keys {names}, got {got(value)}")
        for key in value:
            if key not in valid:
                hint = meant(key, valid, cutoff=0.5) or "."
                raise refusal(f"unknown key{hint} Valid here: {names}", key=key)
        section = handler(value)
        object.__setattr__(section, "given", frozenset(value))
        return section
