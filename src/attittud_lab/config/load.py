"""From YAML to a `Config`, with the file, the line and the path in every complaint.

The nodes of the YAML text are converted by the type of the field that they are for, never by guessing. So `lr: 1e-4` is
a number and a class called `no` is text, which PyYAML's own YAML 1.1 rules get wrong.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from attittud_lab.config.nodes import (
    ConfigError,
    as_mapping,
    complaint,
    compose,
    inherited,
    is_null,
    key_of,
    overridden,
)
from attittud_lab.config.schema import Config, StrategyConfig, to_dict
from attittud_lab.errors import InputError

T = TypeVar("T")

_INT = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration file, those that it inherits from by `base:`, and `key=value` overrides."""
    return build(Config, overridden(inherited(Path(path), ()), overrides))


def loads(text: str, overrides: Sequence[str] = (), name: str = "configuration") -> Config:
    """The same from text; `base:` is not followed."""
    return build(Config, overridden(compose(text, name), overrides))


def changed(config: Config, overrides: Sequence[str]) -> Config:
    """A configuration with some settings replaced."""
    return build(Config, overridden(compose("", "settings"), overrides), base=config)


def dump(config: Config) -> str:
    """A configuration as YAML that `load` reads back as the same object."""
    plain = to_dict(config)
    plain["compare"]["strategies"] = [_said(entry) for entry in config.compare.strategies]
    # Other letters as escapes: PyYAML folds some of Unicode's line breaks away when it writes them as they are.
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=False)


def _said(entry: StrategyConfig) -> dict[str, Any]:
    """Without what it leaves open."""
    usual = StrategyConfig(name=entry.name)
    said = {name for name in vars(usual) if name in entry.given or getattr(entry, name) != getattr(usual, name)}
    return {name: value for name, value in to_dict(entry).items() if name == "name" or name in said}


# ---------------------------------------------------------------------------------------------------- conversion


def build(cls: type[T], node: Node, path: str = "", base: T | None = None) -> T:
    """A dataclass from a mapping; fields that are not mentioned keep the value that they have in `base`."""
    shorthand = getattr(cls, "shorthand", None)
    if shorthand and isinstance(node, ScalarNode):
        node = as_mapping(node)
    if not isinstance(node, MappingNode):
        raise _unexpected(cls, node, path)
    types = get_type_hints(cls)
    known = {entry.name: entry for entry in fields(cls)}  # type: ignore[arg-type]  # a dataclass, which `type` does not say
    values: dict[str, Any] = {}
    for key, value in node.value:
        name = key_of(key, path)
        if name == "" and shorthand:
            if any(key_of(other, path) == shorthand for other, _ in node.value):
                continue
            name = shorthand
        here = f"{path}.{name}" if path else name
        if name not in known:
            hint = _meant(name, known, cutoff=0.5)
            raise complaint(key, here, f"unknown key{hint or '.'} Valid here: {', '.join(known)}")
        entry = known[name]
        if base is not None:
            default = getattr(base, name)
        elif entry.default_factory is not NO_DEFAULT:
            default = entry.default_factory()
        else:
            default = None
        values[name] = _checked(_convert(types[name], value, here, default), entry.metadata, value, here)
    try:
        built = replace(base, **values) if base is not None else cls(**values)  # type: ignore[type-var]  # the same
    except InputError as error:
        raise complaint(_blamed(node, str(error)), path, str(error)) from None
    if hasattr(cls, "given"):
        object.__setattr__(built, "given", frozenset(values) | getattr(base, "given", frozenset()))
    return built


