"""`attittud compare`: do the auxiliary data help, and which strategy uses them best? `attittud
report` shows the outcome.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attittud_lab.commands import (
    Auxiliary,
    InputColumn,
    LabelColumn,
    OpenReport,
    Quiet,
    Ray,
    Workers,
    key_values,
    open_page,
    placed,
    read,
    read_text,
    same_command,
)
from attittud_lab.config import COMPARED
from attittud_lab.errors import InputError, joined
from attittud_lab.output.interrupts import interruptible, starting
from attittud_lab.output.progress import display

if TYPE_CHECKING:
    from attittud_lab.config.schema import Config
    from attittud_lab.report.outcome import Outcome

_CONFIG = typer.Argument(metavar="CONFIG", help="A YAML file; or use --primary and --auxiliary.")
_DATA = "Without a YAML file: the data of the task that matters, as in `attittud init`."
_PRIMARY = typer.Option(metavar="DATA", help=_DATA)
_TIME = (
    "Training time of each run in the comparison at equal seconds, such as 90s, 30m or 2h. Default: "
    "the time that multitask takes."
)
_BUDGET = typer.Option(metavar="TIME", help=_TIME)
_QUICK = typer.Option(
    "--quick",
    help="Train fewer runs (by default a seventh); the output says what is missing. A full comparison reuses them.",
)
QUICK_SEEDS = 3
"""Seeds of a quick comparison: the fewest that give an interval."""
QUICK_STRATEGIES = ("auto",)
"""Strategies of a quick comparison besides primary_only, multitask and the configured strategy."""


def compare(
    config: Annotated[str | None, _CONFIG] = None,
    overrides: Annotated[
        list[str] | None, key_values("compare.seeds=10 or compare.strategies=[flip]")
    ] = None,
    primary: Annotated[str | None, _PRIMARY] = None,
    auxiliary: Auxiliary = None,
    input_column: InputColumn = None,
    label_column: LabelColumn = None,
    budget: Annotated[str | None, _BUDGET] = None,
    quick: Annotated[bool, _QUICK] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over, even if there are finished runs.")
    ] = False,
    workers: Workers = 1,
    ray: Ray = None,
    quiet: Quiet = False,
) -> None:
    """Train the same job with several strategies and the same seeds, and say which strategy to use,
    if any.
    """
    with starting():
        from rich.console import Console

        from attittud_lab.compare.advice import Request
        from attittud_lab.compare.run import compare as run
        from attittud_lab.compare.table import show
        from attittud_lab.report import write_report
        from attittud_lab.report.outcome import outcome, understood

    changes = list(overrides or [])
    if budget is not None:
        changes.append(f"compare.budget={budget}")
    columns = (input_column, label_column)
    sources = auxiliary or []
    settings, name = _settings(config, changes, primary, sources, columns)
    words = _command_words(config, primary, sources, columns, workers, ray)
    request = Request((*words, *changes))
    if quick:
        whole = settings
        settings, gave_up = _smaller(whole)
        request = replace(request, whole=whole, gave_up=gave_up)
    folder = Path(settings.output) / name / "compare"
    progress = display(quiet=quiet)
    again = same_command(fresh=fresh)
    note = f"finished runs are kept in {folder}, and {again} continues with the rest"
    with interruptible(lambda: note), progress, placed(workers, ray) as place:
        result = run(settings, folder, progress, fresh=fresh, place=place, request=request)
    page = write_report(folder)
    with understood(folder):
        decided = outcome(folder)
    show(result, Console(), _lines(decided), page)


# The names come from the defaults, so that --help stays true.
compare.__doc__ = f"""{compare.__doc__}

A strategy is a way to use the auxiliary data; `attittud train --help` lists all of them. Two strategies always take part:
primary_only, the baseline, ignores the auxiliary data; multitask adds the losses with a tuned weight. The others
are the configured strategy, unless it is a portfolio, and those in compare.strategies: by default
{joined(COMPARED)}.
Every strategy that uses the auxiliary data tunes the weight of the auxiliary loss on validation, with the same number of runs.
Results are compared after the same number of steps (equal steps), and again after the same training time (equal seconds).
A decision follows: which strategy to use, that the auxiliary data do not help, or about how many seeds are needed to tell.

The folder is runs/CONFIG/compare (output=FOLDER replaces runs). report.html in it has the learning curves. Give the
same command again to continue: finished runs are reused, even if you add seeds, weights or strategies.

--quick is a smaller comparison: three seeds unless compare.seeds is set, tuning on one of them, and equal steps only.
Unless compare.strategies is set, it compares primary_only, multitask, {", ".join(QUICK_STRATEGIES)} and the configured strategy.

