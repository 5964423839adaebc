"""The command `attittud`, and what its subcommands share. Each subcommand is a file here;
`attittud_lab.cli` registers it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from attittud_lab.errors import InputError, unknown

if TYPE_CHECKING:  # pydantic and torch import slowly: not before a command runs
    from attittud_lab.config.load import Names
    from attittud_lab.config.schema import Config
    from attittud_lab.placing.job import Place

CONFIG = typer.Argument(
    metavar="CONFIG", help="A YAML file; `attittud init` writes one for your data."
)
Auxiliary = Annotated[
    list[str] | None,
    typer.Option(metavar="DATA", help="Other data; repeat the option for several sources."),
]
InputColumn = Annotated[
    str | None,
    typer.Option(
        "--input",
        metavar="COLUMN",
        help="Column with the image, the text or the list of features, if it is not found automatically.",
    ),
]
LabelColumn = Annotated[
    str | None,
    typer.Option(
        "--label", metavar="COLUMN", help="Column with the class, if it is not found automatically."
    ),
]

MOST_WORKERS = 1024
_WORKERS = (
    "How many runs to train at the same time, each in its own process. A run may then take longer, "
    "but after the same number of steps its results are the same."
)
Workers = Annotated[int, typer.Option("--workers", metavar="N", help=_WORKERS)]
_RAY = (
    "Train on the Ray cluster at HOST:PORT or ray://HOST:PORT; without an address, on the cluster of "
    "this machine."
)
Ray = Annotated[str | None, typer.Option("--ray", metavar="[ADDRESS]", help=_RAY)]
OpenReport = Annotated[bool, typer.Option("--open", help="Open the report in the browser.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress, neither bars nor lines.")]
_ADDRESS = re.compile(r"auto|ray://.+|[^\s=]+:\d+")


def key_values(examples: str) -> Any:
    """Return the argument that takes changed settings; its help names `examples`."""
    return typer.Argument(metavar="KEY=VALUE", help=f"Settings to change, such as {examples}.")


def _version(asked: bool) -> None:
    """Print the version and end the command, if --version was given."""
    if asked:
        try:  # not from the library, which imports torch
            typer.echo(version("attittud"))
        except PackageNotFoundError:  # run from a source tree that was never installed
            typer.echo("0+unknown")
        raise typer.Exit


def attittud(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_version, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Use other data to get better at the one task that matters (ATTITTUD, ICLR 2021).

    The task that matters is the primary task; all other data are auxiliary. Start with `attittud
    demo`: in about two minutes it shows where auxiliary data help and where they hurt. For your own
    data, `attittud init` writes a configuration, `attittud train` trains a model with it, and
    `attittud predict` uses the model. `attittud compare` says which strategy (way to use the
    auxiliary data) is better, and `attittud report` shows what happened in a run.
    """


class _Untyped:
    """Leaves types out of `--help` for flags and arguments; a newer typer would write `--quiet
    <bool>`.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of the class that this is mixed into
        for param in params:
            if param.param_type_name == "argument" or param.is_flag:
                param.display_type_rich = lambda ctx: None  # an older typer does not ask
        return params


class Command(_Untyped, TyperCommand):
    """A command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Let `--ray` stand alone: the next word is its address only if it looks like one."""
        words = []
        for word, following in zip_longest(args, args[1:], fillvalue=""):
            words.append(word)
            if word == "--ray" and not _ADDRESS.fullmatch(following):
                words.append("auto")
        return super().parse_args(ctx, words)


class CommandGroup(_Untyped, TyperGroup):
    """All commands."""


def placed(workers: int, ray: str | None) -> AbstractContextManager[Place]:
    """Choose where the runs of a command are trained: in this process, in several, or on a
    cluster.
    """
    from attittud_lab.placing.cluster import on_ray
    from attittud_lab.placing.job import in_this_process
    from attittud_lab.placing.processes import in_processes

    if not 1 <= workers <= MOST_WORKERS:
        raise InputError(f"--workers {workers}: give a number from 1 to {MOST_WORKERS}")
    if ray is not None:
        if workers > 1:
            raise InputError("--workers and --ray cannot be combined; give only one of them")
        return on_ray(ray)
    if workers > 1:
        return in_processes(workers)
    return in_this_process()


def same_command(*, fresh: bool) -> str:
    """Say which command continues an interrupted one."""
    if fresh:
        return "the same command without --fresh"
    return "the same command"


def open_page(page: Path) -> None:
    """Open a page in the user's browser. Where there is none, a line says so and nothing fails."""
    import webbrowser

    try:
        opened = webbrowser.open(page.resolve().as_uri())
    except (OSError, webbrowser.Error):
        opened = False
    if not opened:
        typer.echo(f"--open: no browser can be opened here; open {page} yourself", err=True)


def read(path: str | Path, overrides: Sequence[str] | None) -> Config:
    """Read a configuration file, apply KEY=VALUE changes, and check every name in it."""
    from attittud_lab.config.load import load

    return load(path, overrides or (), known_names())


def read_text(text: str, overrides: Sequence[str], name: str) -> Config:
    """Read a configuration from a text; error messages call the text `name`."""
    from attittud_lab.config.load import loads

    return loads(text, overrides, name, known_names())


def known_names() -> Names:
    """Return a function for each kind of name in a configuration, which raises for an unknown name.

    Names that were registered from outside are known, too.
    """
    from attittud import bases, engines
    from attittud_lab import features
    from attittud_lab.data.tasks import OBJECTIVES
    from attittud_lab.learners import learners
    from attittud_lab.models import find as find_model
    from attittud_lab.strategies import find as find_strategy
    from attittud_lab.uses import uses

    objectives = [name for name, objective in OBJECTIVES.items() if not objective.derived]
    return {
        "strategy": find_strategy,
        "model": find_model,
        "features": features.find,
        "basis": partial(_check, "basis", bases()),
        "engine": partial(_check, "engine", engines()),
        "objective": partial(_check, "objective", objectives),
        "learner": partial(_check, "learner", [*learners(), "network", "finetuned"]),
        "use": partial(_check, "use", uses()),
    }


def _check(kind: str, names: Sequence[str], name: str) -> None:
    """Refuse a name that is not among `names`; the error calls it a `kind`."""
    if name not in names:
        raise unknown(kind, name, names)
