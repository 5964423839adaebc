"""Turn YAML into a `Config`; every error names the file, the line and the path.

A text becomes a tree that knows its lines. The trees of base files and overrides are merged into it. Scalars stay text
until the type of their field reads them. No tag constructs an object, and size and depth are limited.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from attittud_lab.config.options import TYPED, Scalar, got, meant
from attittud_lab.config.schema import CandidateConfig, Config, to_dict
from attittud_lab.errors import InputError, nearest, one_line, short

Names = Mapping[str, Callable[[str], object]]
"""A check for each kind of name (strategy, model, basis, engine): it raises an error for an unknown name."""

_ADAPTER = TypeAdapter(Config)
_EXPECTED = {"string_type": "text", "dict_type": "a mapping of names to values", "list_type": "a list, such as [a, b]"}
_LARGEST = 100_000  # bytes: a configuration is a page or two, and takes a few hundred times as much in memory
_DEEPEST = 20
_MOST_OVERRIDES = 1000


class ConfigError(InputError):
    """Something in a configuration is wrong."""


def load(path: str | Path, overrides: Sequence[str] = (), names: Names | None = None) -> Config:
    """Read a configuration file, the files that it inherits from by `base:`, and `key=value` overrides."""
    return _build(overridden(inherited(Path(path)), overrides), names)


def loads(text: str, overrides: Sequence[str] = (), name: str = "configuration", names: Names | None = None) -> Config:
    """Read a configuration from text; `base:` is not followed."""
    return _build(overridden(compose(text, name), overrides), names)


def changed(config: Config, overrides: Sequence[str]) -> Config:
    """Return a configuration with some settings replaced."""
    return _build(overridden(compose("", "settings"), overrides), None, config)


def dump(config: Config) -> str:
    """Write a configuration as YAML that `load` reads back as the same object."""
    plain, usual = to_dict(config), to_dict(CandidateConfig(name=""))
    entries = [*config.compare.strategies, *(config.portfolio.candidates or ())]
    written = [*plain["compare"]["strategies"], *(plain["portfolio"]["candidates"] or ())]
    for entry, values in zip(entries, written, strict=True):
        for key in [key for key, value in values.items() if value == usual[key] and key not in entry.given]:
            del values[key]  # not set by this entry
    # Other letters are escaped: PyYAML would lose some of Unicode's line breaks when it writes them as they are.
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=False)


def _build(tree: Branch, names: Names | None, base: Config | None = None) -> Config:
    try:
        return _ADAPTER.validate_python(_onto(base, tree), context=names)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        location, context = found["loc"], found.get("ctx", {})
        location += (context["key"],) if "key" in context else ()
        origin, value = find(tree, location)
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")
        words = found["msg"]
        if found["type"] == "literal_error":
            choices = re.findall(r"'(.*?)'", context["expected"])
            words = f"expected one of {', '.join(choices)}, got {got(value)}{meant(value, choices)}"
        elif found["type"] == "missing":
            words = "is missing; add it"
        elif found["type"] in _EXPECTED:
            words = f"expected {_EXPECTED[found['type']]}, got {got(value)}"
        raise ConfigError(f"{origin}: {short(path, 200)}: {words}") from None
    except InputError as error:  # an error about several settings begins with the path of the culprit
        origin, _ = find(tree, str(error).split(maxsplit=1)[0].rstrip(":").split("."))
        raise ConfigError(f"{origin}: {error}") from None


def _onto(base: Any, changes: Any) -> Any:
    """Apply settings to `base`; settings that are not mentioned keep their value."""
    if not isinstance(changes, dict) or not (is_dataclass(base) or isinstance(base, dict)):
        return changes
    old = base if isinstance(base, dict) else {entry.name: getattr(base, entry.name) for entry in fields(base)}
    return old | {key: _onto(old.get(key), value) for key, value in changes.items()}


# ---------------------------------------------------------------------------------------------------- the tree


class Branch(dict[Any, Any]):
    """A mapping; `origins` has the file and line of each key."""

    def __init__(self) -> None:
        super().__init__()
        self.origins: dict[Any, str] = {}

    def put(self, key: Any, value: Any, origin: str) -> None:
        self[key], self.origins[key] = value, origin


class _Composer(yaml.SafeLoader):
    """Composes nodes without aliases, so that there are no cycles and no small files that grow to gigabytes."""

    depth = 0

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name = name  # PyYAML's marks take it for the name of the file

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML has no types here
        if isinstance(event, yaml.AliasEvent):
            cure = "write the value again, or put it into a base: file"
            raise ConfigError(f"{_origin(event)}: aliases (*name) are not supported; {cure}")
        if getattr(event, "tag", None) is not None:
            raise ConfigError(f"{_origin(event)}: the tag {short(event.tag)} is not supported; write plain YAML")
        self.depth += 1
        if self.depth > _DEEPEST:
            raise ConfigError(f"{_origin(event)}: nested too deeply for a configuration; remove some levels")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def compose(text: str, name: str) -> Branch:
    """Parse the mapping in a text; error messages call the text `name`."""
    if len(text) > _LARGEST:
        raise ConfigError(f"{name}: {len(text)} characters are too many; a configuration may have at most {_LARGEST}")
    try:
        node = _Composer(text, name).get_single_node()
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{name}{line}: not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the last two: a character beyond Unicode
        raise ConfigError(f"{name}: not valid YAML: {one_line(error, 200)}") from None
    found = Branch() if node is None else _tree(node, "")
    if not isinstance(found, Branch):
        raise ConfigError(f"{_origin(node)}: a configuration is a mapping of keys to values, such as `seed: 1`")
    return found


def _origin(where: Any) -> str:
    mark = where.start_mark
    return mark.name if mark.name.startswith(TYPED) else f"{mark.name}:{mark.line + 1}"


def _tree(node: Node, path: str) -> Any:
    if isinstance(node, MappingNode):
        found = Branch()
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                raise ConfigError(f"{_origin(key)}: {short(path + ': ') if path else ''}a key must be plain text")
            name = str(_scalar(key.value, True, _origin(key)))
            here = f"{path}.{name}" if path else name
            if name in found:
                raise ConfigError(f"{_origin(key)}: {short(here)}: the key is given twice; keep one of them")
            found.put(name, _tree(value, here), _origin(key))
        return found
    if isinstance(node, SequenceNode):
        return [_tree(item, path) for item in node.value]
    return _scalar(node.value, isinstance(node, ScalarNode) and node.style in ("'", '"'), _origin(node))


def _scalar(text: str, quoted: bool, origin: str) -> Scalar | None:
    if text in ("", "~", "null", "Null", "NULL") and not quoted:
        return None
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{origin}: {short(ascii(text))} contains half of a character, which no file can store; correct the text"
        ) from None
    return Scalar(text, origin=origin, quoted=quoted)


def inherited(path: Path, seen: tuple[Path, ...] = ()) -> Branch:
    """Read the mapping in a file, merged into the mapping of its base."""
    found = compose(_read(path), short(str(path), 400))
    if "base" not in found:
        return found
    if path.resolve() in seen or len(seen) > _DEEPEST:
        names = " -> ".join(short(p.name) for p in (*seen, path.resolve())[-5:])
        raise ConfigError(f"{path}: base: forms a circle, or leads through too many files: {names}")
    base = found.pop("base")
    if not isinstance(base, str) or not base or Path(base).is_absolute():
        raise ConfigError(f"{found.origins['base']}: base: expected the relative path of another configuration")
    if ".." in Path(base).parts:
        raise ConfigError(
            f"{found.origins['base']}: base: {short(base)!r} leaves its folder with '..', which a configuration file must not "
            "do; move that file into this folder, or below it"
        )
    return _merged(inherited(path.parent / base, (*seen, path.resolve())), found)


def _read(path: Path) -> str:
    try:
        if stat.S_IFMT(path.stat().st_mode) not in (stat.S_IFREG, stat.S_IFIFO):
            init = "; for a folder of data, `attittud init` writes a configuration" if path.is_dir() else ""
            raise OSError(0, f"it is neither a file nor a pipe{init}")
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise OSError(0, f"it is larger than the {_LARGEST} bytes that a configuration may have")
        return content.decode()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        reason = "a path cannot contain a NUL character" if "\0" in str(path) else reason
        near = _near(path) if isinstance(error, FileNotFoundError) else ""
        raise ConfigError(
            f"{short(str(path), 400)}: cannot read the configuration: {reason}{near or '; check the path'}"
        ) from None


def _near(path: Path) -> str:
    """Return a hint at a configuration in the same folder with a similar name. Suffixes would make all names similar."""
    try:
        names = {other.stem: other.name for other in path.parent.iterdir() if other.suffix in (".yaml", ".yml")}
    except OSError:  # the folder does not exist either
        names = {}
    near = nearest(path.stem, names)
    return f"; did you mean {names[near]!r}?" if near else ""


def _merged(below: Branch, above: Branch) -> Branch:
    """Merge two mappings key by key. Everything that is not a mapping is replaced; `above` wins."""
    for key, value in above.items():
        old, new = below.get(key), value
        if (
            isinstance(value, Branch) and value and old is not None
        ):  # an empty mapping removes all keys: data.auxiliary={}
            if not isinstance(old, Branch):
                # A shorthand such as `strategy: flip` has no name until the type says which field it stands for.
                old = Branch()
                old.put("", below[key], below.origins[key])
            new = _merged(old, value)
        below.put(key, new, above.origins[key])
    return below


def overridden(found: Branch, overrides: Sequence[str]) -> Branch:
    """Change the mapping by `key=value` texts, one after the other."""
    if len(overrides) > _MOST_OVERRIDES:
        raise ConfigError(
            f"{len(overrides)} settings are given, but at most {_MOST_OVERRIDES} are allowed; write a file"
        )
    for position, text in enumerate(overrides):
        path, equals, value = text.partition("=")
        parts, said = path.split("."), short(text)
        if not equals or not all(parts) or len(parts) > _DEEPEST:
            raise ConfigError(f"{said!r} is not a setting; write KEY=VALUE, such as training.guided.lr=1e-4")
        origin = f"{TYPED} ({said})"
        inner = _value(value, origin)
        lost = [short(earlier) for earlier in overrides[:position] if earlier.startswith(f"{path}.")]
        if lost and not (isinstance(inner, Branch) and inner):
            raise ConfigError(
                f"{said} replaces all of {short(path)}, including {lost[0]} before it; write {said} first"
            )
        for part in reversed(parts):
            branch = Branch()
            branch.put(part, inner, origin)
            inner = branch
        found = _merged(found, inner)
    return found


def _value(text: str, origin: str) -> Any:
    """Read the value after the `=`. Only lists, mappings and quotes are YAML: a path may have `#` or `: ` in it."""
    text = text.strip()
    if text[:1] in ("[", "{", "'", '"'):
        found = compose(f"value: {text}", origin)
        if len(found) > 1:
            raise ConfigError(f"{origin}: not valid YAML: there is more text after the value")
        return found["value"]
    return _scalar(text, not text, origin)


def find(tree: Any, location: Sequence[str | int]) -> tuple[str, Any]:
    """Return the file and line, and the value, of a location, or of the last part of it that exists."""
    origin = "settings"
    for part in location:
        if isinstance(tree, list) and isinstance(part, int):
            tree = tree[part]
        elif isinstance(tree, Branch) and (part in tree or "" in tree):
            key = part if part in tree else ""
            origin, tree = tree.origins[key], tree[key]
        origin = getattr(tree, "origin", origin)
    return origin, tree
