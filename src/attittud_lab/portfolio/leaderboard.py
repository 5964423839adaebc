"""leaderboard.json: the score of each candidate with its interval, and what the auxiliary data were worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attittud_lab.config.schema import to_dict
from attittud_lab.portfolio.candidates import PRIMARY_ONLY, PortfolioCandidate
from attittud_lab.portfolio.choose import Curve, HeldOut, Numbers

NAME = "leaderboard.json"
VERSION = 1
RESAMPLES = 500
"""How many draws of the held-out examples an interval is made from."""
FEWEST_GROUPS = 6
"""Draws of fewer groups repeat each other, so their interval would say nothing about other groups."""


@dataclass(frozen=True)
class Chance:
    """The chance that auxiliary data help, from the out-of-fold predictions after the first rung."""

    intercept: float
    slope: float

    def of(self, evidence: float) -> float:
        return 1 / (1 + math.exp(-max(-50.0, min(50.0, self.intercept + self.slope * evidence))))


CHANCE = Chance(intercept=-0.68, slope=0.38)
"""The chance that the model is more than half a point better than primary_only with folds; calibrated on 29 development pairs."""
ROUGH = "it was calibrated for the default portfolio.rungs, portfolio.looks and portfolio.candidates, and this job has others"
_LEAST_VARIANCE = 1e-4
"""The least variance of a score: the standard error would vanish where the score is nearly 0 or 1."""


@dataclass
class Standing:
    """A candidate, and how far it was trained."""

    candidate: PortfolioCandidate
    rung: int = 0
    """How many rungs it has reached; the last one is the end of training."""
    steps: int = 0
    """Steps of each of its runs."""
    seconds: float = 0.0
    """Training time of all its runs."""
    diverged: str | None = None
    looks: dict[int, Tensor] = field(default_factory=dict)
    """Out-of-fold outputs, n x classes, at the looks that are still needed."""
    curve: Curve | None = None
    """None where it diverged."""

    @property
    def count(self) -> int:
        """How many looks there were."""
        return 0 if self.curve is None else len(self.curve.scores)

    @property
    def outputs(self) -> Tensor:
        """The out-of-fold outputs at the best look."""
        assert self.curve is not None
        return self.looks[self.curve.best]


def needed_looks(curve: Curve, counts: Sequence[int]) -> set[int]:
    """Return the looks whose outputs are compared later: the best look after each of these numbers of looks."""
    return {curve.first(count).best for count in counts if count <= len(curve.scores)}


def lowest_losses(standings: Mapping[str, Standing]) -> dict[str, float]:
    """Return the lowest smoothed log-loss of each candidate that has not diverged."""
    return {label: standing.curve.lowest_loss for label, standing in standings.items() if standing.curve is not None}


def chance(standings: Mapping[str, Standing], held_out: HeldOut, *, usual: bool = True) -> dict[str, Any] | None:
    """Estimate the chance that auxiliary data help; None if nothing can be compared.

    `usual`: the first rung is the one that the formula was calibrated on, with the default looks and candidates.

    The evidence is how far primary_only is behind, in standard errors: its score behind the best score of a candidate with
    auxiliary data, and its log-loss behind the lowest one, which is compared example by example. (Raw differences say less:
    their size depends on the labels and on how far training has come.)
    """
    losses = lowest_losses(standings)
    others = [label for label in losses if label != PRIMARY_ONLY]
    if PRIMARY_ONLY not in losses or not others:
        return None
    plain, best = standings[PRIMARY_ONLY], standings[min(others, key=lambda label: losses[label])]
    tops = {label: max(score for score, _ in _curve(standings[label]).smoothed) for label in losses}
    score = tops[PRIMARY_ONLY]
    error = math.sqrt(max(score * (1 - score), _LEAST_VARIANCE) / len(held_out.targets))
    ahead = (max(tops[label] for label in others) - score) / error if math.isfinite(score) else 0.0
    behind = held_out.losses(held_out.likely(plain.outputs)) - held_out.losses(held_out.likely(best.outputs))
    spread = float(behind.std(ddof=1)) if len(behind) > 1 else 0.0
    t = float(behind.mean()) / (spread / math.sqrt(len(behind))) if spread > 0 else 0.0
    evidence = ahead + t
    gain = losses[PRIMARY_ONLY] - losses[best.candidate.label]
    return {"value": CHANCE.of(evidence), "evidence": evidence, "gain": gain, "calibrated": usual}


def _curve(standing: Standing) -> Curve:
    assert standing.curve is not None
    return standing.curve


def chance_words(found: Mapping[str, Any] | None, when: str = "") -> str:
    """Say the chance; `when` says what it was estimated from."""
    if found is None:
        return ""
    remarks = [when] * bool(when) + ([] if found["calibrated"] else [f"rough: {ROUGH}"])
    more = f" ({'; '.join(remarks)})" if remarks else ""
    return f"chance that the auxiliary data help: {found['value']:.0%}{more}"


class Intervals:
    """95 % intervals of out-of-fold scores, from draws of the held-out examples (or of their groups, if there are any).

    All candidates get the same draws, so that differences are paired. The intervals describe other examples of the same kind;
    they ignore that the same examples chose the best candidate. With fewer than `FEWEST_GROUPS` groups they are undefined.
    """

    def __init__(self, held_out: HeldOut, groups: Sequence[str] | None, seed: int) -> None:
        generator, count = np.random.default_rng(seed), len(held_out.targets)
        self.held_out, self.few = held_out, None if groups is None else _few(groups)
        if groups is None:
            self.draws = [generator.integers(count, size=count) for _ in range(RESAMPLES)]
            return
        number = np.unique(groups, return_inverse=True)[1]
        members = [np.flatnonzero(number == group) for group in range(number.max() + 1)]
        drawn = (generator.integers(len(members), size=len(members)) for _ in range(RESAMPLES))
        self.draws = [np.concatenate([members[group] for group in chosen]) for chosen in drawn]

    def scores(self, outputs: Tensor) -> Numbers:
        """The score in each draw."""
        if self.few is not None:
            return np.full(len(self.draws), math.nan)
        score = {"accuracy": _accuracy, "macro_f1": _macro_f1, "auc": _auc}[self.held_out.metric]
        return score(outputs.double().numpy(), self.held_out.targets.numpy(), self.held_out.folds, self.draws)

    @staticmethod
    def ends(scores: Numbers) -> tuple[float, float]:
        defined = scores[np.isfinite(scores)]
        if not len(defined):
            return math.nan, math.nan
        low, high = np.quantile(defined, [0.025, 0.975])
        return float(low), float(high)


def _few(groups: Sequence[str]) -> int | None:
    """How many groups there are, if they are too few."""
    count = len(set(groups))
    return count if count < FEWEST_GROUPS else None


def _predicted(outputs: Numbers, targets: np.ndarray) -> np.ndarray:
    return outputs.argmax(1) if targets.ndim == 1 else (outputs > 0).astype(np.int64)


def _accuracy(outputs: Numbers, targets: np.ndarray, _folds: np.ndarray, draws: Sequence[np.ndarray]) -> Numbers:
    right = (_predicted(outputs, targets) == targets).astype(np.float64).reshape(len(targets), -1).mean(1)
    return np.array([right[rows].mean() for rows in draws])


def _macro_f1(outputs: Numbers, targets: np.ndarray, _folds: np.ndarray, draws: Sequence[np.ndarray]) -> Numbers:
    predicted, classes = _predicted(outputs, targets), np.arange(outputs.shape[1])
    is_, said = (v == 1 if targets.ndim == 2 else v[:, None] == classes for v in (targets, predicted))
    both = is_ & said
    found = []
    for rows in draws:
        hits, total = both[rows].sum(0), is_[rows].sum(0) + said[rows].sum(0)
        # As in an evaluation: a label without any examples counts as 0, a class without any examples does not count.
        found.append((2 * hits / np.maximum(total, 1))[(total > 0) | (targets.ndim == 2)].mean())
    return np.array(found)


def _auc(outputs: Numbers, targets: np.ndarray, folds: np.ndarray, draws: Sequence[np.ndarray]) -> Numbers:
    # Outputs are sorted once. Counting how often each was drawn is ten times as fast as sorting every draw.
    levels = [np.unique(column, return_inverse=True)[1] for column in outputs.T]
    unknown: np.ndarray = np.asarray(np.isnan(outputs).any(1))

    def ordered(level: np.ndarray, wanted: np.ndarray) -> float:
        """Pairs of a positive and a lower negative example; a tie is half a pair."""
        positive, negative = (np.bincount(level[wanted == is_], minlength=len(outputs)) for is_ in (1, 0))
        return float(positive @ (np.cumsum(negative) - negative / 2))

    def area(rows: np.ndarray) -> float:
        wanted = targets[rows]
        positive, negative = wanted.sum(0), (1 - wanted).sum(0)
        both = (positive > 0) & (negative > 0)
        if not both.any() or unknown[rows].any():
            return math.nan
        pairs = np.array([ordered(levels[label][rows], wanted[:, label]) for label in np.flatnonzero(both)])
        return float((pairs / (positive[both] * negative[both])).mean())

    def one(rows: np.ndarray) -> float:
        areas = np.array([area(rows[folds[rows] == fold]) for fold in np.unique(folds[rows])])
        return float(np.nanmean(areas)) if np.isfinite(areas).any() else math.nan

    return np.array([one(rows) for rows in draws])


Named = Callable[[int], dict[str, Any]]
"""The phase and the step of a look."""


def rows(
    standings: Sequence[Standing], intervals: Intervals, where: Named, picks: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Return a row for each candidate, from the best to the worst; candidates that diverged are last.

    As in the choice of the model, a candidate that reached a later rung is better than one that stopped before. So the first
    row is the candidate that was chosen, and the first row with auxiliary data is the one that `worth` compares.
    """
    order = sorted(standings, key=rank, reverse=True)
    plain = next((s for s in standings if s.candidate.label == PRIMARY_ONLY and s.curve is not None), None)
    found = []
    for standing in order:
        row: dict[str, Any] = {
            "label": standing.candidate.label,
            "settings": to_dict(standing.candidate.strategy),
            "rungs": standing.rung,
            "steps": standing.steps,
            "seconds": standing.seconds,
            "diverged": standing.diverged,
            "picks": picks.get(standing.candidate.label, 0),
        }
        if standing.curve is not None:
            best = standing.curve.best
            figures = intervals.held_out.figures(standing.outputs)
            low, high = intervals.ends(intervals.scores(standing.outputs))
            row |= {"score": figures[intervals.held_out.metric], "low": low, "high": high, "loss": figures["loss"]}
            row["ranking"] = standing.curve.value[0]
            row |= {"best": {"look": best, **where(best)}}
            row["curve"] = {"score": list(standing.curve.scores), "loss": list(standing.curve.losses)}
            if plain is not None and plain is not standing:
                row["to_primary_only"] = _to_plain(standing, plain, intervals)
        found.append(row)
    return found


