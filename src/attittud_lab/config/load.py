"""Turn YAML into a `Config`; every error names the file, the line and the path.

A text becomes a tree of mappings, lists and texts that know their lines. The trees of base files
and overrides are merged into it. Scalars stay text until the type of their field reads them. No tag
constructs an object, and size and depth are limited.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from attittud_lab.config.options import Scalar, got, meant
from attittud_lab.config.schema import CandidateConfig, Config, to_dict
from attittud_lab.errors import InputError, nearest, one_line, short

Names = Mapping[str, Callable[[str], object]]
"""A check for each kind of name (strategy, model, basis, engine).

It raises an error for an unknown name.
"""
Tree = dict[Any, Any]
"""A mapping of the configuration. Its keys are `Scalar`s."""

_ADAPTER = TypeAdapter(Config)
_WHOLE = "expected a whole number"
_NUMBER = "expected a number"
_WORDS = {
    "string_type": "expected text",
    "dict_type": "expected a mapping of names to values",
    "dataclass_type": "expected a mapping of names to values",
    "list_type": "expected a list, such as [a, b]",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": "expected a smaller number",
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "expected a finite number",
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
}
"""Our words for pydantic's kinds of errors."""
_LARGEST = 100_000
"""Bytes of a file. A configuration is a page or two, and takes some hundred times its size."""
_DEEPEST = 20


class ConfigError(InputError):
    """Something in a configuration is wrong."""


def load(path: str | Path, overrides: Sequence[str] = (), names: Names | None = None) -> Config:
    """Read a configuration file, the files that it names by `base:`, and `key=value` overrides."""
    return _build(_overridden(_inherited(Path(path)), overrides), names)


def loads(
    text: str,
    overrides: Sequence[str] = (),
    name: str = "configuration",
    names: Names | None = None,
) -> Config:
    """Read a configuration from text; `base:` is not followed."""
    return _build(_overridden(_compose(text, name), overrides), names)


def changed(config: Config, overrides: Sequence[str]) -> Config:
    """Return a configuration with some settings replaced."""
    return loads(dump(config), overrides) if overrides else config


def dump(config: Config) -> str:
    """Write a configuration as YAML that `load` reads back as the same object."""
    plain = to_dict(config)
    defaults = to_dict(CandidateConfig(name=""))
    entries = [*config.compare.strategies, *(config.portfolio.candidates or ())]
    plain_entries = [*plain["compare"]["strategies"], *(plain["portfolio"]["candidates"] or ())]
    for entry, values in zip(entries, plain_entries, strict=True):
        for key, value in list(values.items()):
            if value == defaults[key] and key not in entry.given:
                del values[key]  # not set by this entry
    # Other letters are escaped: PyYAML would lose some of Unicode's line breaks.
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=False)


def _build(tree: Tree, names: Names | None) -> Config:
    """Validate a tree; settings that are not in it have their defaults."""
    try:
        return _ADAPTER.validate_python(tree, context=names)
    except ValidationError as error:
        raise _explained(error, tree) from None
    except InputError as error:  # about several settings: it begins with the path of the culprit
        culprit = str(error).split(maxsplit=1)[0].rstrip(":")
        origin, _ = _find(tree, culprit.split("."))
        raise ConfigError(f"{origin}: {error}") from None


def _explained(error: ValidationError, tree: Tree) -> ConfigError:
    """Return pydantic's first complaint with its file, line and path, in our words."""
    complaint = error.errors(include_url=False)[0]
    kind = complaint["type"]
    location = complaint["loc"]
    context = complaint.get("ctx", {})
    if "key" in context:
        location += (context["key"],)
    origin, value = _find(tree, location)
    words = complaint["msg"]
    if kind == "literal_error":
        choices = re.findall(r"'(.*?)'", context["expected"])
        words = f"expected one of {', '.join(choices)}, got {got(value)}{meant(value, choices)}"
    elif kind == "missing":
        words = "is missing; add it"
    elif kind in _WORDS:
        words = f"{_WORDS[kind].format(**context)}, got {got(value)}"
    return ConfigError(f"{origin}: {short(_dotted(location), 200)}: {words}")


