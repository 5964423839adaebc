"""Turn YAML into a `Config`; every error names the file, the line and the path.

A text becomes a tree of mappings, lists and texts that know their lines. The trees of base files
and overrides are merged into it. Scalars stay text until the type of their field reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError
from yaml.nodes import MappingNode, Node, ScalarNode

from attittud_lab.config.options import Scalar
from attittud_lab.config.schema import CandidateConfig, Config, to_dict
from attittud_lab.errors import InputError, one_line, short

Names = Mapping[str, Callable[[str], object]]
"""A check for each kind of name (strategy, model, basis, engine).

It raises an error for an unknown name.
"""
Tree = dict[Any, Any]
"""A mapping of the configuration. Its keys are `Scalar`s."""

_ADAPTER = TypeAdapter(Config)
_NULL = ("", "~", "null", "Null", "NULL")


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
    if not overrides:
        return config
    return loads(dump(config), overrides)


def dump(config: Config) -> str:
    """Write a configuration as YAML that `load` reads back as the same object.

    An entry of compare.strategies inherits settings that it does not name. So in entries, there and
    in portfolio.candidates, a key that no user wrote is left out if it has its default.
    """
    plain = to_dict(config)
    defaults = to_dict(CandidateConfig(name=""))
    entries = [*config.compare.strategies, *(config.portfolio.candidates or ())]
    plain_entries = [*plain["compare"]["strategies"], *(plain["portfolio"]["candidates"] or ())]
    for entry, values in zip(entries, plain_entries, strict=True):
        for key, value in list(values.items()):
            if value == defaults[key] and key not in entry.given:
                del values[key]
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
    """Return pydantic's first complaint with its file, line, path and value."""
    complaint = error.errors(include_url=False)[0]
    location = complaint["loc"]
    context = complaint.get("ctx", {})
    if "key" in context:
        location += (context["key"],)
    origin, value = _find(tree, location)
    words = complaint["msg"]
    if complaint["type"] != "refused":
        words += f", got {short(repr(value))}"
    return ConfigError(f"{origin}: {short(_dotted(location), 200)}: {words}")


