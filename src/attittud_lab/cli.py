"""The command line: registers commands, runs them and ends them. Each command is a file in
`attittud_lab.commands`.

The libraries of the command line are an extra, so nothing here imports them before it is called. No
command imports torch before it runs, so that `--help` is quick.
"""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from attittud_lab.errors import InputError, nearest, short
from attittud_lab.output.interrupts import INTERRUPTED, Interruption, signals, starting

if TYPE_CHECKING:
    import typer

EXTRA = "attittud[cli]"
_LONGEST = 4000  # characters of a message
_NO_INTEGER = "Input should be a valid integer, unable to parse string as an integer"
_FULL = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
)  # of standard output: files have messages of their own
_UNUSABLE = {
    errno.EACCES: "may not be read",
    errno.EPERM: "may not be read",
    errno.ENAMETOOLONG: "cannot be a path",
}


def build() -> typer.Typer:
    """The application."""
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
    run_and_exit(build, (sys.argv[1:] if arguments is None else arguments) or ["--help"])


def run_and_exit(
    build: Callable[[], typer.Typer], arguments: list[str], name: str = "attittud"
) -> NoReturn:
    """Exit with 2 and a paragraph on what to change when the input was wrong, with 130 after
    Ctrl-C, 143 after SIGTERM.
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
    try:
        with starting():
            app = build()
    except ModuleNotFoundError as error:
        if (error.name or "attittud").partition(".")[0] in ("attittud", "attittud_lab"):
            raise
        cure = f"install its extra: pip install '{EXTRA}' (in a checkout: pip install '.[cli]')"
        _end(f"the command line needs {error.name!r}, which is not installed; {cure}")
    import typer

    if any("\0" in argument for argument in arguments):
        _end("an argument contains a NUL character, which no path or setting may contain")
    try:
        code = app(arguments, prog_name=name, standalone_mode=False)
    except typer.Abort:  # an older typer's word for Ctrl-C; a newer one returns 130
        return INTERRUPTED
    except InputError as error:
        _end(str(error))
    except OSError as error:
        if error.errno in _FULL and error.filename is None:
            sys.stdout = None  # Python would try once more at its end
            _end(
                f"the output cannot be written ({error.strerror}); free some space, or write it elsewhere"
            )
        # A user's path that cannot be read. (A path that cannot be written raises InputError.)
        if error.errno not in _UNUSABLE or error.filename is None:
            raise
        cure = "change its permissions, or name another file"
        _end(
            f"{short(str(error.filename), 300)}: {_UNUSABLE[error.errno]} ({error.strerror}); {cure}"
        )
    except Exception as error:
        # A newer typer has its own copy of Click, an older one uses Click itself; both have usage
        # errors with this method.
        if not hasattr(error, "format_message"):
            raise
        command = getattr(getattr(error, "ctx", None), "command_path", name)
        message = error.format_message().replace(_NO_INTEGER, "it must be a whole number")
        option, possible = (getattr(error, name, None) for name in ("option_name", "possibilities"))
        if option and message.startswith("No such option"):
            near = nearest(option, (name for name in possible or () if name != "--help"))
            hint = (
                f"did you mean {near}?"
                if near
                else "settings of a configuration are written KEY=VALUE, without dashes"
            )
            message = f"no such option: {option}; {hint}"
        _end(f"{message} (`{command} --help` shows what is allowed)")
    return code if isinstance(code, int) else 0


def _end(message: str, code: int = 2) -> NoReturn:
    """Print the message as one paragraph, cut where a value has thousands of characters."""
    message = re.sub(r"\S{400,}", lambda match: short(match[0], 200), message[:100_000])
    sys.stderr.write(f"attittud: {short(' '.join(message.split()), _LONGEST)}\n")
    sys.exit(code)
