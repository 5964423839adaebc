"""`hf:owner/name`: a data set of the public hub; needs the package `datasets` and a network."""

from __future__ import annotations

import logging
import re
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from attittud_lab.data.source import Columns, Listing, joined, warn_once
from attittud_lab.data.tables import table_listing
from attittud_lab.errors import InputError, one_line, optional

PATIENCE = 5
"""Seconds to wait for the hub's first answer."""
_NAME = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")


class Hub:
    """Reads the splits through `datasets`; no code of the data set is run."""

    @classmethod
    def open(cls, name: str) -> Self | None:
        return cls(name.removeprefix("hf:")) if name.startswith("hf:") else None

    def __init__(self, name: str) -> None:
        if not _NAME.fullmatch(name) or ".." in name:
            raise InputError(f"hf:{name[:200]}: expected hf:owner/name")
        datasets = optional("datasets", "hub", f"data from hf:{name}")
        if Path(name).exists():
            problem = f"hf:{name}: 'datasets' would read the local file or folder {name} instead of the hub's"
            raise InputError(
                f"{problem}; write {name} without hf: to read it, or work in another folder"
            )
        self.name, hub = name, datasets.config.HF_ENDPOINT
        reached = datasets.config.HF_HUB_OFFLINE or _answers(hub)
        try:
            with _quietly(datasets, offline=not reached):
                self._splits: dict[str, Any] = dict(datasets.load_dataset(name))
        except Exception as error:  # the network, the hub or the data set may fail in any way
            if reached:
                why = one_line(error, 200)
            else:
                why = f"{hub} does not answer, and the cache has no copy"
            cure = "check the name and the network, or download the data set elsewhere and name its folder"
            raise InputError(f"hf:{name}: cannot be loaded ({why}); {cure}") from None
        if not reached:
            warn_once(f"hf:{name}: {hub} does not answer, so the copy in the cache is used")

    @property
    def splits(self) -> list[str]:
        return list(self._splits)

    def columns(self, split: str | None) -> list[str]:
        return list(self._splits[split or self.splits[0]].column_names)

    def table(self, split: str | None) -> Any:
        """Return the underlying table: images are still encoded, metadata has the class names.
        None: the first split.
        """
        data = self._splits[split or self.splits[0]]
        return data.with_format("arrow")[:].replace_schema_metadata(
            data.features.arrow_schema.metadata
        )

    def listing(self, split: str | None, columns: Columns) -> Listing:
        if split is None:
            return joined([self.listing(name, columns) for name in self.splits])
        data = self._splits[split]
        table = self.table(split)
        where = f"hf:{self.name} ({split})"
        if data.info.builder_name == "csv" and any(column.null_count for column in table.columns):
            problem = (
                f"{where}: 'datasets' reads cells such as NA, None and null of csv files as empty"
            )
            warn_once(f"{problem}; if they are labels, download the files and name their folder")
        return table_listing(table, where, columns)


def _answers(address: str) -> bool:
    """Whether a server answers at all; `datasets` by itself would try for half a minute."""
    answers: list[bool] = []

    def ask() -> None:
        with suppress(OSError, ValueError):
            with suppress(urllib.error.HTTPError):  # an error code is an answer
                urllib.request.urlopen(
                    urllib.request.Request(address, method="HEAD"), timeout=PATIENCE
                ).close()
            answers.append(True)

    # In a thread, since looking up a name has no time limit.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return bool(answers)


@contextmanager
def _quietly(datasets: Any, *, offline: bool) -> Iterator[None]:
    """Hide progress bars. `offline`: use the cache alone, and hide the warning about it."""
    with ExitStack() as restored:
        if not (sys.stderr.isatty() or datasets.are_progress_bars_disabled()):
            datasets.disable_progress_bars()
            restored.callback(datasets.enable_progress_bars)
        for settings in (
            (datasets.config, import_module("huggingface_hub").constants) if offline else ()
        ):
            restored.callback(setattr, settings, "HF_HUB_OFFLINE", settings.HF_HUB_OFFLINE)
            settings.HF_HUB_OFFLINE = True
        for logger in map(logging.getLogger, ("datasets", "huggingface_hub") if offline else ()):
            restored.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        yield
