"""The rows that are compared: how each changes the job of a pair, and which of them belong together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

SINGLE, ENSEMBLE = "single", "ensemble"
FINALS = (SINGLE, ENSEMBLE)
ABLATION_SEEDS = 7
"""The first seeds of the round."""
CORE, ABLATION = "core", "ablation"
WEIGHTS: dict[int, tuple[tuple[float, ...], ...]] = {
    1: ((0.03,), (0.1,), (0.2,), (0.4,), (0.7,), (1,), (2,), (4,)),
    2: ((0.1, 0.1), (0.4, 0.4), (1, 1), (3, 3), (1, 0), (0, 1), (1, 0.3), (0.3, 1)),
}
"""The eight runs of tuned multitask by number of sources, as in the earlier rounds: weights of their losses."""
CONTROL_WEIGHTS = {4: (0.1, 0.4, 1.0, 4.0), 6: (0.1, 0.2, 0.4, 1.0, 2.0, 4.0)}
"""As many weights of multitask as the portfolio has candidates with all sources: 4, or 6 where tasks share their classes."""
GUIDED = ("drop_harmful", "orthogonal", "auto")
"""The strategies of ATTITTUD that may be candidates."""
ONE_THREAD = "training.threads=1"
UNLIMITED = "100000 runs"  # the clock must decide nothing here


@dataclass(frozen=True)
class Task:
    """What a row has to know about a pair."""

    sources: tuple[str, ...]
    shares: bool


@dataclass(frozen=True)
class Row:
    """One configuration of the portfolio; `single` and `ensemble` are made from the same trials."""

    name: str
    about: str
    group: str = CORE
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the section `portfolio`."""
    finals: tuple[str, ...] = FINALS
    without_primary_only: bool = False

    def overrides(self, task: Task, seed: int, final: str) -> list[str]:
        """Settings behind a job, as on the command line."""
        settings = self.settings | {"final": final, "budget": UNLIMITED}
        if "candidates" in settings:
            settings["candidates"] = settings["candidates"](task)
        found = [f"portfolio.{key}={_value(value)}" for key, value in settings.items()]
        return [f"seed={seed}", "strategy=portfolio", ONE_THREAD, *found]


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def multitask(task: Task, weight: float = 1.0, **more: Any) -> dict[str, Any]:
    head = {"head": "shared"} if task.shares else {}
    return {"name": "multitask", "auxiliary_weight": weight, **head, **more}


def control(task: Task) -> list[dict[str, Any]]:
    """Multitask alone, with as many candidates as the portfolio has: weights, and each of several sources alone."""
    found = [multitask(task, weight) for weight in CONTROL_WEIGHTS[6 if task.shares else 4]]
    return found + [multitask(task, sources=[name]) for name in task.sources if len(task.sources) > 1]


def usual(task: Task, *, own: bool = True, guided: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The candidates that a portfolio has by default, without or with some of them."""
    found = [multitask(task), {"name": "pretrain", **({"head": "shared"} if task.shares else {})}]
    found += [multitask(task, weight) for weight in (0.1, 4.0)]
    if own and task.shares:
        found += [{"name": "multitask", "auxiliary_weight": weight, "head": "own"} for weight in (1.0, 4.0)]
    found += [{"name": name, **({"head": "shared"} if task.shares else {})} for name in guided]
    return found + [multitask(task, sources=[name]) for name in task.sources if len(task.sources) > 1]


PORTFOLIO, CONTROL, PRIMARY_FOLDS = "portfolio", "control", "primary_folds"
_ALL = (
    Row(PORTFOLIO, "the portfolio with its defaults"),
    Row(
        CONTROL,
        "`primary_only` and multitask alone, with folds and as many candidates",
        settings={"candidates": control},
    ),
    Row(
        PRIMARY_FOLDS,
        "`primary_only` alone, with folds",
        settings={"candidates": lambda _: []},
        finals=(SINGLE,),
    ),
    Row("without_halving", "every candidate is trained to the end", ABLATION, {"rungs": []}),
    Row("without_folds", "one fifth of the labels is held out, once", ABLATION, {"one_split_above": 0}),
    Row("without_averaging", "weights are not averaged over steps", ABLATION, {"averaging": 0.0}),
    Row(
        "without_own_heads",
        "no separate output layers for auxiliary tasks",
        ABLATION,
        {"candidates": lambda t: usual(t, own=False)},
    ),
    Row("without_attittud", "no strategy of ATTITTUD, as in the defaults", ABLATION, {"candidates": usual}),
    Row(
        "with_attittud",
        f"with {', '.join(f'`{name}`' for name in GUIDED)} as further candidates",
        ABLATION,
        {"candidates": lambda t: usual(t, guided=GUIDED)},
    ),
    Row("without_primary_only", "`primary_only` is left out", ABLATION, without_primary_only=True),
)
ROWS = {row.name: row for row in _ALL}
PRIMARY_ONLY, MULTITASK = "primary_only", "multitask"
REFERENCES = (PRIMARY_ONLY, MULTITASK)
"""The rows of reference (a), each a training run on a fixed split (multitask: eight)."""


def lines(groups: Sequence[str]) -> list[str]:
    """The names of all lines that a pair and seed should have."""
    found = list(REFERENCES) if CORE in groups else []
    for row in ROWS.values():
        if row.group in groups:
            found += [f"{row.name}/{final}" for final in row.finals]
    return found


def reference_overrides(task: Task, seed: int, weights: Sequence[float] | None) -> list[str]:
    """One run of reference (a); without weights `primary_only`."""
    if weights is None:
        return [f"seed={seed}", "strategy=primary_only", ONE_THREAD]
    found = [f"data.auxiliary.{name}.weight={weight}" for name, weight in zip(task.sources, weights, strict=True)]
    return [f"seed={seed}", "strategy=multitask", ONE_THREAD, *found]