def rank(standing: Standing) -> tuple[bool, int, tuple[float, float]]:
    """Order candidates, larger is better: not diverged, then the rung reached, then the smoothed score and log-loss."""
    curve = standing.curve
    return (True, standing.rung, curve.value) if curve else (False, 0, (-math.inf, 0.0))


def ranking_words(metric: str) -> str:
    """Say what ranks candidates."""
    return f"their ranking score: the mean out-of-fold {metric} of the evaluations around their best step"


def like(plain: Standing, standing: Standing) -> Tensor:
    """Return the outputs of primary_only at its best step among those that another candidate was trained for."""
    assert plain.curve is not None
    return plain.looks[plain.curve.first(standing.count).best]


def _to_plain(standing: Standing, plain: Standing, intervals: Intervals) -> dict[str, float]:
    """Return a candidate minus primary_only; if the candidate stopped early, primary_only is taken at the same step."""
    return _difference(standing.outputs, like(plain, standing), intervals)


def _difference(mine: Tensor, other: Tensor, intervals: Intervals) -> dict[str, float]:
    first, second = (intervals.held_out.figures(outputs)[intervals.held_out.metric] for outputs in (mine, other))
    low, high = intervals.ends(intervals.scores(mine) - intervals.scores(other))
    return {"difference": first - second, "low": low, "high": high}


