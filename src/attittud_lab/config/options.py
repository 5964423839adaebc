"""Documented fields of a configuration.

The documentation of a field is used three times: by `attittud schema`, in the comments that `attittud init` writes, and
in the messages about wrong keys.
"""

from __future__ import annotations

from dataclasses import MISSING as UNSET
from dataclasses import Field, field
from typing import Any

Count = int | float | None
"""How many examples: a whole number is a count, a fraction below 1 a share, null all of them."""

MISSING: Any = object()


def option(default: Any, doc: str, **more: Any) -> Any:
    """A documented field; mutable defaults are copied for each object.

    `later=True` is for settings that came after the first committed results: at their default they are not part of a run's
    fingerprint, so that those results still count. `check` looks at a value that was read, and raises InputError.
    """
    metadata = {"doc": doc, **more}
    if default is MISSING:
        return field(metadata=metadata)
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def default(entry: Field[Any]) -> Any:
    """The value of a field that is not given."""
    return entry.default_factory() if entry.default_factory is not UNSET else entry.default
