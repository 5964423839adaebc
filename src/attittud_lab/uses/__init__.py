"""Uses by name: how auxiliary data take part in a fit. Each is one file, and one entry here."""

from __future__ import annotations

from attittud_lab.errors import unknown
from attittud_lab.uses.alone import Alone
from attittud_lab.uses.base import Use
from attittud_lab.uses.pooled import Pooled
from attittud_lab.uses.stacked import Stacked
from attittud_lab.uses.translated import Translated

_USES: dict[str, Use] = {use.name: use for use in (Alone(), Pooled(), Stacked(), Translated())}


def uses() -> list[str]:
    """Return the names of all uses, the simplest first."""
    return list(_USES)


def find_use(name: str) -> Use:
    """Return the use of a name; the error for an unknown name offers the nearest one."""
    if name not in _USES:
        raise unknown("use", name, _USES)
    return _USES[name]


__all__ = ["Use", "find_use", "uses"]
