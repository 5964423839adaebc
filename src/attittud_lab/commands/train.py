"""`attittud train`: one strategy, one seed, one run folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attittud_lab.commands import (
    CONFIG,
    OpenReport,
    Ray,
    Workers,
    key_values,
    open_page,
    placed,
    read,
    told_if_slow,
)
from attittud_lab.errors import InputError, command, counted
from attittud_lab.models import names as models
from attittud_lab.output.interrupts import interruptible, starting
from attittud_lab.output.logs import CHOICES
from attittud_lab.output.progress import Lines, display
from attittud_lab.strategies import find
from attittud_lab.strategies import names as strategies

if TYPE_CHECKING:
    from attittud_lab.runs.result import RunResult

FEW_TESTS = 1000
"""Up to this many test examples the output has an interval of the accuracy, of 3 points or more on
either side of one half.
"""


def train(
    config: Annotated[Path, CONFIG],
    overrides: Annotated[
        list[str] | None, key_values("strategy=flip or training.guided.lr=1e-4")
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"Also report to a dashboard: {', '.join(CHOICES)}. Repeat the option for several.",
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over, even if the folder already holds a run.")
    ] = False,
    workers: Workers = 1,
    ray: Ray = None,
    open_report: OpenReport = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Show no progress, neither bars nor lines.")
    ] = False,
) -> None:
    """Train a model: with one strategy, or with a portfolio that tries several strategies and keeps
    the best.
    """
    with starting(), nullcontext() if quiet else told_if_slow("loading torch and other libraries"):
        from attittud_lab.files import read_json
        from attittud_lab.portfolio.run import run as run_portfolio
        from attittud_lab.runs.folder import REMARK
        from attittud_lab.runs.model import cost
        from attittud_lab.training.train import default_run_dir, run

        settings = read(config, overrides)
    run_dir, several = (
        default_run_dir(settings, config.stem),
        find(settings.strategy.name).trains_others,
    )
    if several and log:
        raise InputError(
            f"--log {log[0]}: a portfolio has many short runs and does not report to dashboards; leave it out"
        )
    if not several and (workers > 1 or ray is not None):
        asked = f"--workers {workers}" if ray is None else "--ray"
        raise InputError(
            f"{asked}: strategy {settings.strategy.name} trains a single run; leave {asked} out, or use strategy=portfolio or "
            "`attittud compare`, which train many runs"
        )
    progress = display(Lines(noun="trial"), quiet=quiet)
    with interruptible(lambda: _kept(run_dir, fresh=fresh)), progress:
        if several:
            with placed(workers, ray) as place:
                result = run_portfolio(
                    settings, run_dir, progress=progress, fresh=fresh, place=place
                )
        else:
            result = run(settings, run_dir=run_dir, progress=progress, logs=log or (), fresh=fresh)
    grouped = settings.data.primary.group is not None
    _show(result, "out-of-fold" if several else "validation", grouped=grouped)
    if size := cost(run_dir):
        typer.echo(f"model: {size}")
    if remark := read_json(run_dir / "run.json").get(REMARK):
        typer.echo(f"attittud: {remark}", err=True)
    if several:
        typer.echo("\n".join(_decided(run_dir)))
    page = _report(run_dir)
    if open_report and page is not None:
        open_page(page)
    typer.echo(
        f"next: `{command('predict', run_dir, 'INPUTS')}` predicts the label of new examples"
    )
    if settings.data.auxiliary and result.test:  # without a test set there is nothing to compare by
        compare = command("compare", config, *(overrides or ()))
        what = "which strategy is best for a network, and whether the auxiliary data help it"
        typer.echo(f"next: `{compare}` checks with several seeds {what}")
    typer.echo(str(run_dir))


def _show(result: RunResult, chooses: str, *, grouped: bool) -> None:
    """Print the figures of a run.

    `chooses` names the figures that chose the model; `grouped` says that examples are not
    independent.
    """
    for part, values in {chooses: result.validation, "test": result.test}.items():
        words = (
            f"{name} undefined" if math.isnan(value) else f"{name} {value:.4f}"
            for name, value in values.items()
        )
        chose = "" if result.test else " (these figures chose the model; there is no test set)"
        if values:
            typer.echo(f"{part:<10} " + "  ".join(words) + chose)
    if not grouped and (sure := _how_sure(result)):
        typer.echo(sure)
    note = " (finished earlier; --fresh trains again)" if result.skipped else ""
    steps = f"{counted(result.steps, 'step')} in " if result.steps else ""
    typer.echo(
        f"{result.strategy}, seed {result.seed}: {steps}{result.seconds:.1f} s of training{note}"
    )


def _how_sure(result: RunResult) -> str:
    """Say how far the test accuracy may be off, because few test examples say little."""
    from attittud_lab.statistics import share_interval

    accuracy = result.test.get("accuracy", math.nan)
    examples = result.examples.get("test", 0)
    several_labels = "auc" in result.test
    if several_labels or math.isnan(accuracy) or not 0 < examples <= FEW_TESTS:
        return ""
    low, high = share_interval(round(accuracy * examples), examples)
    return (
        f"the test set has {counted(examples, 'example')}: the accuracy on new ones may be {low:.0%} to {high:.0%} "
        "(95 % interval)"
    )


def _report(run_dir: Path) -> Path | None:
    """Write the report and return its page; None where it cannot be written."""
    from attittud_lab.report import write_report

    try:
        page = write_report(run_dir)
    except InputError as error:  # the run itself is complete
        typer.echo(f"no report: {error}", err=True)
        return None
    typer.echo(f"report: {page} (`{command('report', run_dir)}` writes it again)")
    return page


def _decided(run_dir: Path) -> list[str]:
    """Return what a portfolio says at its end."""
    from attittud_lab.files import read_json
    from attittud_lab.portfolio import words
    from attittud_lab.portfolio.leaderboard import NAME
    from attittud_lab.portfolio.suspicious import FILE

    board = read_json(run_dir / NAME)
    lines = [board["decision"], board["without_us"], board["warning"]]
    lines += words.clearest(board["translations"])
    lines.append(words.suspicious(board["suspicious"], str(run_dir / FILE)))
    return [line for line in lines if line]


def _kept(run_dir: Path, *, fresh: bool) -> str:
    """Say what an interrupted run leaves, and how to continue it."""
    again = "the same command without --fresh" if fresh else "the same command"
    if (run_dir / "result.json").exists():
        return f"the run had just finished, and {again} shows its result"
    if (run_dir / "trials").exists():
        return f"{again} continues with the trials in {run_dir}"
    if (run_dir / "checkpoint.safetensors").exists():
        return f"{again} continues from the last checkpoint in {run_dir}"
    return "there is no checkpoint yet, so the same command starts from the beginning"


def _listed(names: Mapping[str, str]) -> str:
    return "\n\n".join(f"- **{name}**: {about}" for name, about in names.items())


# The names come from the registries, so that --help lists every usable one.
train.__doc__ = f"""{train.__doc__}

A strategy is a way to use the auxiliary data. Most strategies train on primary and auxiliary data together; by default every
run then fine-tunes on the primary data alone (training.mode). `attittud init` proposes strategy: portfolio, which tries
several strategies on folds of the labels.

To continue a run that was interrupted or killed, give the same command again; on a CPU the result is the same. The folder of
a run is runs/CONFIG/STRATEGY/seed-SEED (output=FOLDER replaces runs). `attittud schema` lists every setting and its meaning.

A portfolio consists of many short runs. --workers 4 trains four at a time on this machine, and --ray trains many at a time on
a cluster. The result is the same, unless portfolio.budget is too short for all steps and candidates: how many are then left
out depends on measured times.

Choose the strategy with strategy.name=NAME. strategy=NAME also discards the other settings that CONFIG has under `strategy:`,
such as the rank. Eta(a, b, c) stands for the weights of the neutral, the helpful and the harmful part of the auxiliary
gradient. The strategies are:

{_listed(strategies())}

The model is the body that all tasks share. Choose it with model=NAME:

{_listed(models())}
"""
