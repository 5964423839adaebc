"""`python -m experiments.reproduce`: the paper's experiments, run again. Inside a checkout, from
its root.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from attittud_lab.cli import run_and_exit
from attittud_lab.errors import InputError
from attittud_lab.output.interrupts import interruptible
from attittud_lab.output.progress import display, parse_duration
from experiments.reproduce.experiments import EXPERIMENTS
from experiments.reproduce.run import reproduce, side_by_side

HERE = Path(__file__).parents[1]
PROGRAM = "python -m experiments.reproduce"
ABOUT = """\
Run the paper's experiments again, with the strategies, the search and the training of `attittud
compare`.

After every run a line is added to RESULTS/NAME.jsonl, also if the run diverged. A run that has a
line there is not repeated, even if another machine made it. `python -m experiments.paper.page` turns
the lines into docs/appendix/reproduction.md, next to the paper's own numbers.

An experiment consists of one or several parts. Every part is a whole comparison: primary_only,
multitask and the configuration's own strategy are in it whatever compare.strategies says, and runs
that another part has made are copied into its lines. A line does not tell which settings were
changed by KEY=VALUE. So keep results with another model, other data or other training apart: use
--results FOLDER."""


def options(arguments: list[str]) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=PROGRAM, description=ABOUT, formatter_class=raw)
    add = parser.add_argument
    words = "experiments, and settings to change in all configurations, such as compare.seeds=15; "
    words += "without an experiment, they are listed"
    add("words", nargs="*", metavar="NAME|KEY=VALUE", help=words)
    data = "folder with the data, as the dataset hub has them; the list of experiments names them"
    add("--data", type=Path, metavar="FOLDER", help=data)
    model = "folder with a pretrained text encoder, for table1-text"
    add("--model", type=Path, metavar="FOLDER", help=model)
    quick = "a smoke test on made-up data on the CPU: seconds, and no result of interest"
    add("--quick", action="store_true", help=quick)
    budget = "begin no run that would not be over after this time, such as 9m or 500s"
    add("--budget", metavar="TIME", help=budget)
    workers = "processes that share the runs and the device; the results record this number, "
    workers += "because seconds depend on it"
    add("--workers", type=positive, default=1, metavar="N", help=workers)
    part = "only this part of the experiments; repeat it for several, in this order; an unknown "
    part += "name lists them"
    add("--part", action="append", default=[], metavar="NAME", help=part)
    seeds = "only the first N seeds; the others can be run later"
    add("--seeds", type=positive, metavar="N", help=seeds)
    results = "folder for the results; default: experiments/results, with --quick WORK/results"
    add("--results", type=Path, metavar="FOLDER", help=results)
    work = "folder for run folders and their weights (default: runs/reproduce)"
    add("--work", type=Path, default=Path("runs/reproduce"), metavar="FOLDER", help=work)
    add("--quiet", action="store_true", help="no progress bars")
    return parser.parse_intermixed_args(arguments)


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def run(arguments: list[str], **_: Any) -> int:
    """Do what the arguments say. `run_and_exit` calls this as it calls a command of typer."""
    chosen = options(arguments)
    console = Console()
    names = [word for word in chosen.words if "=" not in word]
    if not names:
        console.print(listing())
        return 0
    check(names, has_data=chosen.quick or chosen.data is not None)
    work = chosen.work
    results = chosen.results or HERE / "results"
    if chosen.quick:
        results = chosen.results or work / "results"
        work = work / "quick"
    settings: dict[str, Any] = {
        "results": results,
        "work": work,
        "overrides": [word for word in chosen.words if "=" in word],
        "quick": chosen.quick,
        "budget": None if chosen.budget is None else parse_duration(chosen.budget),
        "only": chosen.part,
        "seeds": chosen.seeds,
        "model": chosen.model,
        "side_by_side": chosen.workers,
    }
    advice = f"finished runs are kept in {results}, the same command goes on"
    with ExitStack() as stack:
        stack.enter_context(interruptible(lambda: advice))
        if chosen.workers > 1:
            quiet = chosen.quiet or chosen.quick
            outcome = side_by_side(chosen.workers, names, chosen.data, quiet=quiet, **settings)
        else:
            progress = stack.enter_context(display(quiet=chosen.quiet))
            outcome = reproduce(names, chosen.data, progress=progress, **settings)
    if outcome.missing:
        missing = ", ".join(outcome.missing)
        console.print(f"The time was too short for all of {missing}; the same command goes on.")
    for path in outcome.results:
        console.print(f"Results: {path}", soft_wrap=True)
    return 0


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
        encoder = " and that with a text encoder by --model" if last.encoder is not None else ""
        raise InputError(
            f"name the folder with {last.data} by --data{encoder}, or try it with --quick"
        )


def main(arguments: list[str] | None = None) -> None:
    run_and_exit(lambda: run, sys.argv[1:] if arguments is None else arguments, PROGRAM)


if __name__ == "__main__":
    main()
