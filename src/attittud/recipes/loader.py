"""From YAML to a `Config`, with the file, the line and the path in every complaint.

The nodes of the YAML text are converted by the type of the field that they are for, never by guessing. So `lr: 1e-4` is
a number and a class called `no` is text, which PyYAML's own YAML 1.1 rules get wrong. Nothing is constructed from tags.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from attittud.recipes.config import Config, StrategyConfig, to_dict
from attittud.recipes.errors import InputError

T = TypeVar("T")

_INT = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_TEXT, _MAPPING = "tag:yaml.org,2002:str", "tag:yaml.org,2002:map"
_LARGEST = 1_000_000  # characters; a configuration is a page or two


class ConfigError(InputError):
    """Something in a configuration is wrong."""


class _Composer(yaml.SafeLoader):
    """Nodes only. Without aliases there are no cycles and no small files that grow to gigabytes."""

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML has no types here
        if isinstance(event, yaml.AliasEvent):
            raise _at(
                event, "", "aliases (*name) are not supported; write the value again, or put it into a base: file"
            )
        if getattr(event, "tag", None) is not None:
            raise _at(event, "", f"the tag {event.tag} is not supported; write plain YAML")
        return super().compose_node(parent, index)


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration file, those that it inherits from by `base:`, and `key=value` overrides."""
    return build(Config, _overridden(_inherited(Path(path), ()), overrides))


def loads(text: str, overrides: Sequence[str] = (), name: str = "configuration") -> Config:
    """The same from text; `base:` is not followed."""
    return build(Config, _overridden(_compose(text, name), overrides))


def changed(config: Config, overrides: Sequence[str]) -> Config:
    """A configuration with some settings replaced."""
    return build(Config, _overridden(_compose("", "settings"), overrides), base=config)


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


# ---------------------------------------------------------------------------------------------------- nodes


def _compose(text: str, name: str) -> MappingNode:
    if len(text) > _LARGEST:
        raise ConfigError(f"{name}: {len(text)} characters are too many for a configuration")
    try:
        composer = _Composer(text)
        composer.name = name
        node = composer.get_single_node()
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{name}{line}: not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{name}: nested too deeply for a configuration") from None
    if node is None:
        return MappingNode(_MAPPING, [], yaml.Mark(name, 0, 0, 0, None, 0))
    if not isinstance(node, MappingNode):
        raise _at(node, "", "a configuration is a mapping of keys to values, such as `model: small-cnn`")
    _refuse_twins(node, "")
    return node


def _refuse_twins(node: Node, path: str) -> None:
    """Before anything is merged, where the later of two equal keys would win without a word."""
    if not isinstance(node, MappingNode):
        for item in node.value if isinstance(node, SequenceNode) else ():
            _refuse_twins(item, path)
        return
    seen = set()
    for key, value in node.value:
        name = _key(key, path)
        here = f"{path}.{name}" if path else name
        if name in seen:
            raise _at(key, here, "the key is given twice; keep one of them")
        seen.add(name)
        _refuse_twins(value, here)


