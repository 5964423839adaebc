"""`python -m experiments.reproduce`: the paper's experiments, run again. Inside a checkout, from
its root.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from attittud_lab.cli import run_and_exit
from attittud_lab.commands import Command
from attittud_lab.errors import InputError
from attittud_lab.output.interrupts import interruptible
from attittud_lab.output.progress import display, parse_duration
from experiments.reproduce.experiments import EXPERIMENTS
from experiments.reproduce.run import reproduce as run
from experiments.reproduce.run import side_by_side

HERE = Path(__file__).parents[1]


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="An experiment, or several; without it, they are listed."
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME|KEY=VALUE",
            help="Further experiments, and settings to change in all configurations, such as compare.seeds=15.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder with the data, as the dataset hub has them. The list of experiments names the data of each.",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder with a pretrained text encoder, for table1-text."
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="A smoke test on made-up data on the CPU: seconds, and no result of interest.",
        ),
    ] = False,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Begin no run that would not be over after this time, such as 9m or 500s.",
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Processes that share the runs and the device. The results record this number, because seconds depend on it.",
        ),
    ] = 1,
    part: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only this part of the experiments; repeat it for several, in this order. An unknown name lists them.",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Only the first N seeds; the others can be run later."
        ),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for the results. Default: experiments/results; with --quick WORK/results.",
        ),
    ] = None,
    work: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder for run folders and their weights.")
    ] = Path("runs/reproduce"),
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
) -> None:
    """Run one of the paper's experiments again, with the strategies, the search and the training of
    `attittud compare`.

    After every run a line is added to RESULTS/NAME.jsonl, also if the run diverged. A run that has
    a line there is not repeated, even if another machine made it. `python -m
    experiments.paper.page` turns the lines into docs/appendix/reproduction.md, next to the paper's
    own numbers.

    An experiment consists of one or several parts. Every part is a whole comparison: primary_only,
    multitask and the configuration's own strategy are in it whatever compare.strategies says, and
    runs that another part has made are copied into its lines. A line does not tell which settings
    were changed by KEY=VALUE. So keep results with another model, other data or other training
    apart: use `--results FOLDER`.
    """
    console = Console()
    if name is None:
        console.print(listing())
        return
    words = [name, *(overrides or [])]
    names = [word for word in words if "=" not in word]
    check(names, has_data=quick or data is not None)
    usual_results = HERE / "results"
    if quick:
        usual_results = work / "results"
        work = work / "quick"
    results = results or usual_results
    seconds = None if budget is None else parse_duration(budget)
    settings: dict[str, Any] = {
        "results": results,
        "work": work,
        "overrides": [word for word in words if "=" in word],
        "quick": quick,
        "budget": seconds,
        "only": part or [],
        "seeds": seeds,
        "model": model,
        "side_by_side": workers,
    }
    with ExitStack() as stack:
        stack.enter_context(
            interruptible(lambda: f"finished runs are kept in {results}, the same command goes on")
        )
        if workers > 1:
            outcome = side_by_side(workers, names, data, quiet=quiet or quick, **settings)
        else:
            progress = stack.enter_context(display(quiet=quiet))
            outcome = run(names, data, progress=progress, **settings)
    if outcome.missing:
        console.print(
            f"The time was too short for all of {', '.join(outcome.missing)}; the same command goes on."
        )
    for path in outcome.results:
        console.print(f"Results: {path}", soft_wrap=True)


def listing() -> Table:
    """A line for each experiment."""
    table = Table(box=None, show_header=False)
    for name, experiment in EXPERIMENTS.items():
        needs = f"--data: {experiment.data}"
        if experiment.encoder is not None:
            needs += "; --model: a folder with a text encoder"
        table.add_row(name, f"{experiment.about}. {needs}")
    return table


def check(names: list[str], *, has_data: bool) -> None:
    """Refuse unknown experiments, and a run without data."""
    for name in names:
        if name not in EXPERIMENTS:
            raise InputError(
                f"there is no experiment {name!r}; choose one of {', '.join(EXPERIMENTS)}"
            )
    if not has_data:
        last = EXPERIMENTS[names[-1]]
        encoder = ""
        if last.encoder is not None:
            encoder = " and that with a text encoder by --model"
        raise InputError(
            f"name the folder with {last.data} by --data{encoder}, or try it with --quick"
        )


def build() -> typer.Typer:
    app = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
    )
    app.command(cls=Command)(reproduce)
    return app


def main(arguments: list[str] | None = None) -> None:
    if arguments is None:
        arguments = sys.argv[1:]
    run_and_exit(build, arguments, "python -m experiments.reproduce")


if __name__ == "__main__":
    main()
