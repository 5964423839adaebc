"""What portfolios of other candidates, rungs and models would have reached: `python -m experiments.portfolio.policies FOLDER`.

It reads what `every.py` wrote and trains nothing. Choices are made by the product's own functions from the same numbers (outputs
for an ensemble are rounded to 16 bits, test probabilities to 8), so a policy with the product's defaults is the product.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attittud_lab.config.schema import CandidateConfig, Config, PhaseConfig, PortfolioConfig, TrainingConfig
from attittud_lab.data.tasks import Examples, Task
from attittud_lab.portfolio.budget import rung_look
from attittud_lab.portfolio.candidates import PRIMARY_ONLY, PortfolioCandidate
from attittud_lab.portfolio.choose import Curve, HeldOut, greedy, survivors
from attittud_lab.portfolio.leaderboard import Standing, chance
from attittud_lab.runs.result import provenance

from .every import REFERENCE, THEN
from .outcome import (
    BETTER,
    WORTHWHILE,
    Compared,
    Foretold,
    Values,
    auroc,
    calibrated,
    compared,
    interval,
    named,
    reliability,
)
from .rows import CONTROL_WEIGHTS, ENSEMBLE, GUIDED, MULTITASK, REFERENCES, SINGLE

Likely = np.ndarray[Any, np.dtype[np.float64]]
Rungs = tuple[tuple[float, float], ...]
RUNGS: Rungs = tuple((rung.at, rung.keep) for rung in PortfolioConfig().rungs)
FOLDS, REFITS = "folds", "refits"
"""Further models: the fold models of the winner; an ensemble of networks that were trained on all labels."""


@dataclass(frozen=True)
class Trained:
    """A candidate that was trained to the end, or until it diverged."""

    label: str
    curve: Curve
    kept: list[int]
    """The looks of which outputs are there."""
    arrays: Mapping[str, np.ndarray]
    steps: np.ndarray
    seconds: list[float]

    def until(self, count: int) -> Curve | None:
        """The curve of the first looks; None where it had diverged by then."""
        curve = self.curve
        return curve.first(count) if count <= len(curve.scores) else None

    def at(self, what: str, look: int) -> np.ndarray:
        """An array of a look, or of the nearest one of which it is there."""
        found = self.arrays[what]
        return np.asarray(found[min(range(len(found)), key=lambda number: abs(self.kept[number] - look))])

    def outputs(self, look: int) -> Tensor:
        """The outputs for held-out labels."""
        found = torch.from_numpy(self.at("outputs", look).astype(np.float32))
        return torch.cat([found, torch.zeros(len(found), 1)], 1)

    def probabilities(self, what: str, look: int) -> Likely:
        """Of the test set."""
        found = self.at(what, look).astype(np.float64) / 255
        return np.concatenate([found, 1 - found.sum(1, keepdims=True)], 1)


@dataclass(frozen=True)
class Known:
    """All that is known of one pair and seed."""

    pair: str
    seed: int
    trained: dict[str, Trained]
    held_out: HeldOut
    test: np.ndarray
    references: dict[str, Any]
    sharing: bool

    @cached_property
    def config(self) -> Config:
        """A job of as many steps and looks."""
        steps = next(iter(self.trained.values())).steps
        training = TrainingConfig(mode="joint", guided=PhaseConfig(steps=int(steps[-1])))
        return Config(training=training, portfolio=PortfolioConfig(looks=len(steps)))

    @property
    def folds(self) -> int:
        return len(np.unique(self.held_out.folds))

    def accuracy(self, likely: Likely) -> float:
        return float(100 * (likely.argmax(1) == self.test).mean())

    def likely(self, trained: Trained, look: int) -> Likely:
        """Out-of-fold probabilities."""
        return self.held_out.likely(trained.outputs(look))


def read(folder: Path, only: Iterable[str] | None = None, *, needs_reference: bool = True) -> list[Known]:
    """All pairs and seeds that have all their files; reference (a) may be missing where it is not needed."""
    groups: dict[tuple[str, int], dict[str, Path]] = {}
    for path in sorted(folder.glob("*.npz")):
        pair, seed, group, _ = path.name.rsplit(".", 3)
        if only is None or pair in only:
            groups.setdefault((pair, int(seed)), {})[group] = path
    most = {pair: max(len(files) for (other, _), files in groups.items() if other == pair) for pair, _ in groups}
    whole = {key: files for key, files in groups.items() if len(files) == most[key[0]]}
    return [_read(*key, files) for key, files in whole.items() if REFERENCE in files or not needs_reference]


def _read(pair: str, seed: int, files: Mapping[str, Path]) -> Known:
    trained, references, held_out, test, sharing = dict[str, Trained](), {}, None, None, False
    for group, path in files.items():
        with np.load(path) as file:
            arrays = dict(file)
        about = json.loads(str(arrays.pop("about")))
        if group == REFERENCE:
            references = about
            continue
        targets = torch.from_numpy(arrays["targets"])
        task = Task("primary", "classify", about["classes"], Examples(targets, targets))
        held_out, test = HeldOut(task, targets, arrays["folds"], about["metric"]), arrays["test"]
        sharing = about["sharing"]
        for number, row in enumerate(about["candidates"]):
            own = {name.partition("/")[2]: array for name, array in arrays.items() if name.startswith(f"{number}/")}
            curve = Curve(own["scores"].tolist(), own["losses"].tolist(), int(arrays["second"]), len(targets))
            found = Trained(row["label"], curve, row["kept"], own, arrays["steps"], row["seconds"])
            trained[row["label"]] = found
    assert held_out is not None and test is not None
    return Known(pair, seed, trained, held_out, test, references, sharing)


Wanted = Callable[[Known], list[str]]
"""Labels of candidates in addition to primary_only, from the first to the last; those that a pair does not have do not count."""


def _alone(known: Known) -> list[str]:
    return [label for label in known.trained if ", only " in label]


def _weight(weight: float) -> str:
    return MULTITASK if weight == 1 else f"{MULTITASK} {weight:g}"


def usual(*more: str, without: Sequence[str] = ()) -> Wanted:
    """The candidates of the product, some more, and without some."""
    own = f"{MULTITASK}, own head"
    default = [MULTITASK, own, "pretrain", f"{MULTITASK} 0.1", f"{MULTITASK} 4", f"{MULTITASK} 4, own head"]
    return lambda known: [label for label in (*default, *_alone(known), *more) if label not in without]


def control(known: Known) -> list[str]:
    return [_weight(weight) for weight in CONTROL_WEIGHTS[6 if known.sharing else 4]] + _alone(known)


def everything(known: Known) -> list[str]:
    return [label for label in known.trained if label != PRIMARY_ONLY]


@dataclass(frozen=True)
class Policy:
    """A portfolio: which candidates, when they stop, and what model is made of them."""

    name: str
    wanted: Wanted = field(default_factory=usual)
    rungs: Rungs = RUNGS
    final: str = SINGLE
    picks: int = 12


@dataclass(frozen=True)
class Reached:
    """What a policy came to on a pair and seed."""

    accuracy: float
    runs: float
    winner: str
    picks: dict[str, int]
    evidence: float | None
    """What the chance that auxiliary data help is computed from, after the first rung."""


def simulate(policy: Policy, known: Known) -> Reached:
    """As `attittud_lab.portfolio.run` does it."""
    labels = [PRIMARY_ONLY, *(label for label in policy.wanted(known) if label in known.trained)]
    alive, standings, evidence = list(dict.fromkeys(labels)), dict[str, Standing](), None
    total = len(known.trained[PRIMARY_ONLY].steps)
    counts = [*(rung_look(known.config, at) + 1 for at, _ in policy.rungs), total]
    for number, count in enumerate(counts):
        for label in alive:
            one = known.trained[label]
            steps = int(one.steps[count - 1])
            strategy = PortfolioCandidate(label, CandidateConfig())
            curve = one.until(count)
            looks = {} if curve is None or number else {curve.best: one.outputs(curve.best)}
            standings[label] = Standing(strategy, number + 1, steps, looks=looks, curve=curve)
        if number == 0 and (found := chance(standings, known.held_out)):
            evidence = found["evidence"]
        curves = {label: standings[label].curve for label in alive}
        values = {label: curve.value for label, curve in curves.items() if curve is not None}
        alive = survivors(values, 1.0 if count == total else policy.rungs[number][1], PRIMARY_ONLY)
    runs = sum(s.steps for s in standings.values()) * known.folds / int(known.trained[PRIMARY_ONLY].steps[-1])
    winner = alive[0]
    best = {label: s.curve.best for label, s in standings.items() if s.curve is not None}
    picks = {winner: 1}
    if policy.final in (ENSEMBLE, REFITS):
        likely = {label: known.likely(known.trained[label], look) for label, look in best.items()}
        picks = greedy(likely, known.held_out, winner, policy.picks)
    accuracy, last = _tested(policy.final, known, picks, best)
    return Reached(accuracy, runs + last, winner, picks, evidence)


def _tested(final: str, known: Known, picks: Mapping[str, int], best: Mapping[str, int]) -> tuple[float, float]:
    """Test accuracy of the model, and the runs of its last training."""
    share = {label: (best[label] + 1) / len(known.trained[label].steps) for label in picks}
    if final in (SINGLE, FOLDS):
        label = next(iter(picks))
        name = "accuracy_refit" if final == SINGLE else "accuracy_mean"
        found = known.trained[label].arrays[name]
        value = float(found[best[label]]) if best[label] < len(found) else math.nan
        return value, share[label] if final == SINGLE else 0.0
    what = "refit" if final == REFITS else "mean"
    parts = [known.trained[label].probabilities(what, best[label]) * count for label, count in picks.items()]
    return known.accuracy(np.sum(parts, 0)), sum(share.values()) if final == REFITS else 0.0


CONTROLS = (Policy("b", control), Policy("c", control, final=ENSEMBLE), Policy("plain", lambda _: []))
OWN_PRETRAIN, OWN_DROP = "pretrain, own head", "drop_harmful, own head"
SETS: dict[str, Wanted] = {
    "default": usual(),
    "without pretrain": usual(without=["pretrain"]),
    "without own heads": usual(without=[f"{MULTITASK}, own head", f"{MULTITASK} 4, own head"]),
    "own 0.4 too": usual(f"{MULTITASK} 0.4, own head"),
    "0.4 too": usual(f"{MULTITASK} 0.4"),
    "own pretrain too": usual(OWN_PRETRAIN),
    "drop_harmful too": usual("drop_harmful"),
    "own drop_harmful too": usual(OWN_DROP),
    "orthogonal too": usual("orthogonal"),
    "auto too": usual("auto"),
    "guided too": usual(*GUIDED),
    "then primary too": usual(f"{MULTITASK}{THEN}"),
    "pretrain then primary": usual(f"pretrain{THEN}", f"{OWN_PRETRAIN}{THEN}"),
    "pretrain only then primary": usual(f"pretrain{THEN}", f"{OWN_PRETRAIN}{THEN}", without=["pretrain"]),
    "everything": everything,
}
HALVINGS: dict[str, Rungs] = {
    "no rungs": (),
    "1/5 40 %": ((0.2, 0.4),),
    "1/3 40 %": ((0.34, 0.4),),
    "1/2 50 %": ((0.5, 0.5),),
    "1/5 60 %, 1/2 50 %": ((0.2, 0.6), (0.5, 0.5)),
    "1/5 50 %, 1/2 40 %": ((0.2, 0.5), (0.5, 0.4)),
    "1/3 50 %, 2/3 50 %": ((0.34, 0.5), (0.67, 0.5)),
    "1/7 60 %, 1/3 50 %, 2/3 50 %": ((0.14, 0.6), (0.34, 0.5), (0.67, 0.5)),
}


def policies() -> list[Policy]:
    found = []
    for final in (SINGLE, FOLDS, ENSEMBLE, REFITS):
        found += [Policy(f"{final}: {name}", wanted, final=final) for name, wanted in SETS.items()]
        found += [Policy(f"{final}: {name}", rungs=rungs, final=final) for name, rungs in HALVINGS.items()]
        found.append(Policy(f"{final}: everything, no rungs", everything, (), final))
    return found + [Policy(f"{ENSEMBLE}: {picks} picks", final=ENSEMBLE, picks=picks) for picks in (3, 6, 25)]


def outcomes(known: Sequence[Known], tried: Iterable[Policy]) -> tuple[dict[str, Values], dict[str, list[float]]]:
    """Test accuracies by pair, row and seed with reference (a) among the rows; and the runs of each policy by name."""
    data: dict[str, Values] = {}
    runs: dict[str, list[float]] = {}
    for one in known:
        values = data.setdefault(one.pair, {})
        for row in REFERENCES:
            values.setdefault(row, {})[one.seed] = one.references[row]["accuracy"]
        for policy in tried:
            found = simulate(policy, one)
            values.setdefault(policy.name, {})[one.seed] = found.accuracy
            runs.setdefault(policy.name, []).append(found.runs)
    return data, runs


def line(data: Mapping[str, Values], policy: Policy, runs: Sequence[float], sharing: set[str]) -> str:
    """A row of the table."""

    def against(other: str, only: set[str] | None = None) -> Compared | None:
        return compared(data, policy.name, other, only)

    cells = [policy.name]
    for other in (BETTER, "b", "c"):
        found = against(other)
        assert found is not None
        worst = f"{found.pairs[found.worst].mean:+.1f} {found.worst}"
        cells.append(
            f"{interval(found.mean)}, worst {worst}" + (f", lose: {named(found.losers)}" if found.losers else "")
        )
    shared = against("c", sharing) if sharing else None
    cells.append(interval(shared.mean) if shared else "")
    return " | ".join([*cells, f"{fmean(runs):.1f} ({max(runs):.1f})"])


def foretold(known: Sequence[Known], policy: Policy, data: Mapping[str, Values]) -> list[Foretold]:
    """The evidence after the first rung, and whether the policy had more than half a point more than primary_only with folds."""
    found = []
    for one in known:
        evidence, values = simulate(policy, one).evidence, data[one.pair]
        if evidence is not None:
            more = values[policy.name][one.seed] - values["plain"][one.seed]
            found.append(Foretold(math.nan, evidence, more > WORTHWHILE))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.portfolio.policies", description=__doc__)
    parser.add_argument("folder", type=Path, help="what `every` wrote")
    parser.add_argument("--pairs", nargs="+", metavar="PAIR", help="only these pairs")
    parser.add_argument(
        "--cases",
        type=Path,
        metavar="FILE",
        help="only write what the chance is fitted to; the group `usual` is enough",
    )
    given = parser.parse_args()
    known = read(given.folder, given.pairs, needs_reference=given.cases is None)
    if not known:
        raise SystemExit(
            f"{given.folder} has no pair and seed with all files; run python -m experiments.portfolio.every"
        )
    if given.cases is not None:
        given.cases.write_text(json.dumps(cases(known), indent=1) + "\n", encoding="utf-8")
        return
    tried = [*CONTROLS, *policies()]
    data, runs = outcomes(known, tried)
    print(f"{len(data)} pairs, {len(known)} pairs and seeds")
    print("policy | to (a) | to (b) | to (c) | to (c) where classes are shared | runs (most)")
    sharing = {one.pair for one in known if one.sharing}
    for policy in tried:
        print(line(data, policy, runs[policy.name], sharing))
    chances(known, next(policy for policy in tried if policy.name == f"{SINGLE}: default"), data)


def cases(known: Sequence[Known]) -> dict[str, Any]:
    """Evidence and accuracies with the product's defaults, case by case, and what they were made with."""
    found = []
    for one in known:
        single, plain = simulate(Policy(SINGLE), one), simulate(CONTROLS[-1], one)
        found.append(
            {"pair": one.pair, "seed": one.seed, "evidence": single.evidence}
            | {"single": single.accuracy, "primary_folds": plain.accuracy}
        )
    return {"made_with": provenance(["numpy", "scikit-learn"]), "cases": found}


def chances(known: Sequence[Known], policy: Policy, data: Mapping[str, Values]) -> None:
    """Print how well the first rung foretells whether auxiliary data help."""
    found = foretold(known, policy, data)
    intercept, slope = calibrated(found)
    fitted = [Foretold(1 / (1 + math.exp(-(intercept + slope * f.evidence))), f.evidence, f.helped) for f in found]
    print(f"chance: AUROC {auroc(found):.3f}, intercept {intercept:.3f}, slope {slope:.2f}, {len(found)} cases")
    for low, high, count, mean, helped in reliability(fitted):
        print(f"  {low:.1f} to {high:.1f}: {count} cases, mean chance {mean:.2f}, helped {helped:.2f}")


if __name__ == "__main__":
    main()
