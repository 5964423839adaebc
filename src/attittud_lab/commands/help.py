"""`attittud` itself: what it is for, its version, and how the pages of `--help` look."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command, its `--help` among the flags."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class Group(TyperGroup):
    """All commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


def _without_types(params: list[Any]) -> list[Any]:
    """No type where there is nothing to give, or the name says it: newer typer has `--quiet <bool>`."""
    for param in params:
        if param.param_type_name == "argument" or param.is_flag:
            param.display_type_rich = lambda ctx: None  # older typer does not ask
    return params


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
    it, `attittud compare` decides, and `attittud report` shows what happened.
    """
