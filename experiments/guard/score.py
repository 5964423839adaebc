"""Forgetting at a matched gain: curves, their comparison over paired seeds, and what stage 1 chooses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any, Literal

from scipy.stats import t as student

from .methods import METHODS, PROJECTIONS, REPLAYS
from .train import DRIFT, RATES

Line = Mapping[str, Any]
Point = tuple[float, float, float]
"""Step, gain and forgetting."""
SHARE, SHARES = 0.7, (0.5, 0.7, 0.9)
WIKITEXT = "wikitext"
Measure = Literal["retained", "wikitext", "drift"]
AVERAGED, LOWER = "averaging, best rate", "plain, best rate"


def gain(line: Line, losses: Mapping[str, float]) -> float:
    """How far the task has come: a fall of its loss, a rise where pairs are to be forgotten."""
    moved = line["start"]["new"] - losses["new"]
    return -moved if line["task"] == "b" else moved


def forgetting(line: Line, losses: Mapping[str, float], measure: Measure = "retained") -> float:
    """The rise of the loss on retained sets, or the drift of predictions on them; wikitext-2 counts for itself."""
    retained = [name for name in losses if name not in ("new", WIKITEXT, WIKITEXT + DRIFT)]
    names = [name for name in retained if (measure == "drift") == name.endswith(DRIFT)]
    return fmean(losses[name] - line["start"][name] for name in ([WIKITEXT] if measure == "wikitext" else names))


def curve(line: Line, measure: Measure = "retained") -> list[Point]:
    """A run from its start to its last checkpoint."""
    found = [
        (float(at["step"]), gain(line, at["losses"]), forgetting(line, at["losses"], measure))
        for at in line["checkpoints"]
    ]
    return [(0.0, 0.0, 0.0), *found]


def averaged(line: Line, measure: Measure = "retained") -> list[Point]:
    """From the start weights to the end weights; every point needs all steps."""
    last = line["checkpoints"][-1]
    points = [*line["averages"].values(), last["losses"]]
    found = [(float(last["step"]), gain(line, x), forgetting(line, x, measure)) for x in points]
    return [(0.0, 0.0, 0.0), *found]


def at_gain(points: Sequence[Point], wanted: float, steps: float = math.inf) -> float | None:
    """Forgetting where the curve first reaches a gain, linear between its points; None if it does not within these steps."""
    for (step0, gain0, forgot0), (step1, gain1, forgot1) in pairwise(points):
        if gain1 < wanted or gain0 >= wanted:
            continue
        share = (wanted - gain0) / (gain1 - gain0)
        return forgot0 + share * (forgot1 - forgot0) if step0 + share * (step1 - step0) <= steps else None
    return None


@dataclass(frozen=True)
class Ratio:
    """Forgetting of a method over that of another one, with the interval of Fieller over paired seeds."""

    value: float
    low: float
    high: float

    @property
    def text(self) -> str:
        ends = ("any" if math.isinf(x) else f"{x:.2f}" for x in (self.low, self.high))
        return f"{self.value:.2f} ({' to '.join(ends)})"


def ratio(own: Sequence[float], other: Sequence[float]) -> Ratio | None:
    """None where a ratio says nothing: the other one forgets nothing on average."""
    n, a, b = len(own), fmean(own), fmean(other)
    if n < 2 or b <= 0:
        return None
    covariance = [sum((x - fmean(u)) * (y - fmean(v)) for x, y in zip(u, v, strict=True)) / (n - 1) / n
                  for u, v in ((own, own), (own, other), (other, other))]  # fmt: skip
    saa, sab, sbb = covariance
    q = float(student.ppf(0.975, n - 1)) ** 2
    # All r for which the mean of own - r * other does not differ from 0: a quadratic inequality.
    x, y, z = b * b - q * sbb, a * b - q * sab, a * a - q * saa
    inside = y * y - x * z
    if x <= 0 or inside < 0:
        return Ratio(a / b, -math.inf, math.inf)
    root = math.sqrt(inside)
    return Ratio(a / b, (y - root) / x, (y + root) / x)


def less(own: Sequence[float], other: Sequence[float]) -> bool:
    """Whether the first forgets less, by the 95 % interval of the paired difference: Fieller's interval is then below 1."""
    differences = [a - b for a, b in zip(own, other, strict=True)]
    return (
        len(differences) > 1
        and fmean(differences) + float(student.ppf(0.975, len(own) - 1)) * stdev(differences) / math.sqrt(len(own)) < 0
    )


