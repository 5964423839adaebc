"""A JSON Schema of the configuration, from the same dataclasses that read it."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from attittud_lab.config.options import default
from attittud_lab.config.schema import Config, to_dict

_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


def json_schema() -> dict[str, Any]:
    """Draft 2020-12."""
    definitions: dict[str, Any] = {}
    root = _of(Config, definitions)
    base = {"type": "string", "description": "another configuration to inherit from, relative to this file"}
    definitions["Config"]["properties"]["base"] = base
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": definitions}


def _of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}  # its place, should it contain itself
            definitions[kind.__name__] = _object(kind, definitions)
        reference = {"$ref": f"#/$defs/{kind.__name__}"}
        if hasattr(kind, "shorthand"):
            return {"anyOf": [{"type": ["string", "number", "boolean"]}, reference]}
        return reference
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, UnionType):
        return {"anyOf": [_of(argument, definitions) for argument in arguments]}
    if origin is list:
        return {"type": "array", "items": _of(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of(arguments[1], definitions)}
    if kind is str:
        # Class names and the like are taken as they are written: `no`, `1` and `true` are texts too.
        return {"type": ["string", "number", "boolean"]}
    return {"type": _TYPES[kind]}


def _object(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    types = get_type_hints(kind)
    properties = {}
    for entry in fields(kind):
        found = _of(types[entry.name], definitions)
        limits = {key: entry.metadata[key] for key in ("minimum", "maximum") if key in entry.metadata}
        usual = to_dict(default(entry))
        properties[entry.name] = {**found, "description": entry.metadata["doc"], **limits, "default": usual}
    return {
        "type": "object",
        "description": (kind.__doc__ or "").strip(),
        "properties": properties,
        "additionalProperties": False,
    }