def _inherited(path: Path, seen: tuple[Path, ...]) -> MappingNode:
    """A file's mapping, with what it does not say taken from its base."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: cannot read the configuration: {reason}; check the path") from None
    node = _compose(text, str(path))
    resolved = path.resolve()
    if resolved in seen:
        raise ConfigError(f"{path}: base: goes round in a circle: {' -> '.join(p.name for p in (*seen, resolved))}")
    for position, (key, value) in enumerate(node.value):
        if isinstance(key, ScalarNode) and key.value == "base":
            del node.value[position]
            if not isinstance(value, ScalarNode) or not value.value or Path(value.value).is_absolute():
                raise _at(value, "base", "expected the relative path of another configuration")
            return _merged(_inherited(path.parent / value.value, (*seen, resolved)), node)
    return node


def _merged(below: MappingNode, above: MappingNode) -> MappingNode:
    """`above` wins; mappings are merged key by key, all else is replaced."""
    entries = {_key(key, ""): (key, value) for key, value in below.value}
    for key, value in above.value:
        old = entries.get(_key(key, ""))
        # An empty mapping is meant to empty: `data.auxiliary={}`.
        if old is not None and isinstance(value, MappingNode) and value.value and not _is_null(old[1]):
            entries[_key(key, "")] = (key, _merged(_as_mapping(old[1]), value))
        else:
            entries[_key(key, "")] = (key, value)
    return MappingNode(above.tag, list(entries.values()), above.start_mark, above.end_mark)


def _as_mapping(node: Node) -> MappingNode:
    """A shorthand such as `strategy: flip`, kept under no name until the type is known that says what it is short for."""
    if isinstance(node, MappingNode):
        return node
    key = ScalarNode(_TEXT, "", node.start_mark, node.end_mark)
    return MappingNode(_MAPPING, [(key, node)], node.start_mark, node.end_mark)


def _overridden(node: MappingNode, overrides: Sequence[str]) -> MappingNode:
    for position, text in enumerate(overrides):
        path, equals, value = text.partition("=")
        if not equals or not path or not all(path.split(".")):
            raise ConfigError(f"{text!r}: an override is key=value, such as training.guided.lr=1e-4")
        inner = _value(value, f"command line ({text})")
        lost = [earlier for earlier in overrides[:position] if earlier.startswith(f"{path}.")]
        if lost and not (isinstance(inner, MappingNode) and inner.value):
            raise ConfigError(f"{text} replaces all of {path}, also {lost[0]} before it; write {text} first")
        for part in reversed(path.split(".")):
            key = ScalarNode(_TEXT, part, inner.start_mark, inner.end_mark)
            inner = MappingNode(_MAPPING, [(key, inner)], inner.start_mark, inner.end_mark)
        assert isinstance(inner, MappingNode)  # the path has at least one part
        node = _merged(node, inner)
    return node


def _value(text: str, name: str) -> Node:
    """What stands behind the `=`. Only lists, mappings and quotes are YAML: a path may have `#` or `: ` in it."""
    if text.lstrip()[:1] in tuple("[{'\""):
        ((_, node),) = _compose(f"value: {text}", name).value
        assert isinstance(node, Node)
        return node
    mark = yaml.Mark(name, 0, 0, 0, None, 0)
    return ScalarNode(_TEXT, text.strip(), mark, mark, style=None if text.strip() else "'")


# ---------------------------------------------------------------------------------------------------- conversion


def build(cls: type[T], node: Node, path: str = "", base: T | None = None) -> T:
    """A dataclass from a mapping; fields that are not mentioned keep the value that they have in `base`."""
    shorthand = getattr(cls, "shorthand", None)
    if shorthand and isinstance(node, ScalarNode):
        node = _as_mapping(node)
    if not isinstance(node, MappingNode):
        raise _at(node, path, f"expected {_readable(cls)}, got {_got(node)}")
    types = get_type_hints(cls)
    known = {entry.name: entry for entry in fields(cls)}  # type: ignore[arg-type]  # a dataclass, which `type` does not say
    values: dict[str, Any] = {}
    for key, value in node.value:
        name = _key(key, path)
        if name == "" and shorthand:
            if any(_key(other, path) == shorthand for other, _ in node.value):
                continue
            name = shorthand
        here = f"{path}.{name}" if path else name
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise _at(key, here, f"unknown key{hint or '.'} Valid here: {', '.join(known)}")
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
        raise _at(_blamed(node, str(error)), path, str(error)) from None
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
        named = ((_key(key, path), item) for key, item in node.value)
        return {name: _convert(arguments[1], item, f"{path}.{name}") for name, item in named}
    if isinstance(node, ScalarNode):
        if origin is Literal and node.value in arguments:
            return node.value
        value = _scalar(kind, node)
        if value is not None:
            return value
    if origin is Literal:
        near = get_close_matches(str(node.value), arguments, n=1) if isinstance(node, ScalarNode) else []
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise _at(node, path, f"expected {_readable(kind)}, got {_got(node)}{hint}")
    raise _at(node, path, f"expected {_readable(kind)}, got {_got(node)}")


def _convert_union(arguments: tuple[Any, ...], node: Node, path: str, kind: Any, default: Any) -> Any:
    if NoneType in arguments and _is_null(node):
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
    if len(rest) == 1 and get_origin(rest[0]) is not None and not _is_null(node):
        return _convert(rest[0], node, path, default)
    raise _at(node, path, f"expected {_readable(kind)}, got {_got(node)}")


def _scalar(kind: Any, node: ScalarNode) -> Any:
    """The value of a scalar as `kind`, or None where it is not one."""
    text, quoted = node.value, node.style in ("'", '"')
    if kind is str:
        return None if _is_null(node) else text
    if quoted:
        return None
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower())
    if kind is int and _INT.fullmatch(text):
        return int(text)
    if kind is float and _FLOAT.fullmatch(text):
        return float(text)
    return None


def _is_null(node: Node) -> bool:
    return (
        isinstance(node, ScalarNode)
        and node.style not in ("'", '"')
        and node.value in ("", "~", "null", "Null", "NULL")
    )


def _checked(value: Any, metadata: Any, node: Node, path: str) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high = metadata.get("minimum"), metadata.get("maximum")
        if not abs(value) < 1e300:
            raise _at(node, path, f"expected a finite number, got {value}")
        if low is not None and value < low:
            raise _at(node, path, f"must be at least {low}, got {value}")
        if high is not None and value > high:
            raise _at(node, path, f"must be at most {high}, got {value}")
    if metadata.get("path") and value == "":
        raise _at(node, path, "expected a path or name, got an empty text")
    if metadata.get("path") and isinstance(value, str) and ".." in PurePath(value.removeprefix("hf:")).parts:
        if node.start_mark.name.startswith("command line"):
            # So that the echo of this configuration can be read again.
            prefix = "hf:" if value.startswith("hf:") else ""
            return prefix + os.path.normpath(Path.cwd() / value.removeprefix(prefix))
        raise _at(
            node,
            path,
            f"{value!r} leaves its folder by '..', which a configuration file may not; write an absolute path, or one from "
            f"the folder you work in, or give it on the command line: {path}={value}",
        )
    if "check" in metadata:
        try:
            metadata["check"](value)
        except InputError as error:
            raise _at(node, path, str(error)) from None
    return value


# ---------------------------------------------------------------------------------------------------- words


def _key(node: Node, path: str) -> str:
    if not isinstance(node, ScalarNode):
        raise _at(node, path, "a key must be plain text")
    return str(node.value)


def _at(where: Any, path: str, message: str) -> ConfigError:
    mark = where.start_mark
    place = mark.name if mark.name.startswith("command line") else f"{mark.name}:{mark.line + 1}"
    return ConfigError(f"{place}: {path + ': ' if path else ''}{message}")


def _blamed(node: Node, complaint: str) -> Node:
    """As far as the path leads that a complaint about several settings begins with: its line is that of the culprit."""
    for part in complaint.split(maxsplit=1)[0].rstrip(":").split("."):
        inner = [value for key, value in node.value if _key(key, "") == part] if isinstance(node, MappingNode) else []
        if not inner:
            break
        node = inner[0]
    return node


def _got(node: Node) -> str:
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list"
    if _is_null(node):
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
