"""The command line: the place where commands are registered. Each one is a file in `attittud_lab.commands`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

from attittud_lab.errors import InputError
from attittud_lab.output.interrupts import Interruption
from attittud_lab.starting import INTERRUPTED, interruptible_start

if TYPE_CHECKING:
    import typer

EXTRA = "attittud[cli]"


def build() -> typer.Typer:
    """The application. Its libraries are an extra, so nothing here imports them before it is called."""
    import typer

    from attittud_lab.commands.compare import compare
    from attittud_lab.commands.demo import demo
    from attittud_lab.commands.diagnose import diagnose
    from attittud_lab.commands.help import Command, Group
    from attittud_lab.commands.init import init
    from attittud_lab.commands.report import report
    from attittud_lab.commands.reproduce import reproduce
    from attittud_lab.commands.root import attittud
    from attittud_lab.commands.schema import schema
    from attittud_lab.commands.train import train

    app = typer.Typer(cls=Group, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")

    app.callback()(attittud)
    for command in (demo, init, diagnose, train, compare, report, reproduce, schema):
        app.command(cls=Command)(command)
    return app


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit: with 2 and one paragraph on what to change when the input was wrong, 130 after Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = _run(arguments)
    except Interruption as stopped:
        _end(str(stopped), INTERRUPTED)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:  # at a moment for which the command has no sentence
        _end("interrupted; no file is left half-written", INTERRUPTED)
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    try:
        with interruptible_start():
            app = build()
    except ModuleNotFoundError as error:
        if (error.name or "attittud").partition(".")[0] in ("attittud", "attittud_lab"):
            raise
        _fail(
            f"the command line needs {error.name!r}, which is not installed; install its extra: pip install '{EXTRA}'"
        )
    import typer

    try:
        code = app(arguments or ["--help"], prog_name="attittud", standalone_mode=False)
    except typer.Abort:  # an older typer's word for Ctrl-C; a newer one returns 130
        return INTERRUPTED
    except InputError as error:
        _fail(str(error))
    except PermissionError as error:
        # A file of the user's that cannot be read; what cannot be written is an InputError.
        _fail(f"{error.filename}: may not be read ({error.strerror}); change its permissions, or name another one")
    except Exception as error:
        # Newer typer has its own copy of Click, older one uses Click itself: what their usage errors share is this.
        if not hasattr(error, "format_message"):
            raise
        _fail(f"{error.format_message()} (`attittud {_command(error)}--help` lists what is possible)")
    return code if isinstance(code, int) else 0


def _command(error: Exception) -> str:
    """The command that an error belongs to, as one types it after `attittud`."""
    path = getattr(getattr(error, "ctx", None), "command_path", "")
    return "".join(f"{word} " for word in path.split()[1:])


def _fail(message: str) -> NoReturn:
    _end(message, 2)


def _end(message: str, code: int) -> NoReturn:
    sys.stderr.write(f"attittud: {' '.join(message.split())}\n")
    sys.exit(code)
