"""`attittud train`: one strategy, one seed, one run folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attittud_lab.commands import (
    CONFIG,
    OpenReport,
    Quiet,
    Ray,
    Workers,
    key_values,
    open_page,
    placed,
    read,
    same_command,
)
from attittud_lab.errors import InputError, command, counted
from attittud_lab.models import names as models
from attittud_lab.output.interrupts import interruptible, starting
from attittud_lab.output.logs import CHOICES
from attittud_lab.output.progress import display
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
    quiet: Quiet = False,
) -> None:
    """Train a model: with one strategy, or with a portfolio that tries several learners and keeps
    the best.
    """
    with starting():
        from attittud_lab.portfolio.run import run as run_portfolio
        from attittud_lab.report.outcome import outcome, understood
        from attittud_lab.training.train import default_run_dir, run

        settings = read(config, overrides)
    is_portfolio = find(settings.strategy.name).trains_others
    _check_options(settings.strategy.name, log or [], workers, ray)
    run_dir = default_run_dir(settings, config.stem)
    progress = display(noun="trial", quiet=quiet)
    with interruptible(lambda: _kept(run_dir, fresh=fresh)), progress:
        if is_portfolio:
            with placed(workers, ray) as place:
                result = run_portfolio(
                    settings, run_dir, progress=progress, fresh=fresh, place=place
                )
        else:
            result = run(settings, run_dir=run_dir, progress=progress, logs=log or (), fresh=fresh)
    _show(result, is_portfolio=is_portfolio, grouped=settings.data.primary.group is not None)
    with understood(run_dir):
        decided = outcome(run_dir, (config, *(overrides or ())))
        lines = [decided.text, *decided.meaning, decided.warning, *_labels(run_dir)]
    for line in filter(None, lines):
        typer.echo(line)
    page = _report(run_dir)
    if open_report and page is not None:
        open_page(page)
    for step in decided.next:
        typer.echo(f"next: `{step['command']}` {step['why']}")
    typer.echo(str(run_dir))


def _check_options(strategy: str, logs: list[str], workers: int, ray: str | None) -> None:
    """Refuse options that this strategy has no use for."""
    if find(strategy).trains_others:
        if logs:
            raise InputError(
                f"--log {logs[0]}: strategy {strategy} does not report to dashboards; leave it out, "
                "because a portfolio tries many candidates"
            )
        return
    option = None
    if workers != 1:
        option = "--workers"
    elif ray is not None:
        option = "--ray"
    if option is not None:
        raise InputError(
            f"{option}: strategy {strategy} trains a single run; leave it out, or use "
            "strategy=portfolio or `attittud compare`"
        )


def _show(result: RunResult, *, is_portfolio: bool, grouped: bool) -> None:
    """Print the figures of a run, what it took, and the size of its model.

    A portfolio has out-of-fold figures. `grouped` examples are not independent, so an interval of
    the test accuracy would be too narrow.
    """
    from attittud_lab.runs.model import cost

    name = "validation"
    if is_portfolio:
        name = "out-of-fold"
    chosen_by = f"{name:<10} {_figures(result.validation)}"
    if result.test:
        typer.echo(chosen_by)
        typer.echo(f"{'test':<10} {_figures(result.test)}")
    else:
        typer.echo(f"{chosen_by}  (these figures chose the model; there is no test set)")
    if not grouped:
        _show_interval(result)
    spent = f"{result.seconds:.1f} s of training"
    if result.steps:
        spent = f"{counted(result.steps, 'step')} in {spent}"
    if result.skipped:
        spent += " (finished earlier; --fresh trains again)"
    typer.echo(f"{result.strategy}, seed {result.seed}: {spent}")
    size = cost(result.run_dir)
    if size:
        typer.echo(f"model: {size}")


def _figures(values: Mapping[str, float]) -> str:
    """Return names and values in one line, with four digits."""
    texts = []
    for name, value in values.items():
        text = f"{value:.4f}"
        if math.isnan(value):
            text = "undefined"
        texts.append(f"{name} {text}")
    return "  ".join(texts)


def _show_interval(result: RunResult) -> None:
    """Say how far the test accuracy may be off, where few test examples say little."""
    from attittud_lab.statistics import share_interval

    accuracy = result.test.get("accuracy", math.nan)
    examples = result.examples.get("test", 0)
    several_labels = "auc" in result.test  # the figure of several labels at once alone
    if several_labels or math.isnan(accuracy) or not 0 < examples <= FEW_TESTS:
        return
    low, high = share_interval(round(accuracy * examples), examples)
    typer.echo(
        f"the test set has {counted(examples, 'example')}: the accuracy on new ones may be "
        f"{low:.0%} to {high:.0%} (95 % interval)"
    )


def _labels(run_dir: Path) -> list[str]:
    """Return sentences on what labels of the sources of a portfolio mean, and how many look wrong;
    nothing for other runs.
    """
    from attittud_lab.files import read_json
    from attittud_lab.portfolio import words
    from attittud_lab.portfolio.leaderboard import NAME
    from attittud_lab.portfolio.suspicious import FILE

    if not (run_dir / NAME).is_file():
        return []
    board = read_json(run_dir / NAME)
    suspicious = words.suspicious(board["suspicious"], str(run_dir / FILE))
    return [*words.clearest(board["translations"]), suspicious]


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


def _kept(run_dir: Path, *, fresh: bool) -> str:
    """Say what an interrupted run leaves, and how to continue it."""
    again = same_command(fresh=fresh)
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
simple learners on folds of the labels, without the auxiliary data and with them.

To continue a run that was interrupted or killed, give the same command again; on a CPU the result is the same. The folder of
a run is runs/CONFIG/STRATEGY/seed-SEED (output=FOLDER replaces runs). `attittud schema` lists every setting and its meaning.

A portfolio with networks (portfolio.learners) consists of many short runs. --workers 4 trains four at a time on this machine,
and --ray trains many at a time on a cluster. The result is the same, unless portfolio.budget is too short for all steps and
candidates: how many are then left out depends on measured times.

Choose the strategy with strategy.name=NAME. strategy=NAME also discards the other settings that CONFIG has under `strategy:`,
such as the rank. Eta(a, b, c) stands for the weights of the neutral, the helpful and the harmful part of the auxiliary
gradient. The strategies are:

{_listed(strategies())}

The model is the body that all tasks share. Choose it with model=NAME:

{_listed(models())}
"""
