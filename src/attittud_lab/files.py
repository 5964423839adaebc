"""Files that are either whole or not there: written beside their place, flushed to the disk, then renamed."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attittud_lab.errors import InputError, one_line

OTHER_FOLDER = "choose another folder by output=FOLDER"
"""What to do about a place that cannot be written, where nothing else is said."""


def write_atomically(path: Path, content: bytes, cure: str = OTHER_FOLDER) -> None:
    """Replace `path` by `content` in one instant, as seen by any other process and after a crash."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _flush_folder(path.parent)
    except BaseException as error:  # also Ctrl-C
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise cannot_write(path, error, cure) from None
        raise


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def without_nan(value: Any) -> Any:
    """The same with null for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: cannot be read ({one_line(error)}); move the run folder away to start afresh"
        ) from None


def cannot_write(path: Path, error: OSError, cure: str = OTHER_FOLDER) -> InputError:
    """What to do about a full disk or a folder that may not be written to."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return InputError(f"{path}: the disk is full; free some space, or {cure}, and run again")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return InputError(f"{path}: may not be written ({error.strerror}); {cure}")
    return InputError(f"{path}: cannot be written ({error.strerror or error}); {cure}")


def make_folder(path: Path, cure: str = OTHER_FOLDER, *, shared: bool = False) -> None:
    """Make a run folder, and clear what a killed process left half-written in it.

    A `shared` one is not cleared: there another process may be writing.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        for part in () if shared else path.glob(".*.part"):
            part.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error, cure) from None


@contextmanager
def only_one_process(folder: Path) -> Iterator[None]:
    """Two processes in one run folder would overwrite each other; the lock is gone with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        yield
        return
    path = folder / ".lock"
    try:
        file = path.open("a")
    except OSError as error:
        raise cannot_write(path, error) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{folder}: another process is training in this folder; wait for it, or choose another output=FOLDER"
            ) from None
        except OSError:  # a file system without locks
            pass
        yield


def _flush_folder(folder: Path) -> None:
    """A rename is on the disk only when its folder is."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
