"""Small jobs for the tests of places."""

import logging
import os
import signal
import time
import warnings
from pathlib import Path
from typing import Any

from attittud_lab.errors import InputError
from attittud_lab.output.progress import Progress
from attittud_lab.placing.job import Here, Job


class Seen(Progress):
    """All that was shown, by run."""

    def __init__(self, name: str = "", seen: list[tuple[Any, ...]] | None = None) -> None:
        self.name, self.seen = name, [] if seen is None else seen

    def begin(self, what: str) -> Progress:
        return Seen(what, self.seen)

    def phase(self, name: str, steps: int | None, done: int) -> None:
        self.seen.append((self.name, "phase", name, steps, done))

    def advance(self, steps: int, values: Any) -> None:
        self.seen.append((self.name, "advance", steps, values))

    def say(self, text: str) -> None:
        self.seen.append((self.name, "say", text))

    def end(self) -> None:
        self.seen.append((self.name, "end"))


def double(here: Here, number: int) -> tuple[int, int]:
    """Reports, and leaves a file: what was in the folder before, and the sum of the shared data."""
    here.progress.phase("work", 2, 0)
    here.progress.advance(2, {"loss/primary": 0.5})
    before = here.folder / "before.txt"
    total = 0 if here.data is None else int(here.data.sum())
    text = before.read_text() if before.exists() else ""
    (here.folder / "inner").mkdir(parents=True, exist_ok=True)
    (here.folder / "inner" / "out.txt").write_text(f"{text}{total}")
    before.unlink(missing_ok=True)
    return 2 * number, os.getpid()


def refused(here: Here, words: str) -> None:
    raise InputError(f"{here.folder}/a.txt: {words}")


def broken(_: Here) -> None:
    raise ZeroDivisionError("a mistake")


def talkative(_: Here) -> None:
    logging.getLogger("attittud").warning("a logged %s", "line")
    warnings.warn("a warning", stacklevel=1)


def wait_for(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.02)


def patient(here: Here, at: Path, until: Path) -> str:
    """Says that it is there, and waits for a file; its checkpoint says how often it was begun."""
    here.folder.mkdir(parents=True, exist_ok=True)
    with (here.folder / "checkpoint.txt").open("a") as file:
        file.write("begun ")
    at.with_suffix(".part").write_text(str(os.getpid()))
    at.with_suffix(".part").rename(at)
    wait_for(until)
    return (here.folder / "checkpoint.txt").read_text()


def dies(here: Here, times: int) -> str:
    """Is killed as often as that."""
    here.folder.mkdir(parents=True, exist_ok=True)
    tries = here.folder / "tries.txt"
    begun = int(tries.read_text()) if tries.exists() else 0
    tries.write_text(str(begun + 1))
    if begun < times:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"alive after {begun}"


def doubles(folder: Path, count: int, data: Any = None) -> list[Job]:
    return [Job(f"job {i}", double, (i,), folder / str(i), data) for i in range(count)]
