"""What eta="auto" costs: a step in which 16 judges are asked, one without them, and a step with a
fixed Eta.

    python -m benchmarks --only judges

A user pays the mean over `judge_every` steps. On a GPU the steps are also measured as CUDA graphs.
The judges' own forward and backward pass, without a guide, is measured too: asking them cannot cost
less.

The speed of a machine changes within seconds. So what judges add is divided by the multitask step
of the same round, and the median over the rounds is taken.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attittud import Eta, Guide
from benchmarks.timing import CORES, captured, rounds
from benchmarks.workloads import SPECS, Workload

JOB = "wrn22"
JUDGES, JUDGE_EVERY = 16, 4
ALONE = "judges alone"


def actions(work: Workload) -> dict[str, Callable[[], None]]:
    """Whole training steps by name, none of them with a refresh."""
    x, y = work.primary[0][:JUDGES], work.primary[1][:JUDGES]

    def judge() -> Tensor:
        with torch.autocast(
            work.device.type, work.half or torch.bfloat16, enabled=work.half is not None
        ):
            logits = work.model(x, "primary")
        return F.cross_entropy(logits.float(), y, reduction="none")

    guides = {
        "fixed": Guide(
            work.model, eta=Eta(neutral=1, helpful=1, harmful=0), rank=work.spec.k, engine="loop"
        ),
        "auto": Guide(work.model, eta="auto", rank=work.spec.k, engine="loop", judge_every=1),
    }

    def step(name: str, *, asked: bool = False, refresh: bool = False) -> None:
        work.optimizer.zero_grad(set_to_none=True)
        if name == "multitask":
            (work.losses("primary").mean() + work.losses("auxiliary").mean()).backward()
        else:
            guides[name].backward(
                work.losses("primary"),
                work.losses("auxiliary").mean(),
                judge=judge if asked else None,
                refresh=refresh,
            )
        work.optimizer.step()

    shared = list(work.shared().values())

    def alone() -> None:
        with torch.autograd.set_multithreading_enabled(False):  # as a guide runs its passes
            torch.autograd.grad(judge().mean(), shared)

    step("fixed", refresh=True)
    step("auto", asked=True, refresh=True)
    return {
        "multitask": lambda: step("multitask"),
        "fixed": lambda: step("fixed"),
        "auto": lambda: step("auto"),
        "auto, judges asked": lambda: step("auto", asked=True),
        ALONE: alone,
    }


def measure(*, device: str, quick: bool, limit: float) -> dict[str, Any]:
    spec = SPECS[JOB].tiny() if quick else SPECS[JOB]
    work = Workload(spec, device=device, tiny=quick)
    plain = actions(work)
    for action in (*plain.values(), *plain.values()):
        action()
    # Eager steps depend on the processor, whose speed changes more than the GPU's.
    repeats = 5 if quick else 500
    times = {"eager": rounds(plain, work.device, repeats=repeats, limit=limit)}
    if work.device.type == "cuda":
        pool = torch.cuda.graph_pool_handle()
        graphs = {name: captured(action, work.device, pool) for name, action in plain.items()}
        times["graph"] = rounds(graphs, work.device, repeats=100, limit=limit)
    return {
        "judges": JUDGES,
        "judge_every": JUDGE_EVERY,
        "slowest_core": round(CORES.spread, 2),
        "rounds": {mode: len(seconds_of["multitask"]) for mode, seconds_of in times.items()},
        "seconds": {
            mode: {name: statistics.median(of) for name, of in seconds_of.items()}
            for mode, seconds_of in times.items()
        },
        "shares": {mode: shares(seconds_of) for mode, seconds_of in times.items()},
    }


def shares(times: Mapping[str, list[float]]) -> dict[str, float]:
    """Medians over the rounds: what judges add on average, and the part of it that is their own
    pass.
    """
    whole = zip(times["auto, judges asked"], times["auto"], times["multitask"], strict=True)
    alone = zip(times[ALONE], times["multitask"], strict=True)
    return {
        "added": statistics.median((asked - auto) / multitask for asked, auto, multitask in whole)
        / JUDGE_EVERY,
        "alone": statistics.median(judging / multitask for judging, multitask in alone)
        / JUDGE_EVERY,
    }
