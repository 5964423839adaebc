"""What eta="auto" costs: a step in which 16 judges are heard, one in which they are not, and a fixed Eta beside them.

    python -m benchmarks.hearing --out benchmarks/hearing.json

On a GPU also as CUDA graphs. The mean over `judge_every` steps is what a user pays.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attittud import Eta, Guide
from benchmarks.results import provenance
from benchmarks.timing import captured, interleaved
from benchmarks.workloads import SPECS, Workload

JUDGES, JUDGE_EVERY = 16, 4


def actions(work: Workload) -> dict[str, Callable[[], None]]:
    """Whole training steps by name, none of them with a refresh."""
    x, y = work.primary[0][:JUDGES], work.primary[1][:JUDGES]

    def judge() -> Tensor:
        with torch.autocast(work.device.type, work.half or torch.bfloat16, enabled=work.half is not None):
            logits = work.model(x, "primary")
        return F.cross_entropy(logits.float(), y, reduction="none")

    guides = {
        "fixed": Guide(work.model, eta=Eta(neutral=1, helpful=1, harmful=0), rank=work.spec.k, engine="loop"),
        "auto": Guide(work.model, eta="auto", rank=work.spec.k, engine="loop", judge_every=1),
    }

    def step(name: str, *, heard: bool = False, refresh: bool = False) -> None:
        work.optimizer.zero_grad(set_to_none=True)
        if name == "multitask":
            (work.losses("primary").mean() + work.losses("auxiliary").mean()).backward()
        else:
            guides[name].backward(
                work.losses("primary"), work.losses("auxiliary").mean(), judge=judge if heard else None, refresh=refresh
            )
        work.optimizer.step()

    step("fixed", refresh=True)
    step("auto", heard=True, refresh=True)
    return {
        "multitask": lambda: step("multitask"),
        "fixed": lambda: step("fixed"),
        "auto": lambda: step("auto"),
        "auto, judges heard": lambda: step("auto", heard=True),
    }


def measure(device: str, *, tiny: bool, repeats: int, limit: float) -> dict[str, Any]:
    spec = SPECS["wrn22"].tiny() if tiny else SPECS["wrn22"]
    work = Workload(spec, m=spec.m, device=device, tiny=tiny, seed=0)
    plain = actions(work)
    for action in (*plain.values(), *plain.values()):
        action()
    found = {"eager": interleaved(plain, work.device, repeats=repeats, limit=limit)}
    if work.device.type == "cuda":
        pool = torch.cuda.graph_pool_handle()
        graphs = {name: captured(action, work.device, pool) for name, action in plain.items()}
        found["graph"] = interleaved(graphs, work.device, repeats=repeats, limit=limit)
    return {"workload": spec.name, "judges": JUDGES, "judge_every": JUDGE_EVERY, "seconds": found} | {
        "overhead": {kind: overhead(times) for kind, times in found.items()}
    }


def overhead(seconds: dict[str, float]) -> float:
    """Judges, on average over all steps, as a share of a multitask step."""
    return (seconds["auto, judges heard"] - seconds["auto"]) / JUDGE_EVERY / seconds["multitask"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hearing", description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a small network: a check that all of it runs")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--limit", type=float, default=30, help="seconds for each kind of step")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    given = parser.parse_args()
    found = measure(given.device, tiny=given.tiny, repeats=given.repeats, limit=given.limit)
    found["made_with"] = provenance(given.device, 0, given.tiny)
    text = json.dumps(found, indent=1)
    if given.out is not None:
        given.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
