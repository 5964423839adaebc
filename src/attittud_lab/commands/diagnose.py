"""`attittud diagnose`: how auxiliary and primary gradients relate, before a day is spent on training."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attittud_lab.commands import CONFIG, key_values, read
from attittud_lab.errors import counted
from attittud_lab.output.interrupts import interruptible, starting
from attittud_lab.output.progress import Bars, EvaluationLines, Progress

if TYPE_CHECKING:
    from rich.console import Console

_LINES = {
    "captured": "in span",
    "helpful": "helpful",
    "harmful": "harmful",
    "opposed": "opposed directions",
}
_PERIODS = {"all": "all steps", "early": "early half", "late": "late half"}


def diagnose(
    config: Annotated[Path, CONFIG],
    overrides: Annotated[list[str] | None, key_values("strategy.rank=20 or strategy=multitask")] = None,
    steps: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Training steps to measure: at least 20, at least 4 times strategy.refresh_every, and at most the job's steps.",
        ),
    ] = 200,
    chance: Annotated[
        bool,
        typer.Option(
            "--chance/--no-chance",
            help="Also estimate the chance that the auxiliary data help, with short runs on folds of the labels. The command "
            "first says how long they will take.",
        ),
    ] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress, neither a bar nor lines.")] = False,
) -> None:
    """Measure the first training steps: how do the auxiliary gradients relate to the primary task?

    This command trains as configured; in place of strategy portfolio it uses auto. The gradients of single primary examples
    give a few directions, the basis; the span is every combination of these directions. In every step the command measures
    how much of each auxiliary source's gradient lies in the span, how much of that helps or harms the primary task, and where
    in the network. The 95 % intervals take into account that neighbouring steps are similar. The early and the late half of
    the steps are also shown separately.

    Three alarms can fire; each shows the figure that set it off:

    - the span captures less than 5 % of the gradient of other primary examples;

    - less than 1 % of an auxiliary gradient lies in the span;

    - along these directions, the gradients of two small batches of primary examples are not shown to agree in sign more often
      than by chance.

    These figures do not predict whether the auxiliary data will help. To estimate the chance that they will, the command also
    trains a few strategies for the first fifth of their steps: primary_only, which ignores the auxiliary data, and weighted
    sums of the losses. It trains them on folds of the labels, and compares their predictions for held-out labels. This takes
    about as long as two to four full runs, but no longer than portfolio.budget (30 minutes on a CPU if it is not set, no
    limit on a GPU); --no-chance leaves it out. `attittud compare` measures the gain itself. The test set is not evaluated.
    The figures are also written to runs/CONFIG/diagnose/diagnose.json (output=FOLDER replaces runs).
    """
    with starting():
        from rich.console import Console

        from attittud_lab.diagnose import diagnose as run

        settings = read(config, overrides, "diagnose")
    folder = Path(settings.output) / config.stem / "diagnose"
    progress = Progress() if quiet else Bars() if sys.stderr.isatty() else EvaluationLines()
    kept = "a diagnosis keeps nothing before its end, so the same command starts over"
    with interruptible(lambda: kept), progress:
        result = run(settings, folder, progress, steps=steps, chance=chance)
    show(result, folder / "diagnose.json", Console())


def show(result: Mapping[str, Any], path: Path, console: Console) -> None:
    """Show the figures in two tables, then the alarms."""
    from attittud_lab.compare.table import Screen

    screen = Screen(console)
    screen.say(_setting(result))
    screen.table(_rows(result))
    screen.table(_layers(result), left=2)
    screen.say(
        "Figures are means over the steps, with 95 % intervals from blocks of neighbouring steps, or a p-value. They are "
        "shares of a gradient's squared norm, except in two kinds of rows of the first table: 'half-batches agree in sign' is "
        "the share of directions in which the gradients of two half-batches of primary examples have the same sign, and "
        "'opposed directions' is the share of directions in which the auxiliary gradient opposes the primary one. In the "
        "second table, 'of whole gradient' is the layer's share of the auxiliary gradient. The other columns are shares "
        "within the layer: the part in the span, and its helpful and harmful parts."
    )
    fired = [alarm["fired"] for alarm in result["alarms"]]
    for number, alarm in enumerate(result["alarms"], 1):
        state, style = ("FIRED", "yellow") if alarm["fired"] else ("silent", "")
        screen.say(f"Alarm {number} {state}: {alarm['found']}.", style)
    screen.say(result["validated"])
    if result.get("chance"):
        screen.say(result["chance"]["words"])
    screen.say(str(path))
    screen.say(result["verdict"], "bold yellow" if any(fired) else "bold")


def _setting(result: Mapping[str, Any]) -> str:
    few = result["steps"] < result["steps_asked"]
    asked = f" of the {result['steps_asked']} requested (the job has no more)" if few else ""
    mean = ", and the current primary gradient is appended" if result["include_mean"] else ""
    return (
        f"{result['steps']} steps{asked} were measured. The basis ({result['basis']}) has "
        f"{counted(result['rank'], 'direction')} from {result['basis_batch']} primary examples. It is recomputed every "
        f"{result['refresh_every']} steps{mean}. The span is "
        "every combination of these directions. Fresh primary gradients come from "
        f"{result['fresh_batch']} other examples. For comparison: the same number of random directions would capture "
        f"{result['random_span']:.2g} of any gradient over the {result['shared_parameters']:,} shared parameters."
    )


def _rows(result: Mapping[str, Any]) -> list[dict[str, str]]:
    lines = {
        "fresh primary gradient in span": (_share, result["captured_primary"]),
        "half-batches agree in sign": (_signs, result["half_batches"]),
    }
    for source, found in result["sources"].items():
        lines |= {f"{source}: {words}": (_share, found[key]) for key, words in _LINES.items()}
    return [
        {"share": name, **{words: text(found[key]) for key, words in _PERIODS.items()}}
        for name, (text, found) in lines.items()
    ]


def _layers(result: Mapping[str, Any]) -> list[dict[str, str]]:
    columns = {"of whole gradient": "weight", "in span": "captured", "helpful": "helpful", "harmful": "harmful"}
    return [
        {"source": source, "layers": group, **{name: _share(found[key]["all"]) for name, key in columns.items()}}
        for source, layers in result["sources"].items()
        for group, found in layers["layers"].items()
    ]


def _share(found: Mapping[str, float]) -> str:
    return f"{_percent(found['mean'])} ({_percent(found['low'])} to {_percent(found['high'])})"


def _signs(test: Mapping[str, float]) -> str:
    return f"{_percent(test['share'])} of {test['n']}, chance {_percent(test['chance'])}, p = {test['p']:.2g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{min(max(share, 0.0), 1.0):.1%}"
