"""`hf:owner/name`: a data set of the public hub; needs the package `datasets`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Self

from attittud_lab.data.source import Columns, Listing, join_listings
from attittud_lab.data.tables import table_listing
from attittud_lab.errors import InputError, one_line, optional

_NAME = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")


class Hub:
    """Reads the splits through `datasets`; no code of the data set is run."""

    @classmethod
    def open(cls, name: str) -> Self | None:
        if not name.startswith("hf:"):
            return None
        return cls(name.removeprefix("hf:"))

    def __init__(self, name: str) -> None:
        """Load all splits of a data set, from the hub or from the cache of `datasets`."""
        if not _NAME.fullmatch(name) or ".." in name:
            raise InputError(f"hf:{name[:200]}: expected hf:owner/name")
        if Path(name).exists():  # `datasets` would read it instead of the hub's
            problem = f"hf:{name}: {name} is also a file or folder here"
            raise InputError(f"{problem}; write it without hf:")
        datasets = optional("datasets", "hub", f"data from hf:{name}")
        self.name = name
        try:
            self._splits: dict[str, Any] = dict(datasets.load_dataset(name))
        except Exception as error:  # the network, the hub or the data set may fail in any way
            problem = f"hf:{name}: cannot be loaded ({one_line(error, 200)})"
            raise InputError(f"{problem}; check the name and the network") from None

    @property
    def splits(self) -> list[str]:
        return list(self._splits)

    def columns(self, split: str | None) -> list[str]:
        return list(self._splits[split or self.splits[0]].column_names)

    def listing(self, split: str | None, columns: Columns) -> Listing:
        """Return the listing of a split; without a split, of all splits joined."""
        if split is None:
            return join_listings([self.listing(name, columns) for name in self.splits])
        data = self._splits[split]
        # Images are still encoded, and the metadata has the class names.
        table = data.with_format("arrow")[:]
        table = table.replace_schema_metadata(data.features.arrow_schema.metadata)
        return table_listing(table, f"hf:{self.name} ({split})", columns)
