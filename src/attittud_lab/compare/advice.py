"""The next command: what to do if a comparison cannot tell, and what --quick left out.

Each advice has a command that can be pasted, and says what it adds and how long that takes.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attittud_lab.compare import words
from attittud_lab.compare.candidates import Candidate, candidates, planned, seeds
from attittud_lab.config.schema import Config
from attittud_lab.files import read_json

_DATA = ("data.seed=", "data.test_seed=", "data.subsets=", "output=")
"""Settings of a command that another split of the data replaces."""


@dataclass(frozen=True)
class Request:
    """What a person typed, for the advice that a comparison ends with."""

    command: tuple[str, ...] = ()
    """The words of the command, without --quick and --fresh."""
    whole: Config | None = None
    """With --quick: the comparison without it."""
    gave_up: str = ""
    """With --quick: what it left out."""

    @property
    def quick(self) -> list[str]:
        """The word --quick, if it was typed."""
        return ["--quick"] if self.whole is not None else []


@dataclass(frozen=True)
class Pace:
    """How long runs take: seconds of one, and how many are trained at the same time."""

    seconds: float
    at_once: int

    def of(self, runs: int) -> float:
        """Return the seconds of this many runs."""
        return runs * self.seconds / max(1, min(self.at_once, runs))


def advice(
    config: Config,
    result: Mapping[str, Any],
    request: Request,
    pace: Pace,
    run: Path,
) -> dict[str, Any]:
    """Return the entries of comparison.json that say what to do next.

    `next` is the next command if the outcome is unclear. `gave_up` and `whole` say what --quick
    left out. `run` is the folder of any finished run.
    """
    entries: dict[str, Any] = {}
    decision = result["decision"]
    taking_part = candidates(config)
    more_seeds = decision["seeds_needed"]
    if request.command and decision["few_examples"]:
        entries["next"] = _more_examples(config, taking_part, request, pace, run)
    elif request.command and more_seeds:
        entries["next"] = _more_seeds(config, taking_part, request, pace, more_seeds)
    if request.whole is not None:
        entries["gave_up"] = request.gave_up
        runs = _runs(request.whole, candidates(request.whole)) - _runs(config, taking_part)
        if runs:
            why = words.whole_comparison(runs, pace.of(runs))
            entries["whole"] = {"command": shlex.join(request.command), "why": why}
    return entries


def _runs(config: Config, taking_part: Sequence[Candidate]) -> int:
    """Return the number of runs of a whole comparison."""
    at_steps, at_seconds = planned(config, taking_part)
    return at_steps + at_seconds


def _more_seeds(
    config: Config,
    taking_part: Sequence[Candidate],
    request: Request,
    pace: Pace,
    count: int,
) -> dict[str, str]:
    """Return the command with more seeds; finished runs are kept."""
    larger = replace(config, compare=replace(config.compare, seeds=count))
    runs = _runs(larger, taking_part) - _runs(config, taking_part)
    typed = [word for word in request.command if not word.startswith("compare.seeds=")]
    command = [*typed, f"compare.seeds={count}", *request.quick]
    why = words.more_seeds(count - len(seeds(config)), pace.of(runs))
    return {"command": shlex.join(command), "why": why}


def _more_examples(
    config: Config,
    taking_part: Sequence[Candidate],
    request: Request,
    pace: Pace,
    run: Path,
) -> dict[str, str]:
    """Return the command that tests on more examples: another split for every seed.

    Where test examples are not drawn from all examples, no command helps, only more labels.
    """
    parts = read_json(run / "data.json")["primary"]
    data = config.data
    if parts["test"]["source"] != parts["train"]["source"]:
        return {"why": words.more_test_labels(raise_test=isinstance(data.primary.test, int))}
    command = [word for word in request.command if not word.startswith(_DATA)]
    command.append("data.seed=null")
    if data.test_seed is not None:
        command.append("data.test_seed=null")
    if data.subsets is not None:
        command.append("data.subsets=null")
    # The finished runs have another split, so they cannot stay in the same folder.
    command.append(f"output={Path(config.output) / 'new-splits'}")
    command += request.quick
    why = words.new_splits(pace.of(_runs(config, taking_part)))
    return {"command": shlex.join(command), "why": why}