def worth(standings: Sequence[Standing], intervals: Intervals) -> dict[str, Any] | None:
    """Return the best candidate with auxiliary data minus primary_only: out-of-fold scores at the same share of the steps."""
    usable = [standing for standing in standings if standing.curve is not None]
    plain = next((standing for standing in usable if standing.candidate.label == PRIMARY_ONLY), None)
    others = [standing for standing in usable if standing is not plain]
    if plain is None or not others:
        return None
    best = max(others, key=rank)
    ends = _to_plain(best, plain, intervals)
    few = {} if intervals.few is None else {"few_groups": intervals.few}
    return {"best": best.candidate.label, "of": len(others), "share": best.count / plain.count, **ends, **few}


def guess(scores: Tensor, intervals: Intervals) -> dict[str, Any]:
    """Compare a model with the best guess that is the same for every example: the most frequent class, or answer for each label.

    A model whose score is not defined is not shown to be better.
    """
    held_out = intervals.held_out
    targets, task, metric = held_out.targets, held_out.task, held_out.metric
    if task.several and metric == "macro_f1":  # a label that is never given has an F1 of 0, however rare it is
        always, name = torch.ones(len(task.classes)), None
    elif task.several:
        always, name = torch.logit(targets.double().mean(0), 1e-6), None
    else:
        counts = targets.bincount(minlength=len(task.classes))
        always, name = (counts + 1).double().log(), str(task.classes[int(counts.argmax())])
    outputs = always.float().expand(len(targets), -1)
    constant = held_out.figures(outputs)[metric]
    difference = held_out.figures(scores)[metric] - constant
    # The area of a constant is one half in every draw.
    drawn = intervals.scores(scores) - (0.5 if metric == "auc" else intervals.scores(outputs))
    low, high = intervals.ends(drawn)
    # Without an interval, a model that is ahead gets the benefit of the doubt.
    beaten = (difference if math.isnan(low) else low) > 0
    return {"class": name, "score": constant, "difference": difference, "low": low, "high": high, "beaten": beaten}


