"""`attittud diagnose`: what the primary task sees of the auxiliary data, before a day is spent on training."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attittud_lab.output.interrupts import interruptible, starting
from attittud_lab.output.progress import Bars, Quiet


def diagnose(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="A YAML file; `attittud init` writes one for your data.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings to change, such as strategy.rank=20 or strategy=multitask."),
    ] = None,
    steps: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Training steps to measure: at least 20 and 4 times strategy.refresh_every, at most those of the job.",
        ),
    ] = 200,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Look at the first few hundred steps of a job: is there anything for a decomposition to work with?

    Trains as configured and measures every step: how much of each auxiliary source's gradient lies in the primary task's
    span, how much of it helps and harms, and where in the network; with 95 % intervals that allow for neighbouring steps
    being alike, and the early and late half apart.

    Three alarms, each with its number:

    - the span captures under 5 % of the gradient of primary examples that it was not built from;

    - under 1 % of an auxiliary gradient lies in the span;

    - two half-batches of primary examples agree in sign no better than chance.

    It describes; it does not predict whether the auxiliary data will help: `attittud compare` measures that. Only training
    examples are measured, and the test set is not read. The figures are also written to
    runs/CONFIG/diagnose/diagnose.json (or in another folder than runs: output=FOLDER).
    """
    with starting():
        from attittud_lab.commands.reading import read
        from attittud_lab.diagnose import diagnose as run

    settings = read(config, overrides or [])
    folder = Path(settings.output) / config.stem / "diagnose"
    with ExitStack() as stack:
        progress = stack.enter_context(Bars()) if sys.stderr.isatty() and not quiet else Quiet()
        stack.enter_context(
            interruptible(lambda: "a diagnosis keeps nothing before its end, the same command starts over")
        )
        result = run(settings, folder, progress, steps=steps)
    show(result, folder / "diagnose.json", Console())


def show(result: Mapping[str, Any], path: Path, console: Console) -> None:
    """Tables by rich on a terminal; elsewhere Markdown, which is plain text."""
    plain = not console.is_terminal
    if plain:
        console = Console(file=console.file, width=200, color_system=None)

    def say(text: str, style: str = "") -> None:
        console.print(Text(text, style="" if plain else style), soft_wrap=plain)

    say(_setting(result))
    console.print(_table(["share of squared norm", "all steps", "early half", "late half"], _rows(result), plain=plain))
    headings = ["source", "layers", "of the gradient", "in span", "helpful", "harmful"]
    console.print(_table(headings, _layers(result), plain=plain, left=2))
    say("Mean (95 % interval from means of blocks of steps). Shares of a layer group are among its three parts.")
    for number, alarm in enumerate(result["alarms"], 1):
        say(
            f"Alarm {number} {'FIRED' if alarm['fired'] else 'silent'}: {alarm['found']}.",
            "yellow" if alarm["fired"] else "",
        )
    say(result["validated"])
    say(str(path))
    fired = any(alarm["fired"] for alarm in result["alarms"])
    say(result["verdict"], "bold yellow" if fired else "bold")


def _setting(result: Mapping[str, Any]) -> str:
    asked = (
        f" of {result['steps_asked']} asked for (the job has no more)"
        if result["steps"] < result["steps_asked"]
        else ""
    )
    mean = ", the current primary gradient appended" if result["include_mean"] else ""
    return (
        f"{result['steps']} steps{asked}; basis {result['basis']} of rank {result['rank']} from {result['basis_batch']} primary "
        f"examples, new every {result['refresh_every']} steps{mean}; fresh gradients of {result['fresh_batch']} others. A random "
        f"span of this rank would hold {result['random_span']:.2g} of any gradient over the {result['shared_parameters']:,} "
        "shared parameters."
    )


PERIODS = ("all", "early", "late")


def _rows(result: Mapping[str, Any]) -> list[list[str]]:
    rows = [["fresh primary gradient in span", *(_share(result["captured_primary"][period]) for period in PERIODS)]]
    signs = (result["half_batches"][period] for period in PERIODS)
    rows.append(["half-batches: same sign", *map(_signs, signs)])
    for source, found in result["sources"].items():
        for key, words in _LINES.items():
            rows.append([f"{source}: {words}", *(_share(found[key][period]) for period in PERIODS)])
    return rows


_LINES = {
    "captured": "in span",
    "helpful": "helpful",
    "harmful": "harmful",
    "opposed": "opposed directions (their number)",
}


def _layers(result: Mapping[str, Any]) -> list[list[str]]:
    return [
        [source, group, *(_share(found[key]["all"]) for key in ("weight", "captured", "helpful", "harmful"))]
        for source, layers in result["sources"].items()
        for group, found in layers["layers"].items()
    ]


def _table(headings: list[str], rows: list[list[str]], *, plain: bool, left: int = 1) -> Table:
    table = Table(box=box.MARKDOWN if plain else box.SIMPLE_HEAD, pad_edge=plain)
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="left" if position < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # not markup, whatever a source is called
    return table


def _share(found: Mapping[str, float]) -> str:
    return f"{_percent(found['mean'])} ({_percent(found['low'])} to {_percent(found['high'])})"


def _signs(test: Mapping[str, float]) -> str:
    return f"{_percent(test['share'])} of {test['n']}, chance {_percent(test['chance'])}, p = {test['p']:.2g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{min(max(share, 0.0), 1.0):.1%}"