Runs are independent: --workers 4 trains four at a time on this machine, and --ray trains many at a time on a cluster. With
the same number of steps, the results of a run stay the same to the last digit; at equal seconds the number of steps follows
from measured times. A run takes longer than it would alone, unless every run has as many cores as training.threads.
"""


def _lines(decided: Outcome) -> list[str]:
    """Return the decision and the next command, as the terminal shows them."""
    lines = [f"{decided.about}: {decided.text}"]
    for step in decided.next:
        lines.append(f"Next: `{step['command']}` {step['why']}.")
    return lines


def _command_words(
    config: str | None,
    primary: str | None,
    auxiliary: list[str],
    columns: tuple[str | None, str | None],
    workers: int,
    ray: str | None,
) -> list[str]:
    """Return the words of the command that was typed, without --quick, --fresh, --budget and the
    changed settings: the advice repeats them.
    """
    options = [("--primary", primary)]
    for source in auxiliary:
        options.append(("--auxiliary", source))
    options += zip(("--input", "--label"), columns, strict=True)
    options.append(("--ray", ray))
    if workers > 1:
        options.append(("--workers", str(workers)))
    words = ["attittud", "compare"]
    if config:
        words.append(config)
    for option, value in options:
        if value is not None:
            words += [option, value]
    return words


def _settings(
    config: str | None,
    changes: list[str],
    primary: str | None,
    auxiliary: list[str],
    columns: tuple[str | None, str | None],
) -> tuple[Config, str]:
    """Return the configuration and a name for its folder.

    It is that of the file `config`, or one that is proposed for the data `primary` and `auxiliary`
    with these columns. `changes` are applied to it.
    """
    from attittud_lab.commands.proposal import propose

    if primary is None:
        if config is None or auxiliary:
            needed = "give a CONFIG, or both --primary PATH and --auxiliary PATH"
            raise InputError(f"{needed}; `attittud init` writes a CONFIG")
        return read(config, changes), Path(config).stem
    if config is not None and "=" not in config:
        instead = "data.primary.path=PATH changes the data of a CONFIG"
        raise InputError(f"give either a CONFIG ({config}) or --primary, not both; {instead}")
    if not auxiliary:
        raise InputError("--primary alone leaves nothing to compare; add --auxiliary PATH")
    if config is not None:  # the first KEY=VALUE was read as CONFIG
        changes = [config, *changes]
    text = propose(None, primary, auxiliary, *columns)
    name = Path(primary.rstrip("/")).stem
    return read_text(text, changes, "the proposed configuration"), name


def _smaller(config: Config) -> tuple[Config, str]:
    """Return a comparison with fewer runs, all of which the full one can reuse, and a sentence on
    what it leaves out. Seeds and strategies that the user has set stay.
    """
    from attittud_lab.compare.candidates import candidates

    whole = config.compare
    if whole.budget is not None:
        reason = "--quick trains no runs at equal seconds, so --budget has no effect"
        raise InputError(f"{reason}; leave one of them out")
    seeds = whole.seeds
    if "seeds" not in whole.given:
        seeds = min(seeds, QUICK_SEEDS)
    compared = whole.strategies
    if "strategies" not in whole.given:
        compared = [candidate for candidate in compared if candidate.name in QUICK_STRATEGIES]
    part = replace(whole, strategies=compared, seeds=seeds, tuning_seeds=1, equal="steps", draws=1)
    small = replace(config, compare=part)
    labels = {candidate.label for candidate in candidates(small)}
    dropped = [candidate.label for candidate in candidates(config) if candidate.label not in labels]
    left_out = []
    if dropped:
        left_out.append(f"the strategies {joined(dropped)}")
    if seeds < whole.seeds:
        fewer = f"{whole.seeds - seeds} of {whole.seeds} seeds"
        left_out.append(f"{fewer} (only large differences can be shown)")
    if whole.tuning_seeds > 1:
        left_out.append("tuning on more than one seed")
    if whole.equal == "both":
        left_out.append("the table at equal seconds (a gain may cost more time)")
    if whole.space and whole.draws > 1:
        left_out.append("all but the first value of each setting in compare.space")
    return small, f"--quick left out: {', '.join(left_out) or 'nothing'}."


def report(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="The folder of a run or of a comparison.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Folder to write to, instead of RUN_DIR."
        ),
    ] = None,
    open_report: OpenReport = False,
) -> None:
    """Write report.html: results, learning curves, and how the auxiliary gradient relates to the
    primary task.

    The page is a single file that needs no network: open it from the disk, or send it to somebody.
    report.json next to it has the same figures. You can also write the report of a run that is
    still training.
    """
    with starting():
        from attittud_lab.report import write_report

    page = write_report(run_dir, output, "choose another folder with --output")
    typer.echo(str(page))
    if open_report:
        open_page(page)
