"""`attittud report`: a run or a comparison as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attittud_lab.output.interrupts import starting


def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The folder of a run or of a comparison.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Write it there instead of into RUN_DIR.")
    ] = None,
) -> None:
    """Write report.html: results, learning curves, what the primary task sees in the auxiliary gradient.

    The page is one file without network: open it from the disk, or send it to somebody. report.json beside it has its
    figures. A run that is still going on can be looked at too.
    """
    with starting():
        from attittud_lab.report.page import write_report

    typer.echo(str(write_report(run_dir, output, "choose another folder by --output")))
