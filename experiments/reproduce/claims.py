"""Which process is at which run: a lock for each, gone with the process however it ends."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from attittud_lab.files import cannot_write


class Claims:
    """Locks in a folder that all processes share."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._held = folder, dict[str, IO[str]]()

    def take(self, name: str) -> bool:
        """Whether it is ours now; where the system has no locks, it always is."""
        try:
            import fcntl
        except ImportError:  # not a POSIX system
            return True
        if name in self._held:
            return True
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = (self._folder / name).open("a")
        except OSError as error:
            raise cannot_write(self._folder, error) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        except OSError:  # a file system without locks
            file.close()
            return True
        self._held[name] = file
        return True

    def leave(self, name: str) -> None:
        if name in self._held:
            self._held.pop(name).close()
