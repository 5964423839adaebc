"""`attittud` itself: what it is for, and its version."""

from __future__ import annotations

from typing import Annotated

import typer

from attittud import __version__


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
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
