"""The nodes of a YAML text: of a file, of those that it inherits from, and of overrides. Each knows its file and line.

Nothing is constructed from tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from attittud_lab.errors import InputError, one_line

_TEXT, _MAPPING = "tag:yaml.org,2002:str", "tag:yaml.org,2002:map"
_LARGEST = 1_000_000  # characters; a configuration is a page or two


class ConfigError(InputError):
    """Something in a configuration is wrong."""


class _Composer(yaml.SafeLoader):
    """Nodes only. Without aliases there are no cycles and no small files that grow to gigabytes."""

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML has no types here
        if isinstance(event, yaml.AliasEvent):
            raise complaint(
                event, "", "aliases (*name) are not supported; write the value again, or put it into a base: file"
            )
        if getattr(event, "tag", None) is not None:
            raise complaint(event, "", f"the tag {event.tag} is not supported; write plain YAML")
        return super().compose_node(parent, index)


def compose(text: str, name: str) -> MappingNode:
    """A text's mapping; `name` is what complaints call the text."""
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
        raise ConfigError(f"{name}: not valid YAML: {one_line(error)}") from None
    except RecursionError:
        raise ConfigError(f"{name}: nested too deeply for a configuration") from None
    if node is None:
        return MappingNode(_MAPPING, [], yaml.Mark(name, 0, 0, 0, None, 0))
    if not isinstance(node, MappingNode):
        raise complaint(node, "", "a configuration is a mapping of keys to values, such as `model: small-cnn`")
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
        name = key_of(key, path)
        here = f"{path}.{name}" if path else name
        if name in seen:
            raise complaint(key, here, "the key is given twice; keep one of them")
        seen.add(name)
        _refuse_twins(value, here)


def inherited(path: Path, seen: tuple[Path, ...]) -> MappingNode:
    """A file's mapping, with what it does not say taken from its base."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: cannot read the configuration: {reason}; check the path") from None
    node = compose(text, str(path))
    resolved = path.resolve()
    if resolved in seen:
        raise ConfigError(f"{path}: base: goes round in a circle: {' -> '.join(p.name for p in (*seen, resolved))}")
    for position, (key, value) in enumerate(node.value):
        if isinstance(key, ScalarNode) and key.value == "base":
            del node.value[position]
            if not isinstance(value, ScalarNode) or not value.value or Path(value.value).is_absolute():
                raise complaint(value, "base", "expected the relative path of another configuration")
            return _merged(inherited(path.parent / value.value, (*seen, resolved)), node)
    return node


def _merged(below: MappingNode, above: MappingNode) -> MappingNode:
    """`above` wins; mappings are merged key by key, all else is replaced."""
    entries = {key_of(key, ""): (key, value) for key, value in below.value}
    for key, value in above.value:
        old = entries.get(key_of(key, ""))
        # An empty mapping is meant to empty: `data.auxiliary={}`.
        if old is not None and isinstance(value, MappingNode) and value.value and not is_null(old[1]):
            entries[key_of(key, "")] = (key, _merged(as_mapping(old[1]), value))
        else:
            entries[key_of(key, "")] = (key, value)
    return MappingNode(above.tag, list(entries.values()), above.start_mark, above.end_mark)


def as_mapping(node: Node) -> MappingNode:
    """A shorthand such as `strategy: flip`, kept under no name until the type is known that says what it is short for."""
    if isinstance(node, MappingNode):
        return node
    key = ScalarNode(_TEXT, "", node.start_mark, node.end_mark)
    return MappingNode(_MAPPING, [(key, node)], node.start_mark, node.end_mark)


def overridden(node: MappingNode, overrides: Sequence[str]) -> MappingNode:
    """A mapping with `key=value` texts taken over, one after the other."""
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
        ((_, node),) = compose(f"value: {text}", name).value
        assert isinstance(node, Node)
        return node
    mark = yaml.Mark(name, 0, 0, 0, None, 0)
    return ScalarNode(_TEXT, text.strip(), mark, mark, style=None if text.strip() else "'")


def is_null(node: Node) -> bool:
    return (
        isinstance(node, ScalarNode)
        and node.style not in ("'", '"')
        and node.value in ("", "~", "null", "Null", "NULL")
    )


def key_of(node: Node, path: str) -> str:
    if not isinstance(node, ScalarNode):
        raise complaint(node, path, "a key must be plain text")
    return str(node.value)


def complaint(where: Any, path: str, message: str) -> ConfigError:
    """With the file and the line of a node or event."""
    mark = where.start_mark
    place = mark.name if mark.name.startswith("command line") else f"{mark.name}:{mark.line + 1}"
    return ConfigError(f"{place}: {path + ': ' if path else ''}{message}")
