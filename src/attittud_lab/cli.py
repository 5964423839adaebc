"""The command line: registers commands, runs them and ends them. Each command is a file in
`attittud_lab.commands`.

The libraries of the command line are an extra, so nothing here imports them before it is called. No
command imports torch before it runs, so that `--help` is quick.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from attittud_lab.errors import InputError, short
from attittud_lab.files import cannot_write
from attittud_lab.output.interrupts import INTERRUPTED, Interruption, signals, starting

if TYPE_CHECKING:
    import typer

_LONGEST = 4000  # characters of a message
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_UNREADABLE = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)


def build() -> typer.Typer:
    """Make the application with all commands; imports the libraries of the command line."""
    import typer

    from attittud_lab.commands import Command, CommandGroup, attittud
    from attittud_lab.commands.compare import compare, report
    from attittud_lab.commands.demo import demo
    from attittud_lab.commands.init import init, schema
    from attittud_lab.commands.predict import predict
    from attittud_lab.commands.train import train

    app = typer.Typer(
        cls=CommandGroup,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
    )

    app.callback()(attittud)
    for command in (demo, init, train, predict, compare, report, schema):
        app.command(cls=Command)(command)
    return app


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command of `attittud` and exit."""
    if arguments is None:
        arguments = sys.argv[1:]
    run_and_exit(build, arguments or ["--help"])


def run_and_exit(
    build: Callable[[], typer.Typer], arguments: list[str], name: str = "attittud"
) -> NoReturn:
    """Run a command and exit with its code; `build` makes the application called `name`.

    The code is 2 if the input was wrong, with a paragraph on what to change; 130 after Ctrl-C, and
    143 after SIGTERM.
    """
    with signals() as ending:
        try:
            code = _run(build, arguments, name)
        except Interruption as stopped:
            _end(f"{ending.word}; {stopped}", ending.code)
        except KeyboardInterrupt:
            code = INTERRUPTED
        if code == INTERRUPTED:  # the command has no sentence for this moment
            _end(f"{ending.word}; no file is left half-written", ending.code)
    sys.exit(code)


def _run(build: Callable[[], typer.Typer], arguments: list[str], name: str) -> int:
    """Run a command and return its exit code; errors of the input end the process with a message,
    and errors of the program are raised.
    """
    try:
        with starting():
            app = build()
    except ModuleNotFoundError as error:
        # A missing module of our own is a bug; any other is a package that the extra installs.
        if (error.name or "attittud").partition(".")[0] in ("attittud", "attittud_lab"):
            raise
        command = "pip install 'attittud[cli]' (in a checkout: pip install '.[cli]')"
        _end(f"the command line needs {error.name!r}, which is not installed; run: {command}")
    import typer

    try:
        code = app(arguments, prog_name=name, standalone_mode=False)
    except typer.Abort:  # an older typer's word for Ctrl-C; a newer one returns 130
        return INTERRUPTED
    except InputError as error:
        _end(str(error))
    except OSError as error:
        # Files have messages of their own where they are written, but not standard output, and not
        # a path of a user that cannot be read.
        if error.filename is None and error.errno in _FULL:
            sys.stdout = None  # Python would try once more at its end
            _end(f"the output cannot be written ({error.strerror}); write it elsewhere")
        if error.filename is not None and error.errno in (errno.ENOSPC, errno.EDQUOT):
            _end(str(cannot_write(Path(os.fsdecode(error.filename)), error)))
        if error.filename is None or error.errno not in _UNREADABLE:
            raise
        _end(f"{error.filename}: cannot be read ({error.strerror}); name another file")
    except Exception as error:
        # A newer typer has its own copy of Click, an older one uses Click itself; both have usage
        # errors with this method.
        if not hasattr(error, "format_message"):
            raise
        command = getattr(getattr(error, "ctx", None), "command_path", name)
        _end(f"{error.format_message()} (`{command} --help` shows what is allowed)")
    if isinstance(code, int):
        return code
    return 0


def _end(message: str, code: int = 2) -> NoReturn:
    """Print the message as one paragraph, cut where it has thousands of characters."""
    try:
        sys.stderr.write(f"attittud: {short(' '.join(message.split()), _LONGEST)}\n")
        sys.stderr.flush()
    except OSError:  # a log on the disk that is full: the exit code says it
        sys.stderr = None  # Python would try once more at its end
    sys.exit(code)
