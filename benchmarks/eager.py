"""Eager steps, where Python between the kernels counts: the steps of all methods take turns in one
process.

    python -m benchmarks --only eager            # all models
    python -m benchmarks.eager --only wrn22      # one model, with options; prints what it finds

Two things are measured at the base point of each model:

* the median time of each kind of step, over rounds in which every method has its turn: a plain step
  that is not timed, because it follows a step of another method, then a refresh and three plain
  steps. What a refresh adds is its median difference to the plain step that follows it. The slowest
  methods have their turn in every third round. A multitask step, also after one that is not timed,
  comes before and after each turn, and both kinds of step are divided by the mean of these two,
  because the speed of a machine changes within seconds;
* the plain step of a guide over two backward passes without one. They take turns, and the ratio is
  the median over at least 200 pairs, with the 95 % interval of that median. Some pairs are measured
  after each round, because a machine may stay slow for many seconds.

The process stays on the fastest cores of the machine (`FastCores`), because on a shared machine
cores differ.

A guide runs backward passes in the thread that calls it. By default torch uses another thread,
which is mostly slower. So multitask and the two passes are measured in both ways. All other
libraries use the default.

On a noisy machine, `--again` measures a model once more. Pages show the mean of all runs at one
revision.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import torch

from benchmarks.methods import Method, MultitaskInOneThread, TwoPassesInOneThread, methods_for
from benchmarks.results import Record, provenance
from benchmarks.steps import ENGINES, note, warm_up
from benchmarks.timing import CORES
from benchmarks.timing import seconds as seconds_of
from benchmarks.workloads import SPECS, Workload

MODELS = tuple(SPECS)
PAIRS, ROUNDS, FEWEST_ROUNDS = 200, 40, 9
PLAIN = 3
PAIRED = ("attittud loop", "attittud hooks")
RARE_EVERY = 3
RARE = ("authors' algorithm", "TorchJD sketch, one by one", "TorchJD PCGrad", "Opacus + SVD")
VMAPPED = "TorchJD sketch, vmapped"
IN_ONE_THREAD = (MultitaskInOneThread, TwoPassesInOneThread)
OVER = {
    "plain_over_two_passes": "two passes",
    "plain_over_two_passes_in_one_thread": TwoPassesInOneThread.name,
}
"""What plain steps are compared with, by the name under which the ratios are stored."""


def measure(
    name: str,
    *,
    device: str,
    quick: bool,
    seed: int,
    seconds: float,
    pairs: int = PAIRS,
    rounds: int = ROUNDS,
) -> dict[str, Any]:
    """One model. After `seconds` no further round begins, but nine are made in any case."""
    spec = SPECS[name].tiny() if quick else SPECS[name]
    pairs, rounds, fewest = (6, 2, 2) if quick else (pairs, rounds, min(rounds, FEWEST_ROUNDS))
    work = Workload(spec, m=spec.m, device=device, tiny=quick, seed=seed)
    ready: dict[str, Method] = {}
    rows: dict[str, dict[str, Any]] = {}
    baselines = {method.name: partial(method, work, spec.k) for method in IN_ONE_THREAD}
    for label, make in (methods_for(work, spec.k, ENGINES) | baselines).items():
        try:
            method = make()
            warm_up(method)
            rows[label] = {} if method.same_as is None else {"same_as": method.same_as}
            if method.same_as is None:
                ready[label] = method
        except (
            Exception
        ) as error:  # a peer that is missing, or an engine that refuses this model, is a result
            rows[label] = {"note": note(error)}
            print(f"    {label}: {rows[label]['note']}", flush=True)
    # Where TorchJD cannot use vmap, its other sketch is the one to compare with.
    if VMAPPED in ready:
        rare = RARE
    else:
        rare = tuple(label for label in RARE if not label.startswith("TorchJD sketch"))
    turns: dict[str, list[Turn]] = {label: [] for label in ready}

    def multitask() -> float:
        """The seconds of a multitask step. As in every turn, an untimed step comes first, because
        it follows another method.
        """
        ready["multitask"].step(False)
        return seconds_of(partial(ready["multitask"].step, False), work.device)

    paired = Pairs(ready, work.device)
    spent, done = 0.0, 0
    while done < fewest or (done < rounds and spent < seconds):
        CORES.choose(work.device)
        start, before = time.perf_counter(), multitask()
        for label, method in ready.items():
            if label not in rare or done % RARE_EVERY == 0:
                method.step(False)
                if method.has_refresh:
                    refresh = seconds_of(partial(method.step, True), work.device)
                else:
                    refresh = None
                steps = [seconds_of(partial(method.step, False), work.device) for _ in range(PLAIN)]
                after = multitask()
                turns[label].append(Turn(steps, refresh, (before + after) / 2))
                before = after
        done, spent = done + 1, spent + time.perf_counter() - start
        paired.measure(
            math.ceil(pairs * min(1.0, max(done / rounds, spent / seconds))) - paired.count
        )
    paired.measure(pairs - paired.count)
    for label, times in turns.items():
        rows[label] = summary(times)
    return {"k": spec.k, "m": spec.m, "methods": rows, **paired.ratios()}


@dataclass(frozen=True)
class Turn:
    """Seconds of the steps of one method, and of the multitask steps next to them."""

    plain: list[float]
    refresh: float | None
    multitask: float


def summary(turns: Sequence[Turn]) -> dict[str, Any]:
    """Medians over the turns of a method: seconds, and ratios to the multitask steps next to each
    turn.
    """
    times = {"step": statistics.median([seconds for turn in turns for seconds in turn.plain])}
    over = {
        "step": statistics.median(
            [seconds / turn.multitask for turn in turns for seconds in turn.plain]
        )
    }
    added = [
        (turn.refresh - turn.plain[0], turn.multitask) for turn in turns if turn.refresh is not None
    ]
    if added:
        times["refresh"] = times["step"] + statistics.median([more for more, _ in added])
        over["refresh"] = over["step"] + statistics.median(
            [more / beside for more, beside in added]
        )
    return {"eager": times, "over_multitask": over, "rounds": len(turns)}


class Pairs:
    """Plain steps of a guide over two backward passes; all take turns, in every order."""

    def __init__(self, ready: Mapping[str, Method], device: torch.device) -> None:
        self.ready, self.device = ready, device
        self.guided = [label for label in PAIRED if label in ready]
        self.orders = list(permutations((*OVER.values(), *self.guided)))
        self.found: dict[str, dict[str, list[float]]] = {
            key: {label: [] for label in self.guided} for key in OVER
        }
        self.count = 0

    def measure(self, pairs: int) -> None:
        for _ in range(pairs):
            # Neighbouring orders hardly differ, so every seventh is taken.
            order = self.orders[7 * self.count % len(self.orders)]
            turn = {
                label: seconds_of(partial(self.ready[label].step, False), self.device)
                for label in order
            }
            for key, base in OVER.items():
                for label in self.guided:
                    self.found[key][label].append(turn[label] / turn[base])
            self.count += 1

    def ratios(self) -> dict[str, dict[str, dict[str, float]]]:
        return {
            key: {label: median(of) for label, of in labels.items()}
            for key, labels in self.found.items()
        }


def median(values: list[float]) -> dict[str, float]:
    """The median with a 95 % interval by order statistics."""
    ordered, n = sorted(values), len(values)
    reach = 0.98 * math.sqrt(n)
    low = max(0, math.floor(n / 2 - reach))
    high = min(n - 1, math.ceil(n / 2 + reach))
    return {
        "median": statistics.median(ordered),
        "low": ordered[low],
        "high": ordered[high],
        "n": n,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.eager", description=__doc__)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=MODELS,
        default=MODELS,
        metavar="MODEL",
        help=f"of {', '.join(MODELS)}",
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--pairs", type=int, default=PAIRS, help=f"pairs of single steps (default: {PAIRS})"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=ROUNDS,
        help=f"turns of all kinds of steps (default: {ROUNDS})",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=40.0,
        help="begin no further round after so long (default: 40)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: a check that all of it runs"
    )
    parser.add_argument(
        "--again", action="store_true", help="measure models that are in eager.json once more"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="write eager.json there; models in it are skipped",
    )
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*batching rule.*|.*backward hook is firing.*")
    quick = options.quick or options.device == "cpu"
    record = Record(options.out, "eager", provenance(options.device, 0, quick))
    for name in options.only:
        point = record.next_run(name) if options.again else name
        if point not in record:
            settings = {
                "pairs": options.pairs,
                "rounds": options.rounds,
                "seconds": options.seconds,
            }
            record.measure(
                point,
                partial(measure, name, device=options.device, quick=quick, seed=0, **settings),
            )
        print(point, json.dumps(record.data["points"][point], indent=1), flush=True)


if __name__ == "__main__":
    main()