def _dotted(location: Sequence[str | int]) -> str:
    """Return a location as people write it, such as compare.weights[1]."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.removeprefix(".")


def _find(tree: Any, location: Sequence[str | int]) -> tuple[str, Any]:
    """Return the file and line, and the value, of a location.

    Where a part of it does not exist, they are those of the last part that does.
    """
    origin = "settings"
    for part in location:
        if isinstance(tree, list) and isinstance(part, int):
            tree = tree[part]
        elif isinstance(tree, dict):
            keys = {key: key for key in tree}
            key = keys.get(part, keys.get(""))
            if key is not None:
                origin = key.origin
                tree = tree[key]
        origin = getattr(tree, "origin", origin)
    return origin, tree


# ----------------------------------------------------------------------------------------- the tree


class _Composer(yaml.SafeLoader):
    """Composes nodes without aliases.

    So there are no cycles, and no small files that grow to gigabytes.
    """

    depth = 0

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name = name  # PyYAML's marks take it for the name of the file

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Compose a node; refuse aliases, tags and deep nesting."""
        event = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML has no types here
        if isinstance(event, yaml.AliasEvent):
            cure = "write the value again, or put it into a base: file"
            raise ConfigError(f"{_origin(event)}: aliases (*name) are not supported; {cure}")
        if getattr(event, "tag", None) is not None:
            reason = f"the tag {short(event.tag)} is not supported"
            raise ConfigError(f"{_origin(event)}: {reason}; write plain YAML")
        self.depth += 1
        if self.depth > _DEEPEST:
            reason = "nested too deeply for a configuration"
            raise ConfigError(f"{_origin(event)}: {reason}; remove some levels")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _compose(text: str, name: str) -> Tree:
    """Parse the mapping in a text; error messages call the text `name`."""
    try:
        node = _Composer(text, name).get_single_node()
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        reason = error.problem or error.context
        raise ConfigError(f"{name}{line}: not valid YAML: {reason}") from None
    # The last two: a character beyond Unicode.
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ConfigError(f"{name}: not valid YAML: {one_line(error, 200)}") from None
    if node is None:
        return {}
    if not isinstance(node, MappingNode):
        expected = "a configuration is a mapping of keys to values, such as `seed: 1`"
        raise ConfigError(f"{_origin(node)}: {expected}")
    return _mapping(node, "")


def _origin(where: Any) -> str:
    """Return the file and line of a node or an event of PyYAML."""
    mark = where.start_mark
    return f"{mark.name}:{mark.line + 1}"


def _tree(node: Node, path: str) -> Any:
    """Convert a node; `path` is where it is in the configuration."""
    if isinstance(node, MappingNode):
        return _mapping(node, path)
    if isinstance(node, SequenceNode):
        return [_tree(item, path) for item in node.value]
    quoted = isinstance(node, ScalarNode) and node.style in ("'", '"')
    return _scalar(node.value, quoted, _origin(node))


def _mapping(node: MappingNode, path: str) -> Tree:
    """Convert a mapping; a key may be given only once."""
    tree: Tree = {}
    for key, value in node.value:
        origin = _origin(key)
        if not isinstance(key, ScalarNode):
            prefix = short(f"{path}: ") if path else ""
            raise ConfigError(f"{origin}: {prefix}a key must be plain text")
        name = _scalar(key.value, True, origin)
        full = f"{path}.{name}" if path else str(name)
        if name in tree:
            raise ConfigError(f"{origin}: {short(full)}: the key is given twice; keep one of them")
        tree[name] = _tree(value, full)
    return tree


def _scalar(text: str, quoted: bool, origin: str) -> Scalar | None:
    """Return a text that knows where it stands; None for an unquoted null."""
    if text in ("", "~", "null", "Null", "NULL") and not quoted:
        return None
    try:
        text.encode()
    except UnicodeEncodeError:
        reason = "contains half of a character, which no file can store"
        raise ConfigError(f"{origin}: {short(ascii(text))} {reason}; correct the text") from None
    return Scalar(text, origin)


