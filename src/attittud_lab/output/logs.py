"""Dashboards of other projects behind one small interface: `--log tensorboard`, wandb and trackio.

Training opens one with `open_log`, calls `log` with figures by name, and `close` at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attittud_lab.errors import InputError, needs, one_line
from attittud_lab.files import cannot_write

CHOICES = ("tensorboard", "wandb", "trackio")


class TensorBoard:
    """Event files in the run folder."""

    def __init__(self, run_dir: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise needs("tensorboard", "tensorboard", "--log tensorboard") from None
        self._folder = run_dir / "tensorboard"
        self._writer: Any = self._call(SummaryWriter, str(self._folder))

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._call(self._writer.add_scalar, name, value, step)

    def close(self) -> None:
        self._call(self._writer.close)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of TensorBoard; a full disk is an input error that names the folder."""
        try:
            return function(*arguments)
        except OSError as error:
            raise cannot_write(self._folder, error) from None


class Tracker:
    """wandb and trackio, which have `init`, `log` and `finish` of the same form."""

    def __init__(self, package: str, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Begin a run of the dashboard, named after the last two folders of `run_dir`."""
        try:
            self._module = __import__(package)
        except ImportError:
            raise needs(None, package, f"--log {package}") from None
        self._package = package
        name = f"{run_dir.parent.name}-{run_dir.name}"
        try:
            self._module.init(project="attittud", name=name, config=dict(config))
        # No network, nobody logged in: each package raises its own errors.
        except Exception as error:
            advice = "see its own documentation, or leave --log out"
            raise self._failed("does not start", advice, error) from None

    def log(self, values: Mapping[str, float], step: int) -> None:
        try:
            self._module.log(dict(values), step=step)
        except Exception as error:
            advice = "the same command continues from the last checkpoint, with or without --log"
            raise self._failed("no longer accepts figures", advice, error) from None

    def close(self) -> None:
        self._module.finish()

    def _failed(self, failure: str, advice: str, error: Exception) -> InputError:
        """Return the error for a dashboard that raised its own."""
        reason = one_line(error, 200)
        return InputError(f"--log {self._package}: it {failure} ({reason}); {advice}")


def check_log(name: str) -> None:
    """Refuse an unknown name before the data are read.

    Other problems show when the dashboard is opened.
    """
    if name not in CHOICES:
        raise InputError(f"--log {name}: choose one of {', '.join(CHOICES)}")


Log = TensorBoard | Tracker
"""Takes figures by name, all under `attittud/`."""


def open_log(name: str, run_dir: Path, config: Mapping[str, Any]) -> Log:
    """Open a dashboard for a run; `name` is one of `CHOICES`."""
    if name == "tensorboard":
        return TensorBoard(run_dir)
    return Tracker(name, run_dir, config)
