"""One workload: all methods side by side in one process, eagerly and as CUDA graphs."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.methods import Method, methods_for
from benchmarks.timing import Action, allocated, captured, copy_bandwidth, interleaved, peak_bytes
from benchmarks.workloads import Spec, Workload

ENGINES = ["loop", "batched", "hooks", "implicit", "auto"]
CYCLE = 10


@dataclass(frozen=True)
class Point:
    """One setting; `full` has all methods, else only those whose growth is of interest."""

    k: int
    m: int
    full: bool = True

    @property
    def name(self) -> str:
        return f"k={self.k} m={self.m}"


def points(spec: Spec, quick: bool) -> Iterator[Point]:
    """A base point, and from it one setting changed at a time."""
    if quick:
        spec = spec.tiny()
    yield Point(spec.k, spec.m)
    if quick or not spec.stores_basis:
        return
    yield from (Point(k, spec.m, full=False) for k in (5, 10, 20) if k != spec.k)
    yield from (Point(spec.k, m, full=False) for m in (16, 32, 64) if m != spec.m)


class Bench:
    """Measures one point of one workload."""

    def __init__(self, spec: Spec, point: Point, *, device: str, quick: bool, seed: int, seconds: float) -> None:
        self.point, self.quick, self.limit = point, quick, seconds
        self.work = Workload(spec, m=point.m, device=device, tiny=quick, seed=seed)
        self.device = self.work.device
        self.rows: dict[str, dict[str, Any]] = {}
        self.ready: dict[str, Method] = {}

    def run(self) -> dict[str, Any]:
        engines = ENGINES if self.point.full else ["loop", "hooks"]
        makers = methods_for(self.work, self.point.k, engines)
        if not self.point.full:
            makers = {name: make for name, make in makers.items() if name.startswith(("multitask", "attittud"))}
        bandwidth = copy_bandwidth(self.device, size=1 << (16 if self.quick else 28))
        flops = self.work.flops()
        self.settle()
        for name, make in makers.items():
            self.prepare(name, make)
        self.time("eager", {name: self.actions(method) for name, method in self.ready.items()})
        if self.device.type == "cuda":
            self.graphs()
        return {
            "k": self.point.k,
            "m": self.point.m,
            "auxiliary": self.work.spec.auxiliary,
            "D": sum(p.numel() for p in self.work.shared().values()),
            "layers": sum(p.ndim > 1 for p in self.work.shared().values()),
            "parameters": sum(p.numel() for p in self.work.model.parameters()),
            "forward_flops_per_example": flops,
            "copy_bytes_per_second": bandwidth,
            "methods": self.rows,
        }

    def settle(self) -> None:
        """Let the optimizer make its state, or the first method would seem to need it."""
        losses = self.work.losses("primary").mean() + self.work.losses("auxiliary").mean()
        losses.backward()
        self.work.optimizer.step()
        self.work.optimizer.zero_grad(set_to_none=True)

    def prepare(self, name: str, make: Any) -> None:
        """Build a method, run it once of each kind, and note its memory; what cannot run is noted with the reason."""
        row = self.rows[name] = {}
        base = allocated(self.device)
        try:
            method = make()
            for refresh in self.kinds(method):
                method.step(refresh)
            for refresh in self.kinds(method)[::-1]:
                peak = peak_bytes(partial(method.step, refresh), self.device)
                self.work.optimizer.zero_grad(set_to_none=True)
                if peak is not None:
                    row["peak_refresh" if refresh else "peak_step"] = peak - base
                    row["with_model"] = peak
        except Exception as error:  # a peer that lacks, refuses or breaks on this model is a result
            row["note"] = f"{type(error).__name__}: {error}".split("\n")[0][:300]
            self.work.optimizer.zero_grad(set_to_none=True)
            error.__traceback__ = None
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            print(f"    {name}: {row['note']}", flush=True)
            return
        self.ready[name] = method

    @staticmethod
    def kinds(method: Method) -> list[bool]:
        return [True, False] if method.has_refresh else [False]

    def actions(self, method: Method) -> dict[str, Action]:
        return {"refresh" if kind else "step": partial(method.step, kind) for kind in self.kinds(method)}

    def time(self, mode: str, actions: dict[str, dict[str, Action]]) -> None:
        every = {(name, kind): action for name, kinds in actions.items() for kind, action in kinds.items()}
        times = interleaved(
            {f"{name}|{kind}": action for (name, kind), action in every.items()},
            self.device,
            repeats=3 if self.quick else 15,
            limit=self.limit,
        )
        for key, value in times.items():
            name, _, kind = key.rpartition("|")
            self.rows[name].setdefault(mode, {})[kind] = value

    def graphs(self) -> None:
        """The same as CUDA graphs, and a whole cycle of one refresh and nine steps against ten multitask steps."""
        found: dict[str, dict[str, Action]] = {}
        pool = torch.cuda.graph_pool_handle()
        for name, method in self.ready.items():
            if not method.in_graph or name == "attittud auto":
                continue
            for kind, action in self.actions(method).items():
                self.work.optimizer.zero_grad(set_to_none=True)
                try:
                    found.setdefault(name, {})[kind] = captured(action, self.device, pool)
                except Exception as error:
                    note = f"{type(error).__name__}: {error}".split("\n")[0][:300]
                    self.rows[name].setdefault("graph_notes", {})[kind] = note
                    print(f"    {name}, {kind} in a graph: {note}", flush=True)
                    torch.cuda.synchronize(self.device)
        self.time("graph", found)
        self.time("cycle", {name: {"steps": partial(cycle, kinds)} for name, kinds in found.items() if "step" in kinds})


def cycle(kinds: dict[str, Action]) -> None:
    for number in range(CYCLE):
        kinds["refresh" if number == 0 and "refresh" in kinds else "step"]()


def measure(spec: Spec, point: Point, *, device: str, quick: bool, seed: int, seconds: float) -> dict[str, Any]:
    start = time.perf_counter()
    bench = Bench(spec.tiny() if quick else spec, point, device=device, quick=quick, seed=seed, seconds=seconds)
    found = bench.run()
    del bench
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
    return found | {"measured_in_seconds": round(time.perf_counter() - start, 1)}
