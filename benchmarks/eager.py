"""What a step costs in eager mode, where Python between the kernels counts: single steps that take turns.

    python -m benchmarks.eager --out benchmarks/eager.json

Every model is measured in one process: the multitask step, two backward passes without a guide, a guide's plain step and
its refresh with each engine, the authors' algorithm, TorchJD's sketch, and eta="auto". A ratio of two kinds of steps is the
median over pairs of neighbours, with a 95 % interval of that median.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attittud import Guide
from benchmarks.methods import Authors, Guided, Method, Multitask, TorchJD, TorchJDLoop
from benchmarks.results import provenance
from benchmarks.timing import seconds
from benchmarks.workloads import SPECS, Workload

JOBS = ("wrn22", "resnet18", "roberta128", "roberta512", "decoder_lora")
REFRESH_EVERY = 10
JUDGES, JUDGE_EVERY = 16, 4


class TwoPasses(Method):
    """What a guide cannot do without: a backward pass for each task."""

    name = "two passes"
    has_refresh = False

    def backward(self, refresh: bool) -> None:
        primary, auxiliary = self.work.losses("primary").mean(), self.work.losses("auxiliary").mean()
        primary.backward()
        auxiliary.backward()


class Judged(Method):
    """eta="auto"; `refresh` stands for a step in which the judges are asked."""

    name = "auto"

    def __init__(self, work: Workload, k: int) -> None:
        super().__init__(work, k)
        self.guide = Guide(
            work.model, eta="auto", rank=k, engine="loop", judge_every=1, parameters=work.spec.parameters
        )
        self.batch = work.primary[0][:JUDGES], work.primary[1][:JUDGES]
        self.backward(True, first=True)

    def losses(self) -> Tensor:
        whole, self.work.primary = self.work.primary, self.batch
        try:
            return self.work.losses("primary")
        finally:
            self.work.primary = whole

    def backward(self, refresh: bool, *, first: bool = False) -> None:
        judge = self.losses if refresh else None
        self.guide.backward(
            self.work.losses("primary"), self.work.losses("auxiliary").mean(), judge=judge, refresh=first
        )


def methods(work: Workload, k: int) -> dict[str, Callable[[], Method]]:
    makers: dict[str, Callable[[], Method]] = {
        "multitask": lambda: Multitask(work, k),
        "two passes": lambda: TwoPasses(work, k),
        **{engine: partial(Guided, work, k, engine) for engine in ("loop", "batched", "hooks", "auto engine")},
        **{peer.name: partial(peer, work, k) for peer in (Authors, TorchJDLoop, TorchJD)},
        "auto": lambda: Judged(work, k),
    }
    makers["auto engine"] = lambda: Guided(work, k, "auto", tensor=True)
    if any(isinstance(module, torch.nn.BatchNorm2d) for module in work.model.modules()):
        makers["hooks, frozen BatchNorm"] = lambda: Guided(work, k, "hooks", frozen=True)
    return makers


def median(values: list[float]) -> dict[str, float]:
    """With a 95 % interval by order statistics."""
    ordered, n = sorted(values), len(values)
    reach = 0.98 * math.sqrt(n)
    low, high = max(0, math.floor(n / 2 - reach)), min(n - 1, math.ceil(n / 2 + reach))
    return {"median": statistics.median(ordered), "low": ordered[low], "high": ordered[high], "n": n}


def measure(name: str, *, device: str, quick: bool, pairs: int, rounds: int) -> dict[str, Any]:
    spec = SPECS[name].tiny() if quick else SPECS[name]
    work = Workload(spec, m=spec.m, device=device, tiny=quick, seed=0)
    ready: dict[str, Method] = {}
    notes: dict[str, str] = {}
    for label, make in methods(work, spec.k).items():
        try:
            method = make()
            for refresh in (True, False) if method.has_refresh else (False,):
                for _ in range(3):
                    method.step(refresh)
            ready[label] = method
        except Exception as error:  # a peer that is missing, or an engine that refuses this model, is a result
            notes[label] = f"{type(error).__name__}: {error}".split("\n")[0][:200]
    actions = {
        f"{label}|{'refresh' if refresh else 'step'}": partial(method.step, refresh)
        for label, method in ready.items()
        for refresh in ((True, False) if method.has_refresh else (False,))
    }
    times: dict[str, list[float]] = {key: [] for key in actions}
    for _ in range(rounds):
        for key, action in actions.items():
            times[key].append(seconds(action, work.device))
    plain = pair_ratios(ready, work.device, pairs)
    medians = {key: statistics.median(found) for key, found in times.items()}
    return {
        "k": spec.k,
        "m": spec.m,
        "seconds": medians,
        "plain over two passes": plain,
        "mean over multitask": mean_steps(medians),
        "refresh": {key.split("|")[0]: value - medians[key.replace("refresh", "step")] for key, value in medians.items()
                    if key.endswith("|refresh")},
        "notes": notes,
    }  # fmt: skip


def pair_ratios(ready: Mapping[str, Method], device: torch.device, pairs: int) -> dict[str, dict[str, float]]:
    """Plain steps of a guide over two backward passes, the two taking turns."""
    found: dict[str, dict[str, float]] = {}
    for label in ("loop", "hooks"):
        if label not in ready:
            continue
        guided, bare = partial(ready[label].step, False), partial(ready["two passes"].step, False)
        ratios = []
        for number in range(pairs):
            first, second = (bare, guided) if number % 2 else (guided, bare)
            one, two = seconds(first, device), seconds(second, device)
            ratios.append(two / one if number % 2 else one / two)
        found[label] = median(ratios)
    return found


def mean_steps(seconds: Mapping[str, float]) -> dict[str, float]:
    """With a refresh in every tenth step, or judges in every fourth."""
    multitask, found = seconds["multitask|step"], {}
    for key, refresh in seconds.items():
        label, _, kind = key.rpartition("|")
        if kind == "refresh":
            every = JUDGE_EVERY if label == "auto" else REFRESH_EVERY
            found[label] = ((every - 1) * seconds[f"{label}|step"] + refresh) / every / multitask
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.eager", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=JOBS, default=JOBS, metavar="MODEL", help=f"of {', '.join(JOBS)}")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pairs", type=int, default=200, help="pairs of single steps (default: 200)")
    parser.add_argument("--rounds", type=int, default=40, help="turns of all kinds of steps (default: 40)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: a check that all of it runs")
    parser.add_argument(
        "--out", type=Path, metavar="FILE.json", help="written after every model; models in it are skipped"
    )
    given = parser.parse_args()
    quick = given.quick or given.device == "cpu"
    data: dict[str, Any] = {"provenance": provenance(given.device, 0, quick), "models": {}}
    if given.out is not None and given.out.exists():
        data = json.loads(given.out.read_text(encoding="utf-8"))
    for name in given.only:
        if name in data["models"]:
            continue
        start = time.perf_counter()
        pairs, rounds = (6, 2) if quick else (given.pairs, given.rounds)
        data["models"][name] = measure(name, device=given.device, quick=quick, pairs=pairs, rounds=rounds)
        data["models"][name]["measured_in_seconds"] = round(time.perf_counter() - start, 1)
        print(name, json.dumps(data["models"][name], indent=1), flush=True)
        if given.out is not None:
            given.out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
