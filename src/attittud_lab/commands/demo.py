"""`attittud demo`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from attittud_lab.files import write_atomically
from attittud_lab.output.interrupts import interruptible, starting

if TYPE_CHECKING:
    from attittud_lab.demo.train import Settings


def demo(
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Repetitions; each draws other clean labels. Fewer are faster, intervals wider."
        ),
    ] = 6,
    steps: Annotated[int, typer.Option(metavar="N", min=2, help="Training steps of every run.")] = 200,
    workers: Annotated[int, typer.Option(metavar="N", min=1, help="Processes that share the runs.")] = 2,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", dir_okay=False, help="Write every accuracy, the settings and versions here."),
    ] = None,
    folder: Annotated[Path, typer.Option(metavar="FOLDER", file_okay=False, help="Write the HTML report here.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Where auxiliary data helps, does nothing and destroys.

    The primary task has 10 clean labels per class of scikit-learn's digits; all other images are auxiliary data, their
    labels right, half random, or half shifted to the next class. Every row of the table is a way to use them. About a
    minute on two cores.
    """
    with starting():
        from attittud_lab.demo.page import content
        from attittud_lab.demo.train import Settings
        from attittud_lab.report.page import write_page

    if out is not None and not out.absolute().parent.is_dir():
        raise typer.BadParameter(f"the folder {str(out.parent)!r} does not exist; create it first", param_hint="--out")
    try:
        folder.mkdir(parents=True, exist_ok=True)  # before a minute has passed
    except OSError as error:
        raise typer.BadParameter(f"cannot make {str(folder)!r}: {error.strerror}", param_hint="--folder") from error
    with interruptible(lambda: "the demo keeps nothing before its end, the same command starts over"):
        results = _run(seeds, Settings(steps=steps), workers)
    page = write_page(folder, lambda _: content(results), "choose another folder by --folder")
    _show(results, page)
    if out is not None:
        write_atomically(out, (json.dumps(results, indent=1) + "\n").encode(), "choose another file by --out")


def _run(seeds: int, settings: Settings, workers: int) -> dict[str, Any]:
    from attittud_lab.demo.experiment import cells, run

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("training", total=len(cells(seeds)))
        return run(seeds, settings, workers, lambda: progress.advance(task))


def _show(results: dict[str, Any], page: Path) -> None:
    from attittud_lab.demo.table import WIDE, conclusions, rich_table

    # A file or pipe has no width; rich would guess 80.
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)
    console.print(rich_table(results, narrow=console.width < WIDE))
    for row, what in results["rows"].items():
        console.print(f"  {row:<16} {what}", highlight=False)
    console.print()
    for line in conclusions(results):
        console.print(line, highlight=False)
    console.print(f"{results['seconds']:.0f} s. What follows from it: README, 'When not to use it'.", highlight=False)
    console.print(f"Report: {page}", highlight=False, markup=False, soft_wrap=True)