@dataclass(frozen=True)
class Asked:
    """Which forgetting is asked for."""

    task: str
    method: str
    m: int = 0
    rate: float | None = None
    minutes: bool = False
    measure: Measure = "retained"
    lora: bool = False
    share: float = SHARE
    gain: float | None = None
    """Nats, instead of a share of plain's gain."""


class Results:
    """All lines, and the scores that follow from them."""

    def __init__(self, lines: Iterable[Line], times: Mapping[str, float]) -> None:
        self.lines, self.times = list(lines), dict(times)
        self._scores: dict[Any, list[float | None]] = {}

    def some(self, **wanted: Any) -> list[Line]:
        return [line for line in self.lines if all(line[name] == value for name, value in wanted.items())]

    def wanted_gain(self, task: str, *, lora: bool, seeds: Sequence[int], share: float = SHARE) -> float | None:
        """The share of what plain reaches in the end, at the rate that brings it farthest."""
        finals = []
        for rate in RATES:
            found = [
                line for line in self.some(task=task, method="plain", rate=rate, lora=lora) if line["seed"] in seeds
            ]
            if found:
                finals.append(fmean(gain(line, line["checkpoints"][-1]["losses"]) for line in found))
        return share * max(finals) if finals else None

    def budget(self, task: str, method: str, lora: bool, *, minutes: bool) -> float:
        """Steps that a method may take: as many as plain takes, or as many as fit into plain's time."""
        plain = self.some(task=task, method="plain", lora=lora)
        steps = float(plain[0]["checkpoints"][-1]["step"]) if plain else math.inf
        if not minutes:
            return steps
        own, base = (self.times.get(f"{task}/{name}") for name in (method, "plain"))
        return math.nan if own is None or base is None else steps * base / own

    def scores(self, asked: Asked, seeds: Sequence[int]) -> list[float | None]:
        """Forgetting by seed; None where a run is missing or does not reach the gain."""
        known = (asked, tuple(seeds))
        if known not in self._scores:
            self._scores[known] = self._compute(asked, seeds)
        return self._scores[known]

    def _compute(self, asked: Asked, seeds: Sequence[int]) -> list[float | None]:
        wanted = asked.gain
        if wanted is None:
            wanted = self.wanted_gain(asked.task, lora=asked.lora, seeds=seeds, share=asked.share)
        if wanted is None:
            return [None] * len(seeds)
        if asked.method in (LOWER, AVERAGED):
            every = [self._by_seed(replace(asked, rate=rate), seeds, wanted) for rate in RATES]
            whole = [found for found in every if None not in found]
            return min(whole, key=lambda found: fmean(x or 0.0 for x in found), default=[None] * len(seeds))
        return self._by_seed(asked, seeds, wanted)

    def _by_seed(self, asked: Asked, seeds: Sequence[int], wanted: float) -> list[float | None]:
        name = "plain" if asked.method in (LOWER, AVERAGED) else asked.method
        steps = self.budget(asked.task, name, asked.lora, minutes=asked.minutes)
        more: dict[str, Any] = {} if asked.rate is None else {"rate": asked.rate}
        more |= {"m": asked.m} if METHODS[name].protects else {}
        found = list[float | None]()
        for seed in seeds:
            lines = self.some(task=asked.task, method=name, seed=seed, lora=asked.lora, **more)
            if asked.method == AVERAGED:
                points = [averaged(line, asked.measure) for line in lines if "averages" in line]
            else:
                points = [curve(line, asked.measure) for line in lines]
            found.append(at_gain(points[0], wanted, steps) if points else None)
        return found

    # ------------------------------------------------------------------------------------------------ stage 1

    def chosen(self) -> dict[str, Any]:
        """The rate of each method, the best replay and the best two projections, by stage 1; empty before it is done."""
        seeds = [TUNING]
        best: dict[str, tuple[float, float]] = {}
        for method in METHODS:
            scored = [(self.scores(Asked("a", method, TUNED_M, rate), seeds)[0], rate) for rate in RATES]
            if self.some(task="a", method=method, seed=TUNING, lora=False) == []:
                return {}
            known = [(score, rate) for score, rate in scored if score is not None]
            best[method] = min(known, default=(math.inf, RATES[-1]))  # none reaches the gain: the fastest
        rank = {name: best[name][0] for name in best}
        return {
            "rates": {name: rate for name, (_, rate) in best.items()},
            "scores": rank,
            "replay": min(REPLAYS, key=rank.__getitem__),
            "projections": sorted(PROJECTIONS, key=rank.__getitem__)[:2],
        }


TUNING, TUNED_M = 100, 32
"""The seed and the number of protected examples of stage 1."""
