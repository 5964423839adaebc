"""`attittud compare`: does the auxiliary data help, and which strategy uses it best? `attittud report` shows the outcome."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attittud_lab.commands import Auxiliary, InputColumn, LabelColumn, Ray, Workers, key_values, placed, read, read_text
from attittud_lab.errors import InputError
from attittud_lab.output.interrupts import interruptible, starting
from attittud_lab.output.progress import Bars, Progress, RunLines

if TYPE_CHECKING:
    from attittud_lab.config.schema import Config

_CONFIG = typer.Argument(metavar="CONFIG", help="A YAML file; or use --primary and --auxiliary.")
_DATA = "Without a YAML file: the data of the task that matters, as in `attittud init`."
_PRIMARY = typer.Option(metavar="DATA", help=_DATA)
_TIME = "Training time of each run at equal seconds, such as 90s, 30m or 2h. Default: multitask's."
_BUDGET = typer.Option(metavar="TIME", help=_TIME)
_QUICK = typer.Option("--quick", help="About a third of the runs; says what that gives up. The runs are kept.")
QUICK_SEEDS = 3
"""The fewest that have an interval."""


def compare(
    config: Annotated[str | None, _CONFIG] = None,
    overrides: Annotated[list[str] | None, key_values("compare.seeds=10 or compare.strategies=[flip]")] = None,
    primary: Annotated[str | None, _PRIMARY] = None,
    auxiliary: Auxiliary = None,
    input_column: InputColumn = None,
    label_column: LabelColumn = None,
    budget: Annotated[str | None, _BUDGET] = None,
    quick: Annotated[bool, _QUICK] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over, even if there are finished runs.")] = False,
    workers: Workers = 1,
    ray: Ray = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No bars, and no lines about runs.")] = False,
) -> None:
    """Train the same job under several strategies with paired seeds, and say which one to use, if any.

    primary_only (ignore the auxiliary data) and multitask (add the losses, weight tuned) always take part; the others are
    compare.strategies. Every strategy tunes its auxiliary weight on validation with the same number of runs. Figures are
    compared at equal steps and at equal training seconds. The last line is a decision: use a strategy, the auxiliary data
    does not help, or more seeds are needed, and how many.

    The folder is runs/CONFIG/compare (or in another one than runs: output=FOLDER); its report.html has the curves. The same
    command again skips finished runs; with more seeds, weights or strategies the finished runs are kept.

    --quick is a smaller comparison: three seeds, tuning on one of them, equal steps alone.

    Runs are independent: --workers 4 trains four at a time on this machine, --ray many on a cluster. The figures of a run
    stay the same to the last digit; its seconds do only if every run has as many cores as training.threads says.
    """
    with starting():
        from rich.console import Console

        from attittud_lab.compare.run import compare as run
        from attittud_lab.compare.table import show
        from attittud_lab.report import write_report

    given = [*(overrides or []), *([] if budget is None else [f"compare.budget={budget}"])]
    settings, name = _settings(config, given, primary, auxiliary or [], (input_column, label_column))
    settings, gave_up = _smaller(settings) if quick else (settings, "")
    folder = Path(settings.output) / name / "compare"
    progress = Progress() if quiet else Bars() if sys.stderr.isatty() else RunLines(Console(stderr=True))
    again = "the same command without --fresh" if fresh else "the same command"
    kept = f"finished runs are kept in {folder}, {again} goes on with the rest"
    with interruptible(lambda: kept), progress, placed(workers, ray) as place:
        result = run(settings, folder, progress, fresh=fresh, place=place, gave_up=gave_up)
    show(result, Console(), write_report(folder))


def _settings(
    config: str | None,
    overrides: list[str],
    primary: str | None,
    auxiliary: list[str],
    columns: tuple[str | None, str | None],
) -> tuple[Config, str]:
    """The configuration and a name for its folder."""
    from attittud_lab.commands.proposal import propose

    if primary is None:
        if config is None or auxiliary:
            raise InputError(
                "give a CONFIG, or both --primary PATH and --auxiliary PATH; `attittud init` writes a CONFIG"
            )
        return read(config, overrides, "compare"), Path(config).stem
    if config is not None and "=" not in config:
        raise InputError(f"give either a CONFIG ({config}) or --primary, not both; change data.primary.path instead")
    if not auxiliary:
        raise InputError("--primary alone has nothing to be compared with; name the other data by --auxiliary PATH")
    first = [] if config is None else [config]  # the first KEY=VALUE was read as CONFIG
    text = propose(None, primary, auxiliary, *columns)
    return read_text(text, [*first, *overrides], "the proposed configuration"), Path(primary.rstrip("/")).stem


def _smaller(config: Config) -> tuple[Config, str]:
    """A comparison with fewer runs, all of which the whole one has too, and what it gives up."""
    own = config.compare
    if own.budget is not None:
        raise InputError(
            "--quick has no runs at equal seconds, which --budget (compare.budget) is about; leave one out"
        )
    seeds = min(own.seeds, QUICK_SEEDS)
    lost = {
        f"{own.seeds - seeds} of {own.seeds} seeds, so that only large differences can be shown": own.seeds > seeds,
        f"tuning on {own.tuning_seeds} seeds instead of one, so that weights are chosen with more luck": own.tuning_seeds
        > 1,
        "the table at equal seconds, so that a strategy may owe its gain to longer training": own.equal == "both",
        "all values of compare.space but the first": bool(own.space) and own.draws > 1,
    }
    words = (
        "; ".join(text for text, given_up in lost.items() if given_up) or "nothing: the comparison is as small already"
    )
    small = replace(own, seeds=seeds, tuning_seeds=1, equal="steps", draws=1)
    return replace(config, compare=small), f"--quick gave up {words}. The same command without it keeps these runs."


def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The folder of a run or of a comparison.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Write it there instead of into RUN_DIR.")
    ] = None,
) -> None:
    """Write report.html: results, learning curves, and how the auxiliary gradient relates to the primary task.

    The page is one file without network: open it from the disk, or send it to somebody. report.json next to it has its
    figures. A run that is still going on can be looked at too.
    """
    with starting():
        from attittud_lab.report import write_report

    typer.echo(str(write_report(run_dir, output, "choose another folder by --output")))
