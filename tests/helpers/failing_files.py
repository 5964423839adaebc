"""File operations that fail: the disk is full for one of them, or the process ends in the middle of
it.
"""

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class Operations:
    """Counts writes, flushes to the disk, renames and removals below a folder, and lets one of them
    fail.

    `fail` is called in the place of the operation `number`. A write has half of its content in the
    file by then.
    """

    def __init__(
        self, folder: Path, number: int | None = None, fail: Callable[[], None] | None = None
    ) -> None:
        self.folder, self.number, self.fail = folder, number, fail
        self.count = 0

    def happens(self) -> bool:
        self.count += 1
        return self.count == self.number

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def operation(subject: Any, *rest: Any, **options: Any) -> Any:
            # A flush has the number of an open file, and only run folders are flushed.
            if (
                (isinstance(subject, int) or self.folder in Path(subject).parents)
                and self.happens()
                and self.fail
            ):
                self.fail()
            return function(subject, *rest, **options)

        return operation

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("fsync", "replace", "unlink"):
            patch.setattr(os, name, self.counted(getattr(os, name)))
        opened = io.open

        def open_counted(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            found = opened(file, mode, *rest, **options)
            below = isinstance(file, (str, Path)) and self.folder in Path(file).parents
            return _Counted(found, self) if below and mode != "r" else found

        patch.setattr(io, "open", open_counted)  # what Path.open calls


class _Counted:
    """A file open for writing."""

    def __init__(self, file: Any, operations: Operations) -> None:
        self.file, self.operations = file, operations

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> "_Counted":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, content: Any) -> None:
        if self.operations.happens() and self.operations.fail:
            self.file.write(content[: len(content) // 2])
            self.file.flush()
            self.operations.fail()
        self.file.write(content)


def no_space() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def end_of_process() -> None:
    """As a kill: nothing is cleaned up, nothing that waits in memory is written."""
    os._exit(9)