def _dotted(location: Sequence[str | int]) -> str:
    """Return a location as people write it, such as compare.weights[1]."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.removeprefix(".")


def _find(tree: Any, location: Sequence[str | int]) -> tuple[str, Any]:
    """Return the file and line, and the value, of a location.

    Where a part of it does not exist, they are those of the last part that does. A bare scalar that
    got other settings later has the key "".
    """
    origin = "settings"
    for part in location:
        if isinstance(tree, list) and isinstance(part, int):
            tree = tree[part]
        elif isinstance(tree, dict):
            keys = {key: key for key in tree}  # a key in the tree knows its file and line
            key = keys.get(part, keys.get(""))
            if key is not None:
                origin = key.origin
                tree = tree[key]
        origin = getattr(tree, "origin", origin)
    return origin, tree


# ----------------------------------------------------------------------------------------- the tree


def _compose(text: str, name: str) -> Tree:
    """Parse the mapping in a text; error messages call the text `name`."""
    try:
        loader = yaml.BaseLoader(text)
        loader.name = name  # PyYAML's marks take it for the name of the file
        node = loader.get_single_node()
        tree = {} if node is None else _tree(node)
    except yaml.MarkedYAMLError as error:
        origin = name
        if error.problem_mark:
            origin += f":{error.problem_mark.line + 1}"
        reason = error.problem or error.context
        raise ConfigError(f"{origin}: not valid YAML: {reason}") from None
    # The last three come from a character beyond Unicode, or from thousands of levels.
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{name}: not valid YAML: {one_line(error, 200)}") from None
    if not isinstance(tree, dict):
        expected = "a configuration is a mapping of keys to values, such as `seed: 1`"
        raise ConfigError(f"{_origin(node)}: {expected}")
    return tree


def _origin(node: Any) -> str:
    """Return the file and line of a node of PyYAML."""
    return f"{node.start_mark.name}:{node.start_mark.line + 1}"


def _tree(node: Node) -> Any:
    """Convert a node to mappings, lists, texts and None."""
    if node.tag.partition("2002:")[2] not in ("str", "seq", "map"):
        tag = short(node.tag)
        raise ConfigError(f"{_origin(node)}: the tag {tag} is not supported; write plain YAML")
    if isinstance(node, MappingNode):
        return _mapping(node)
    if isinstance(node, ScalarNode):
        return _scalar(node.value, _origin(node), quoted=node.style is not None)
    return [_tree(item) for item in node.value]


def _mapping(node: MappingNode) -> Tree:
    """Convert a mapping; a key may be given only once."""
    tree: Tree = {}
    for key, value in node.value:
        origin = _origin(key)
        if not isinstance(key, ScalarNode):
            raise ConfigError(f"{origin}: a key must be plain text")
        if key.value in tree:
            reason = "the key is given twice; keep one of them"
            raise ConfigError(f"{origin}: {short(key.value)}: {reason}")
        tree[Scalar(key.value, origin)] = _tree(value)
    return tree


def _scalar(text: str, origin: str, *, quoted: bool) -> Scalar | None:
    """Return a text that knows where it stands; None for an unquoted null."""
    if text in _NULL and not quoted:
        return None
    return Scalar(text, origin)


def _inherited(path: Path, earlier: tuple[Path, ...] = ()) -> Tree:
    """Read the mapping in a file, merged into the mapping of its base.

    `earlier` are the files that led here.
    """
    tree = _compose(_read(path), str(path))
    if "base" not in tree:
        return tree
    origin, base = _find(tree, ["base"])
    if path.resolve() in earlier:
        names = " -> ".join(file.name for file in earlier)
        raise ConfigError(f"{path}: base: forms a circle: {names}")
    if not isinstance(base, str) or not base or Path(base).is_absolute():
        raise ConfigError(f"{origin}: base: expected the relative path of another configuration")
    del tree["base"]
    return _merged(_inherited(path.parent / base, (*earlier, path.resolve())), tree)


def _read(path: Path) -> str:
    """Read a file of UTF-8 text."""
    advice = "check the path"
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror
        if path.is_dir():
            advice = "for a folder of data, `attittud init` writes a configuration"
    except ValueError as error:  # not UTF-8, or a NUL character in the path
        reason = one_line(error)
    raise ConfigError(f"{short(str(path), 400)}: cannot read the configuration: {reason}; {advice}")


def _merged(below: Tree, above: Tree) -> Tree:
    """Merge two mappings key by key; `above` wins, keys stay in the order of `below`.

    Everything that is not a mapping is replaced. An empty mapping removes all keys, as in
    `data.auxiliary={}`.
    """
    tree: Tree = {}
    # Equal keys of both differ in where they were read: the values here are those of `above`.
    keys = {key: key for key in below} | {key: key for key in above}
    for key in keys.values():
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
    if not equals or not all(keys):
        example = "write KEY=VALUE, such as training.guided.lr=1e-4"
        raise ConfigError(f"{shown!r} is not a setting; {example}")
    origin = f"command line ({shown})"
    value = _value(value_text, origin)
    is_merged = isinstance(value, dict) and value  # anything else replaces the whole path
    undone = [short(other) for other in earlier if other.startswith(f"{path}.")]
    if undone and not is_merged:
        reason = f"replaces all of {short(path)}, including {undone[0]} before it"
        raise ConfigError(f"{shown} {reason}; write {shown} first")
    for key in reversed(keys):
        value = {Scalar(key, origin): value}
    tree: Tree = value
    return tree


def _value(text: str, origin: str) -> Any:
    """Read the value after the `=`; nothing after it is an empty text, not null as in YAML.

    Only lists, mappings and quotes are YAML: a path may have `#` or `: ` in it.
    """
    text = text.strip()
    if text[:1] in ("[", "{", "'", '"'):
        tree = _compose(f"value: {text}", origin)
        if len(tree) > 1:
            raise ConfigError(f"{origin}: not valid YAML: there is more text after the value")
        return tree["value"]
    return _scalar(text, origin, quoted=not text)
