"""The command `attittud`, and what its subcommands share. Each subcommand is a file here; `attittud_lab.cli` registers it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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

CONFIG = typer.Argument(metavar="CONFIG", help="A YAML file; `attittud init` writes one for your data.")
Auxiliary = Annotated[list[str] | None, typer.Option(metavar="DATA", help="Other data; may be given several times.")]
InputColumn = Annotated[
    str | None,
    typer.Option("--input", metavar="COLUMN", help="Column with image, text or list of features, if it is not found."),
]
LabelColumn = Annotated[
    str | None, typer.Option("--label", metavar="COLUMN", help="Column with the class, if it is not found.")
]

MOST_WORKERS = 1024
_WORKERS = "Runs that are trained at the same time, in processes of this machine. It changes no result but seconds."
Workers = Annotated[int, typer.Option("--workers", metavar="N", help=_WORKERS)]
_RAY = "Train on the Ray cluster at HOST:PORT or ray://HOST:PORT, or on the one that this machine is part of."
Ray = Annotated[str | None, typer.Option("--ray", metavar="[ADDRESS]", help=_RAY)]
_ADDRESS = re.compile(r"auto|ray://.+|[^\s=]+:\d+")


def key_values(examples: str) -> Any:
    """The argument that takes changed settings."""
    return typer.Argument(metavar="KEY=VALUE", help=f"Settings to change, such as {examples}.")


def _version(wanted: bool) -> None:
    if wanted:
        try:  # not from the library, which imports torch
            typer.echo(version("attittud"))
        except PackageNotFoundError:  # run from a source tree that was never installed
            typer.echo("0+unknown")
        raise typer.Exit


def attittud(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Make auxiliary data serve the one task that matters (ATTITTUD, ICLR 2021).

    Start with `attittud demo`: one minute, one table, when auxiliary data helps and when it destroys. For data of your
    own, `attittud init` writes a configuration, `attittud diagnose` looks at its first steps, `attittud train` trains with
    it, `attittud predict` uses what was trained, `attittud compare` decides, and `attittud report` shows what happened.
    """


class _Untyped:
    """`--help` shows no type for flags and obvious names, where a newer typer writes `--quiet <bool>`."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of the class that this is mixed into
        for param in params:
            if param.param_type_name == "argument" or param.is_flag:
                param.display_type_rich = lambda ctx: None  # an older typer does not ask
        return params


class Command(_Untyped, TyperCommand):
    """A command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """`--ray` may stand alone: what follows it is an address only if it looks like one."""
        found = list[str]()
        for word, following in zip_longest(args, args[1:], fillvalue=""):
            found += [word, "auto"] if word == "--ray" and not _ADDRESS.fullmatch(following) else [word]
        return super().parse_args(ctx, found)


class CommandGroup(_Untyped, TyperGroup):
    """All commands."""


def placed(workers: int, ray: str | None) -> AbstractContextManager[Place]:
    """Where the runs of a command take place."""
    from attittud_lab.placing.cluster import on_ray
    from attittud_lab.placing.job import in_this_process
    from attittud_lab.placing.processes import in_processes

    if not 1 <= workers <= MOST_WORKERS:
        raise InputError(
            f"--workers {workers}: give a number from 1 to {MOST_WORKERS}; each is a process of this machine"
        )
    if ray is not None and workers > 1:
        raise InputError("--workers and --ray exclude each other: Ray decides how many runs a machine takes; give one")
    if ray is not None:
        return on_ray(ray)
    return in_this_process() if workers == 1 else in_processes(workers)


def read(path: str | Path, overrides: Sequence[str] | None, command: str | None = None) -> Config:
    """The configuration of a file, changed by KEY=VALUE; every name in it is checked.

    A `command` that is named is for classifiers alone.
    """
    from attittud_lab.config.load import load

    config = load(path, overrides or (), known_names())
    if command is not None and config.task == "causal-lm":
        cure = "`attittud train` measures what such a model learned and forgot, once for each guard"
        raise InputError(f"task: {config.task}: `attittud {command}` is for classifiers; {cure}")
    return config


def read_text(text: str, overrides: Sequence[str], name: str) -> Config:
    """The configuration in a text that errors call `name`."""
    from attittud_lab.config.load import loads

    return loads(text, overrides, name, known_names())


def known_names() -> Names:
    """The checks for the names of each kind, including names that are registered from outside."""
    from attittud import bases, engines, guards
    from attittud_lab.data.tasks import OBJECTIVES
    from attittud_lab.models import find as find_model
    from attittud_lab.strategies import find as find_strategy

    objectives = [name for name, objective in OBJECTIVES.items() if not objective.derived]
    protecting = ["none", "replay", "kl", *guards()]
    listed = {"basis": bases(), "engine": engines(), "objective": objectives, "guard": protecting}
    found: dict[str, Callable[[str], object]] = {kind: partial(_check, kind, names) for kind, names in listed.items()}
    return {"strategy": find_strategy, "model": find_model, **found}


def _check(kind: str, known: Sequence[str], name: str) -> None:
    if name not in known:
        raise unknown(kind, name, known)
