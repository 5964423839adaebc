"""From YAML to a `Config`, with the file, the line and the path in every complaint."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from attittud_lab.config.options import got, meant
from attittud_lab.config.schema import Config, StrategyConfig, to_dict
from attittud_lab.config.tree import Branch, ConfigError, compose, find, inherited, overridden
from attittud_lab.errors import InputError, short

Names = Mapping[str, Callable[[str], object]]
"""Checks of names by their kind (strategy, model, basis, engine): each raises an error about a name that is unknown."""

_ADAPTER = TypeAdapter(Config)


def load(path: str | Path, overrides: Sequence[str] = (), names: Names | None = None) -> Config:
    """Read a configuration file, those that it inherits from by `base:`, and `key=value` overrides."""
    return _build(overridden(inherited(Path(path)), overrides), names)


def loads(text: str, overrides: Sequence[str] = (), name: str = "configuration", names: Names | None = None) -> Config:
    """The same from text; `base:` is not followed."""
    return _build(overridden(compose(text, name), overrides), names)


def changed(config: Config, overrides: Sequence[str]) -> Config:
    """A configuration with some settings replaced."""
    return _build(overridden(compose("", "settings"), overrides), None, config)


def dump(config: Config) -> str:
    """A configuration as YAML that `load` reads back as the same object."""
    plain = to_dict(config)
    plain["compare"]["strategies"] = [_said(entry) for entry in config.compare.strategies]
    # Other letters as escapes: PyYAML folds some of Unicode's line breaks away when it writes them as they are.
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=False)


def _said(entry: StrategyConfig) -> dict[str, Any]:
    """Without what it leaves open."""
    usual, values = to_dict(StrategyConfig(name=entry.name)), to_dict(entry)
    return {key: values[key] for key in usual if key == "name" or key in entry.given or values[key] != usual[key]}


def _build(tree: Branch, names: Names | None, base: Config | None = None) -> Config:
    try:
        return _ADAPTER.validate_python(_onto(base, tree), context=names)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        location, context = found["loc"], found.get("ctx", {})
        location += (context["key"],) if "key" in context else ()
        place, value = find(tree, location)
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")
        raise ConfigError(
            f"{place}: {short(path, 200)}: {_words(found['type'], found['msg'], context, value)}"
        ) from None
    except InputError as error:  # about several settings; it begins with the path of the culprit
        place, _ = find(tree, str(error).split(maxsplit=1)[0].rstrip(":").split("."))
        raise ConfigError(f"{place}: {error}") from None


def _onto(base: Any, changes: Any) -> Any:
    """Settings that are not mentioned keep the value that they have in `base`."""
    if not isinstance(changes, dict) or not (is_dataclass(base) or isinstance(base, dict)):
        return changes
    old = base if isinstance(base, dict) else {entry.name: getattr(base, entry.name) for entry in fields(base)}
    return old | {key: _onto(old.get(key), value) for key, value in changes.items()}


def _words(kind: str, message: str, context: Mapping[str, Any], value: Any) -> str:
    """What our own types say, and what pydantic says of its own, in our words."""
    if kind == "literal_error":
        choices = re.findall(r"'(.*?)'", context["expected"])
        return f"expected one of {', '.join(choices)}, got {got(value)}{meant(value, choices)}"
    words = {"string_type": "text", "dict_type": "a mapping of names to values", "list_type": "a list, such as [a, b]"}
    return f"expected {words[kind]}, got {got(value)}" if kind in words else message
