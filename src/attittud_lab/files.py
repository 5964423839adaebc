"""Write files that are either whole or absent; locks and scratch folders.

A file is written under another name, flushed and renamed, so that a killed process or a full disk
leaves the file as it was. Every room that writes files uses these functions.
"""

from __future__ import annotations

import errno
import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

from attittud_lab.errors import InputError, one_line

OTHER_FOLDER = "choose another folder with output=FOLDER"
"""The usual advice for a file that cannot be written."""
_SCRATCH = "attittud-scratch-"
_YOUNG = 60  # seconds


@contextmanager
def replacing(path: Path, advice: str = OTHER_FOLDER) -> Iterator[Path]:
    """Yield the name of a file that becomes `path` when the block ends, in one instant, as other
    processes see it and after a crash. If the block raises an error, `path` stays as it was.
    """
    check_writable(path, advice)
    part = _part(path)
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
        if os.name == "posix":  # the new name is on the disk only when the folder is flushed
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except OSError as error:
        raise cannot_write(path, error, advice) from None
    finally:  # also after Ctrl-C
        with suppress(OSError):
            part.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes, advice: str = OTHER_FOLDER) -> None:
    """Replace `path` by `content`; a killed process leaves it whole, old or new."""
    with replacing(path, advice) as part:
        part.write_bytes(content)


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from None


def _part(path: Path) -> Path:
    """Return the name under which a file is written; it says which process wrote it."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def check_writable(path: Path, advice: str = OTHER_FOLDER) -> None:
    """Refuse a file that cannot be written, before the work whose result it should hold.

    An empty file beside it is made and removed.
    """
    try:
        _part(path).touch()
        _part(path).unlink()
    except (OSError, ValueError) as error:
        raise cannot_write(path, error, advice) from None


def write_json(path: Path, value: Any, advice: str = OTHER_FOLDER) -> None:
    """Write a value as JSON that people can read."""
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    # A file name that is not UTF-8 has half characters, and JSON's escapes for them look the same.
    write_atomically(path, text.encode("utf-8", "backslashreplace"), advice)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder for temporary files, and remove it at the end.

    After a kill it is removed when the next scratch folder is made on this machine.
    """
    from filelock import FileLock, Timeout

    for lock in Path(gettempdir()).glob(f"{_SCRATCH}*/.lock"):
        # A locked folder is in use; a young one may be about to be locked.
        with suppress(Timeout, OSError, NotImplementedError):
            if time.time() - lock.stat().st_mtime > _YOUNG:
                with FileLock(lock, timeout=0):
                    rmtree(lock.parent, ignore_errors=True)
    with TemporaryDirectory(prefix=_SCRATCH) as name, FileLock(Path(name, ".lock")):
        yield Path(name)


def without_nan(value: Any) -> Any:
    """Return the value with null instead of numbers that JSON lacks (NaN and infinity)."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read_json(path: Path) -> Any:
    """Read a JSON file; one that cannot be read is an input error that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        advice = "move the run folder away to start over"
        raise InputError(f"{path}: cannot be read ({one_line(error)}); {advice}") from None


def read_format(path: Path, version: int) -> dict[str, Any]:
    """Read a JSON file of our own.

    A file whose entry `version` is not this one is refused, because formats have no translations.
    """
    values = read_json(path)
    version_of_file = None
    if isinstance(values, dict):
        version_of_file = values.get("version")
    # True == 1 in Python, so the type is compared too.
    if type(version_of_file) is not int or version_of_file != version:
        name = "no format version"
        if version_of_file is not None:
            name = f"format version {str(version_of_file)[:20]}"
        reason = f"has {name}, but this version of attittud reads format version {version}"
        advice = "train again, or use the version of attittud that wrote it"
        raise InputError(f"{path}: {reason}; {advice}")
    return values  # type: ignore[no-any-return]  # a dict, since it has a version


def cannot_write(path: Path, error: OSError | ValueError, advice: str = OTHER_FOLDER) -> InputError:
    """Return the error for a file that could not be written.

    The reason is a full disk, a folder that may not be written to, or a name that no file can have.
    """
    if isinstance(error, ValueError):  # a NUL character, or a name that is not UTF-8
        return InputError(f"{str(path)!r}: cannot be the name of a file ({error}); {advice}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return InputError(f"{path}: the disk is full; free some space, or {advice}, and run again")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return InputError(f"{path}: writing is not allowed ({error.strerror}); {advice}")
    return InputError(f"{path}: cannot be written ({error.strerror or error}); {advice}")


COPIES: dict[str, Path] = {}
"""Copies of files and folders that came with a job to this machine, by the names in the job."""


def local(name: str) -> Path:
    """Return the path of a file or folder that a job reads, on whatever machine the job runs."""
    return COPIES.get(name, Path(name))


def make_folder(path: Path, advice: str = OTHER_FOLDER, *, shared: bool = False) -> None:
    """Make a run folder, and remove the half-written files that a killed process left in it.

    In a `shared` folder these files stay: another process may be writing them.
    """
    try:
        str(path).encode()  # safetensors reads no other names
        path.mkdir(parents=True, exist_ok=True)
        if not shared:
            for part in path.glob(".*.part"):
                part.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise cannot_write(path, error, advice) from None


@contextmanager
def only_one_process(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder during the block; if another process has it, refuse at once.

    The lock is released when this process ends, however it ends. On a file system without locks the
    block runs without one.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        if not os.access(folder, os.W_OK):  # filelock calls this a timeout too
            denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            raise cannot_write(folder, denied) from None
        advice = "wait for it, or choose another output=FOLDER"
        raise InputError(
            f"{folder}: another process is training in this folder; {advice}"
        ) from None
    except (OSError, NotImplementedError):
        pass
    try:
        yield
    finally:
        lock.release()
