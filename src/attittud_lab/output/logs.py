"""Other people's dashboards behind one small interface."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from attittud_lab.errors import InputError, needs, one_line
from attittud_lab.files import cannot_write

CHOICES = ("tensorboard", "wandb", "trackio")


class Log(Protocol):
    """Takes figures by name, all under `attittud/`."""

    def log(self, values: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in the run folder."""

    def __init__(self, run_dir: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise needs("tensorboard", "tensorboard", "--log tensorboard") from None
        self._folder = run_dir / "tensorboard"
        with self._writing():
            self._writer = SummaryWriter(str(self._folder))
        self._usual, threading.excepthook = threading.excepthook, self._died

    def log(self, values: Mapping[str, float], step: int) -> None:
        with self._writing():
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        threading.excepthook = self._usual
        with self._writing():
            self._writer.close()

    def _died(self, what: threading.ExceptHookArgs) -> None:
        """A thread writes. What ends it is raised by the next call too, where there are words for it."""
        if not issubclass(what.exc_type, OSError):
            self._usual(what)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise cannot_write(self._folder, error) from None


class Tracker:
    """wandb and trackio: `init`, `log` and `finish` of the same form."""

    def __init__(self, package: str, run_dir: Path, config: Mapping[str, Any]) -> None:
        try:
            module = __import__(package)
        except ImportError:
            raise needs(None, package, f"--log {package}") from None
        self._package, self._module = package, module
        name = f"{run_dir.parent.name}-{run_dir.name}"
        try:
            module.init(project="attittud", name=name, config=dict(config))
        except Exception as error:  # no network, nobody logged in: each package has its own
            raise InputError(
                f"--log {package}: it does not start ({one_line(error, 200)}); see its own documentation, or leave "
                "--log out"
            ) from None

    def log(self, values: Mapping[str, float], step: int) -> None:
        try:
            self._module.log(dict(values), step=step)
        except Exception as error:
            raise InputError(
                f"--log {self._package}: it does not take figures any more ({one_line(error, 200)}); the same "
                "command goes on from the last checkpoint, also without --log"
            ) from None

    def close(self) -> None:
        self._module.finish()


def check_log(name: str) -> None:
    """Before the data are read; what else can be wrong with a dashboard it says itself when it is opened."""
    if name not in CHOICES:
        raise InputError(f"--log {name}: choose one of {', '.join(CHOICES)}")


def open_log(name: str, run_dir: Path, config: Mapping[str, Any]) -> Log:
    return TensorBoard(run_dir) if name == "tensorboard" else Tracker(name, run_dir, config)