def _convert(kind: Any, node: Node, path: str, default: Any = None) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return build(kind, node, path, default if isinstance(default, kind) else None)  # type: ignore[arg-type]  # the same
    if origin in (Union, UnionType):
        return _convert_union(arguments, node, path, kind, default)
    if origin is list and isinstance(node, SequenceNode):
        return [_convert(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(node.value)]
    if origin is dict and isinstance(node, MappingNode):
        named = ((key_of(key, path), item) for key, item in node.value)
        return {name: _convert(arguments[1], item, f"{path}.{name}") for name, item in named}
    if isinstance(node, ScalarNode):
        if origin is Literal and node.value in arguments:
            return node.value
        value = _scalar(kind, node)
        if value is not None:
            return value
    raise _unexpected(kind, node, path)


def _convert_union(arguments: tuple[Any, ...], node: Node, path: str, kind: Any, default: Any) -> Any:
    if NoneType in arguments and is_null(node):
        return None
    rest = [argument for argument in arguments if argument is not NoneType]
    if len(rest) == 1:
        try:
            return _convert(rest[0], node, path, default)
        except ConfigError:
            if is_dataclass(rest[0]) and isinstance(node, MappingNode):
                raise
    for argument in rest:
        if isinstance(node, ScalarNode):
            value = _scalar(argument, node)
            if value is not None:
                return value
    if len(rest) == 1 and get_origin(rest[0]) is not None and not is_null(node):
        return _convert(rest[0], node, path, default)
    raise _unexpected(kind, node, path)


def _scalar(kind: Any, node: ScalarNode) -> Any:
    """The value of a scalar as `kind`, or None where it is not one."""
    text, quoted = node.value, node.style in ("'", '"')
    if kind is str:
        return None if is_null(node) else text
    if quoted:
        return None
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower())
    if kind is int and _INT.fullmatch(text):
        return int(text)
    if kind is float and _FLOAT.fullmatch(text):
        return float(text)
    return None


def _checked(value: Any, metadata: Any, node: Node, path: str) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high = metadata.get("minimum"), metadata.get("maximum")
        if not abs(value) < 1e300:
            raise complaint(node, path, f"expected a finite number, got {value}")
        if low is not None and value < low:
            raise complaint(node, path, f"must be at least {low}, got {value}")
        if high is not None and value > high:
            raise complaint(node, path, f"must be at most {high}, got {value}")
    if metadata.get("path") and value == "":
        raise complaint(node, path, "expected a path or name, got an empty text")
    if metadata.get("path") and isinstance(value, str) and ".." in PurePath(value.removeprefix("hf:")).parts:
        if node.start_mark.name.startswith("command line"):
            # So that the echo of this configuration can be read again.
            prefix = "hf:" if value.startswith("hf:") else ""
            return prefix + os.path.normpath(Path.cwd() / value.removeprefix(prefix))
        raise complaint(
            node,
            path,
            f"{value!r} leaves its folder by '..', which a configuration file may not; write an absolute path, or one from "
            f"the folder you work in, or give it on the command line: {path}={value}",
        )
    if "check" in metadata:
        try:
            metadata["check"](value)
        except InputError as error:
            raise complaint(node, path, str(error)) from None
    return value


# ---------------------------------------------------------------------------------------------------- words


def _unexpected(kind: Any, node: Node, path: str) -> ConfigError:
    named = get_origin(kind) is Literal and isinstance(node, ScalarNode)
    hint = _meant(node.value, get_args(kind)) if named else ""
    return complaint(node, path, f"expected {_readable(kind)}, got {_got(node)}{hint}")


def _meant(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    near = get_close_matches(word, known, n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""


def _blamed(node: Node, message: str) -> Node:
    """As far as the path leads that a complaint about several settings begins with: its line is that of the culprit."""
    for part in message.split(maxsplit=1)[0].rstrip(":").split("."):
        inner = [value for key, value in node.value if key_of(key, "") == part] if isinstance(node, MappingNode) else []
        if not inner:
            break
        node = inner[0]
    return node


def _got(node: Node) -> str:
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list"
    if is_null(node):
        return "nothing (null)"
    return f"{str(node.value)[:60]!r}"


_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", NoneType: "null"}


def _readable(kind: Any) -> str:
    """A type in words."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _WORDS:
        return _WORDS[kind]
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (Union, UnionType):
        words = [_readable(argument) for argument in arguments]
        return " or ".join([", ".join(words[:-1]), words[-1]])
    if origin is list:
        return f"a list, each item {_readable(arguments[0])}"
    if origin is dict:
        return f"a mapping of names to {_readable(arguments[1])}"
    return "a mapping with the keys " + ", ".join(entry.name for entry in fields(kind))
