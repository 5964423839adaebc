"""`hf:owner/name`: a data set of the public hub, where the package `datasets` and a network are there."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attittud_lab.data.listing import Columns, Listing
from attittud_lab.data.tables import table_listing
from attittud_lab.errors import InputError, needs, one_line

_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


@contextmanager
def _bars(datasets: Any) -> Iterator[None]:
    """Its progress bars where somebody looks, as with ours."""
    quiet = not sys.stderr.isatty() and not datasets.are_progress_bars_disabled()
    if quiet:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if quiet:
            datasets.enable_progress_bars()


class Hub:
    """Reads the splits through `datasets`; no code of the data set is run."""

    def __init__(self, name: str) -> None:
        if not _NAME.fullmatch(name) or ".." in name:
            raise InputError(f"hf:{name}: expected hf:owner/name")
        try:
            import datasets
        except ImportError:
            raise needs("hub", "datasets", f"data from hf:{name}") from None
        if Path(name).exists():
            raise InputError(
                f"hf:{name}: there is a file or folder of this name here, which 'datasets' would read in place of the hub's; "
                f"write {name} without hf: to read it, or work in another folder"
            )
        self.name = name
        try:
            with _bars(datasets):
                self._splits: dict[str, Any] = dict(datasets.load_dataset(name))
        except Exception as error:  # whatever the network, the hub or the data set's maker did
            raise InputError(
                f"hf:{name}: cannot be loaded ({one_line(error, 200)}); check the name and the network"
            ) from None

    @property
    def splits(self) -> list[str]:
        return list(self._splits)

    def listing(self, split: str | None, columns: Columns) -> Listing:
        split = split or self.splits[0]
        # The underlying table has images still encoded, and the class names in its metadata.
        table = self._splits[split].with_format("arrow")[:]
        features = self._splits[split].features.arrow_schema.metadata
        return table_listing(table.replace_schema_metadata(features), f"hf:{self.name} ({split})", columns)

    def columns(self, split: str | None) -> list[str]:
        return list(self._splits[split or self.splits[0]].column_names)
