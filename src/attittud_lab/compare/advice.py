"""The next command: more seeds if a comparison cannot tell, and the whole one after --quick.

Each advice has a command that can be pasted, and says what it adds and how long that takes.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from attittud_lab.compare import words
from attittud_lab.compare.candidates import candidates, planned
from attittud_lab.config.schema import Config


@dataclass(frozen=True)
class Request:
    """What a person typed, for the advice that a comparison ends with."""

    command: tuple[str, ...] = ()
    """The words of the command, without --quick and --fresh."""
    whole: Config | None = None
    """With --quick: the comparison without it."""
    gave_up: str = ""
    """With --quick: what it left out."""


def advice(
    config: Config, result: Mapping[str, Any], request: Request, seconds: float
) -> dict[str, Any]:
    """Return the entries of comparison.json that say what to do next.

    `next` is the command with more seeds if the outcome is unclear. `gave_up` and `whole` say what
    --quick left out. `seconds` is the time of a run, divided by how many run at the same time.
    """
    entries: dict[str, Any] = {}
    runs = _runs(config)
    more_seeds = result["decision"]["seeds_needed"]
    if request.command and more_seeds:
        larger = replace(config, compare=replace(config.compare, seeds=more_seeds))
        more_runs = _runs(larger) - runs
        command = [word for word in request.command if not word.startswith("compare.seeds=")]
        command.append(f"compare.seeds={more_seeds}")
        if request.whole is not None:
            command.append("--quick")
        why = words.more_seeds(more_seeds - config.compare.seeds, more_runs * seconds)
        entries["next"] = {"command": shlex.join(command), "why": why}
    if request.whole is not None:
        entries["gave_up"] = request.gave_up
        more_runs = _runs(request.whole) - runs
        if more_runs:
            why = words.whole_comparison(more_runs, more_runs * seconds)
            entries["whole"] = {"command": shlex.join(request.command), "why": why}
    return entries


def _runs(config: Config) -> int:
    """Return the number of all runs of a comparison."""
    return sum(planned(config, candidates(config)))