def _inherited(path: Path, earlier: tuple[Path, ...] = ()) -> Tree:
    """Read the mapping in a file, merged into the mapping of its base.

    `earlier` are the files that led here.
    """
    tree = _compose(_read(path), short(str(path), 400))
    origin, base = _find(tree, ["base"])
    if "base" not in tree:
        return tree
    files = (*earlier, path.resolve())
    if path.resolve() in earlier or len(earlier) > _DEEPEST:
        names = " -> ".join(short(file.name) for file in files[-5:])
        raise ConfigError(f"{path}: base: forms a circle, or leads through too many files: {names}")
    if not isinstance(base, str) or not base or Path(base).is_absolute():
        raise ConfigError(f"{origin}: base: expected the relative path of another configuration")
    del tree["base"]
    return _merged(_inherited(path.parent / base, files), tree)


def _read(path: Path) -> str:
    """Read a file or a pipe of at most `_LARGEST` bytes."""
    name = short(str(path), 400)
    hint = "; check the path"
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
        text = content.decode()
    except OSError as error:
        reason = error.strerror
        if path.is_dir():
            hint = "; for a folder of data, `attittud init` writes a configuration"
        elif isinstance(error, FileNotFoundError):
            hint = _near(path) or hint
    except ValueError as error:  # not UTF-8, or a NUL character in the path
        reason = one_line(error)
    else:
        if len(content) <= _LARGEST:
            return text
        reason = f"it is larger than the {_LARGEST} bytes that a configuration may have"
    raise ConfigError(f"{name}: cannot read the configuration: {reason}{hint}")


def _near(path: Path) -> str:
    """Return a hint at a configuration in the same folder with a similar name.

    Names are compared without their suffixes, which would make all of them similar.
    """
    names = {}
    with suppress(OSError):  # the folder does not exist either
        for other in path.parent.iterdir():
            if other.suffix in (".yaml", ".yml"):
                names[other.stem] = other.name
    near = nearest(path.stem, names)
    return f"; did you mean {names[near]!r}?" if near else ""


def _merged(below: Tree, above: Tree) -> Tree:
    """Merge two mappings key by key; `above` wins, keys stay in the order of `below`.

    Everything that is not a mapping is replaced. An empty mapping removes all keys, as in
    `data.auxiliary={}`.
    """
    tree: Tree = {}
    newest = {key: key for key in below} | {key: key for key in above}
    for key in newest.values():
        old = below.get(key)
        new = above.get(key)
        if key not in above:
            new = old
        elif isinstance(new, dict) and new and old is not None:
            if not isinstance(old, dict):
                # A shorthand such as `strategy: flip` has no name until the type says which field
                # it stands for.
                old = {Scalar("", getattr(old, "origin", key.origin)): old}
            new = _merged(old, new)
        tree[key] = new
    return tree


def _overridden(tree: Tree, overrides: Sequence[str]) -> Tree:
    """Change the mapping by `key=value` texts, one after the other."""
    for position, text in enumerate(overrides):
        tree = _merged(tree, _setting(text, overrides[:position]))
    return tree


def _setting(text: str, earlier: Sequence[str]) -> Tree:
    """Return the mapping that `a.b.c=value` stands for: {a: {b: {c: value}}}.

    A setting that would undo one of the `earlier` ones is refused.
    """
    path, equals, value_text = text.partition("=")
    keys = path.split(".")
    shown = short(text)
    if not equals or not all(keys) or len(keys) > _DEEPEST:
        example = "write KEY=VALUE, such as training.guided.lr=1e-4"
        raise ConfigError(f"{shown!r} is not a setting; {example}")
    origin = f"command line ({shown})"
    value = _value(value_text, origin)
    merges = isinstance(value, dict) and value
    undone = [short(other) for other in earlier if other.startswith(f"{path}.")]
    if undone and not merges:
        reason = f"replaces all of {short(path)}, including {undone[0]} before it"
        raise ConfigError(f"{shown} {reason}; write {shown} first")
    for key in reversed(keys):
        value = {Scalar(key, origin): value}
    tree: Tree = value
    return tree


def _value(text: str, origin: str) -> Any:
    """Read the value after the `=`.

    Only lists, mappings and quotes are YAML: a path may have `#` or `: ` in it.
    """
    text = text.strip()
    if text[:1] in ("[", "{", "'", '"'):
        tree = _compose(f"value: {text}", origin)
        if len(tree) > 1:
            raise ConfigError(f"{origin}: not valid YAML: there is more text after the value")
        return tree["value"]
    return _scalar(text, not text, origin)
