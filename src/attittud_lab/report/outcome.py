"""Did the auxiliary data help, and what follows? One answer, which terminal and page render.

`outcome` reads it from the folder of a comparison, a portfolio or a single run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import UndefinedError

from attittud_lab.compare.content import VERSION as COMPARISON
from attittud_lab.compare.table import decided_row, deciding, next_steps
from attittud_lab.config.load import load
from attittud_lab.config.schema import Config
from attittud_lab.errors import InputError, command, one_line
from attittud_lab.files import read_format, read_json
from attittud_lab.portfolio.leaderboard import NAME as LEADERBOARD
from attittud_lab.portfolio.leaderboard import VERSION as PORTFOLIO
from attittud_lab.portfolio.leaderboard import answer
from attittud_lab.report.cells import capitalised, percent
from attittud_lab.runs.folder import REMARK
from attittud_lab.runs.folder import VERSION as RUN
from attittud_lab.uses.base import SOURCE_LEARNER

DROPPED = (
    "All auxiliary data were dropped: the model to use was trained on the primary examples alone."
)
ONE_RUN = "One run does not show whether the auxiliary data helped."
_DAMAGED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    UndefinedError,
    ValueError,
)


@contextmanager
def understood(folder: Path) -> Iterator[None]:
    """Blame errors of the block on the files of a run or comparison, which it reads."""
    try:
        yield
    except _DAMAGED as error:
        reason = f"{type(error).__name__}: {one_line(error, 200)}"
        raise InputError(
            f"{folder}: its files are damaged, or were not written by this version ({reason}); "
            "train or compare again in a new folder"
        ) from None


@dataclass(frozen=True)
class Outcome:
    """What a folder says, in sentences."""

    answer: str
    """`use` (the auxiliary data help), `no_help` or `unclear`; `run`: a single run cannot tell."""
    about: str
    """What was decided, such as "Decision at equal steps"."""
    text: str
    """The decision with its figures."""
    meaning: list[str] = field(default_factory=list)
    """What it means for the model."""
    warning: str = ""
    next: list[dict[str, str]] = field(default_factory=list)
    """What to do next: a `command` for a shell, and `why`."""
    row: str | None = None
    """The row of a comparison that the decision is about."""


def outcome(folder: Path, job_arguments: Sequence[object] = ()) -> Outcome:
    """Return the outcome of a finished run or comparison, from the files in its folder.

    `job_arguments` are the words that name the job in a command: the configuration and KEY=VALUE
    changes. Commands that train again are proposed with them; without them, with the run's own
    config.yaml. A comparison has its next command in its file.
    """
    if (folder / "comparison.json").is_file():
        return _of_comparison(folder, read_format(folder / "comparison.json", COMPARISON))
    record = read_format(folder / "run.json", RUN)
    result = read_json(folder / "result.json")
    job_arguments = job_arguments or (folder / "config.yaml",)
    steps = _next_steps(folder, record, result, job_arguments)
    if (folder / LEADERBOARD).is_file():
        board = read_format(folder / LEADERBOARD, PORTFOLIO)
        # Who named the uses chose them.
        uses_are_default = record["config"]["portfolio"]["uses"] is None
        if uses_are_default:
            steps += _other_uses(board, job_arguments, load(folder / "config.yaml"))
        return _of_portfolio(board, steps)
    return _of_run(record, result, steps)


def _of_comparison(folder: Path, result: Mapping[str, Any]) -> Outcome:
    """Return the decision of comparison.json, which `compare.decide` made from the test figures."""
    decision = result["decision"]
    number = deciding(result)
    preposition = "at"
    if "title" in result:  # the demo's tables are kinds of labels
        preposition = "for"
    meaning = []
    if decision["outcome"] == "no_help":
        meaning.append(DROPPED)
    return Outcome(
        answer=decision["outcome"],
        about=f"Decision {preposition} {result['tables'][number]['name'].lower()}",
        text=decision["text"],
        meaning=meaning,
        next=next_steps(folder, result),
        row=decided_row(result, number),
    )


def _of_portfolio(board: Mapping[str, Any], steps: list[dict[str, str]]) -> Outcome:
    """Return what leaderboard.json decided. The best model may be one without auxiliary data though
    these help another candidate, so whether they were dropped is said separately.
    """
    worth = board["worth"]
    meaning = []
    if board["without_us"]:
        meaning.append(board["without_us"])
    model_is_alone = all(row["alone"] for row in board["candidates"] if row["picks"])
    if worth is not None and model_is_alone:
        meaning.append(DROPPED)
    return Outcome(
        answer=answer(worth),
        about="Decision",
        text=board["decision"],
        meaning=meaning,
        warning=board["warning"],
        next=steps,
    )


def _of_run(
    record: Mapping[str, Any], result: Mapping[str, Any], steps: list[dict[str, str]]
) -> Outcome:
    """Return the result of a single strategy, which cannot show whether auxiliary data help."""
    metric = result["metric"]
    phase = result["phases"][-1]
    text = (
        f"{percent(result['test'].get(metric))} test {metric}: this is the model after step "
        f"{phase['best_step']} of {phase['steps']} in phase {phase['name']}, chosen because it has "
        f"{percent(result['validation'].get(metric))} on the {result['examples']['validation']} "
        "validation examples."
    )
    meaning = []
    if record["config"]["data"]["auxiliary"]:
        meaning.append(ONE_RUN)
    remark = record.get(REMARK)
    if remark:
        meaning.append(capitalised(remark))
    return Outcome("run", "Result of one run", text, meaning, next=steps)


def _next_steps(
    folder: Path,
    record: Mapping[str, Any],
    result: Mapping[str, Any],
    job_arguments: Sequence[object],
) -> list[dict[str, str]]:
    """Return the command that predicts, and the one that compares strategies for the same job, if
    it has auxiliary data and a test set.
    """
    why = "predicts the label of new examples"
    steps = [{"command": command("predict", folder, "INPUTS"), "why": why}]
    if record["config"]["data"]["auxiliary"] and result["test"]:
        why = (
            "checks with several seeds which strategy is best for a network, and whether the "
            "auxiliary data help it"
        )
        steps.append({"command": command("compare", *job_arguments), "why": why})
    return steps


def _other_uses(
    board: Mapping[str, Any], job_arguments: Sequence[object], config: Config
) -> list[dict[str, str]]:
    """Return the command that trains the same job with uses that are no default, if one of them may
    help.

    *Translated* learns from what wrong labels mean. The default use *stacked* reads linear models of
    the sources, which say little if the classes need another learner; *pooled* trains that learner
    on the auxiliary rows.

    The command writes below the output folder of this run, whose configuration is `config`, and reads
    the features that this run has computed. Arguments that name these folders are replaced.
    """
    some_look_wrong = any(source["listed"] for source in board["suspicious"])
    no_linear_model_fits = any(
        source["same_classes"] and source["judge"] != SOURCE_LEARNER
        for source in board["suspicious"]
    )
    if no_linear_model_fits:
        uses = "alone, stacked, pooled, translated"
        why = "also trains on the auxiliary rows, which can help where no linear model fits your classes"
    elif some_look_wrong:
        uses = "alone, stacked, translated"
        why = "also learns from what labels mean to you, which can help where many are wrong"
    else:
        return []
    folders = {"output": Path(config.output) / "more-uses", "data.cache": config.cache}
    others = [word for word in job_arguments if str(word).partition("=")[0].strip() not in folders]
    named = [f"{key}={folder}" for key, folder in folders.items()]
    tried = command("train", *others, f"portfolio.uses=[{uses}]", *named)
    return [{"command": tried, "why": why}]
