"""Networks by name: a shared body and one head per task."""

from attittud_lab.models.registry import Entry, Wanted, find, names, register

__all__ = ["Entry", "Wanted", "find", "names", "register"]
