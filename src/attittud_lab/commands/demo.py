"""`attittud demo`: one table that shows where auxiliary data help and where they hurt."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from attittud_lab.errors import InputError
from attittud_lab.files import (
    OTHER_FOLDER,
    check_writable,
    make_folder,
    write_atomically,
    write_json,
)
from attittud_lab.output.interrupts import interruptible, starting
from attittud_lab.output.progress import display

_SEEDS = typer.Option(
    metavar="N", min=2, help="Repetitions, each with other primary labels; fewer are faster."
)
_STEPS = typer.Option(metavar="N", min=2, help="Training steps of every run.")
_WORKERS = typer.Option(metavar="N", min=1, help="Processes that share the runs.")
_OUT = typer.Option(
    metavar="FILE.json", dir_okay=False, help="Also write all figures and versions to this file."
)
_FOLDER = typer.Option(
    metavar="FOLDER", file_okay=False, help="Write the HTML report and all runs to this folder."
)
_ADVICE = "choose another folder with --folder"
_ADVICE_OUT = "choose another file with --out"


def demo(
    seeds: Annotated[int, _SEEDS] = 6,
    steps: Annotated[int, _STEPS] = 200,
    workers: Annotated[int, _WORKERS] = 2,
    out: Annotated[Path | None, _OUT] = None,
    folder: Annotated[Path, _FOLDER] = Path("runs/demo"),
) -> None:
    """Show where auxiliary data help, where they do nothing and where they hurt.

    The primary task has 10 correctly labelled images of each class of scikit-learn's digits. All
    other training images are auxiliary data. The three columns of the table differ in the auxiliary
    labels: all correct, half of them random, and half of them shifted to the next class. Every row
    is one way to use the auxiliary data. The demo takes less than two minutes on two idle cores.
    """
    with starting():
        from rich.console import Console

        from attittud_lab.demo import CONFIG, ETA, OWN, ROWS, WIDE, conclusions, rich_table, run_all
        from attittud_lab.report import write_report

    if out is not None and not out.absolute().parent.is_dir():
        reason = f"the folder {str(out.parent)!r} does not exist; create it first"
        raise typer.BadParameter(reason, param_hint="--out")
    make_folder(folder, _ADVICE)  # now, not after the runs
    check_writable(folder / "report.html", _ADVICE)
    if out is not None:
        check_writable(out, _ADVICE_OUT)
    note = "the demo keeps nothing before its end, so the same command starts over"
    progress = display()
    try:
        with interruptible(lambda: note), progress:
            result = run_all(seeds, steps, workers, folder, progress)
    except InputError as error:  # runs name the option of other commands as the cure
        raise InputError(str(error).replace(OTHER_FOLDER, _ADVICE)) from None
    if out is not None:
        write_json(out, result, _ADVICE_OUT)
    write_atomically(folder / "config.yaml", CONFIG.read_bytes(), _ADVICE)
    write_json(folder / "comparison.json", result, _ADVICE)
    report = write_report(folder, advice=_ADVICE)
    console = Console()
    if not sys.stdout.isatty():
        console = Console(width=WIDE)  # a pipe has no width, and rich would guess 80
    console.print(rich_table(result))
    legend = [f"  {row:<16} {about}" for row, (about, _) in ROWS.items()]
    meaning = "What the table means: docs/appendix/demo.md, 'How to read it'."
    seconds = f"{result['took']['seconds']:.0f} s. {meaning}"
    for line in (ETA, *legend, "", *conclusions(result), seconds):
        console.print(line, highlight=False)
    for text in (f"Report: {report}", "", OWN):
        console.print(text, highlight=False, markup=False, soft_wrap=True)