def guess_words(found: Mapping[str, Any], score: float, metric: str, cure: str) -> str:
    """Say that a model is not shown to be better than a guess; empty if it is shown."""
    if found["beaten"]:
        return ""
    start = "The model is not shown to be better than guessing:"
    if math.isnan(found["difference"]):
        return f"{start} its out-of-fold {metric} is not defined on these labels. {cure}"
    same = (
        f"Always guessing {found['class']}, the most frequent class," if found["class"] else "The best constant guess"
    )
    return f"{start} its out-of-fold {metric} is {100 * score:.1f} %. {same} has {100 * found['score']:.1f} %. {cure}"


def decision(
    final: str,
    winner: str,
    picks: Mapping[str, int],
    found: Mapping[str, Any] | None,
    metric: str,
    members: str = "folds",
) -> str:
    """Say whether the auxiliary data helped, and what was trained. All metrics are shares, so differences are in points.

    `members` of an ensemble are the networks of the folds, or one network for each candidate (refit).
    """
    if final == "ensemble" and len(picks) == 1 and members == "folds":
        model = f"The model is a mean of the networks of {winner}, one from each fold."
    elif final == "ensemble" and len(picks) > 1:
        parts = ", ".join(f"{label} ({count} of {sum(picks.values())})" for label, count in picks.items())
        model = f"The model is a mean of {parts}."
    else:
        model = f"The model is {winner}, trained on all labels."
    if found is None and winner != PRIMARY_ONLY:
        return f"What the auxiliary data were worth is not known: {PRIMARY_ONLY} diverged. {model}"
    if found is None:
        return f"{model} There was nothing to compare {PRIMARY_ONLY} with."
    if math.isnan(found["difference"]):
        return f"What the auxiliary data were worth is not known: {metric} is not defined on these labels. {model}"
    difference, low, high = (points(found[name]) for name in ("difference", "low", "high"))
    groups = f"no interval: only {found['few_groups']} groups are held out" if "few_groups" in found else ""
    gain = f"{difference} points of out-of-fold {metric} ({groups or f'95 % interval {low} to {high}'})"
    early = found["share"] < 1
    answer = "It is unclear whether the auxiliary data helped"
    if found["low"] > 0:
        answer = "The auxiliary data helped only at first" if early else "The auxiliary data helped"
    elif found["high"] < 0:
        answer = "The auxiliary data did not help"
    best = f"the best candidate with auxiliary data ({found['best']})"
    when = f", both after {found['share']:.0%} of the steps" if early else ""
    too_good = " They may be a little too good, because the same held-out labels chose that candidate."
    chosen = too_good if found["of"] > 1 else ""
    return f"{answer}: {gain}. {model} The points are {best} minus {PRIMARY_ONLY}{when}.{chosen}"


def points(value: float) -> str:
    """Format a difference of shares in points, with a sign; adding 0 makes a negative zero positive."""
    return f"{round(100 * value, 1) + 0.0:+.1f}"
