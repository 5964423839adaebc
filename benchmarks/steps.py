"""Memory and CUDA graphs of one workload: all methods side by side in one process.

`benchmarks/eager.py` measures the time of eager steps.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.methods import Method, methods_for
from benchmarks.timing import Action, allocated, captured, copy_bandwidth, interleaved, peak_bytes
from benchmarks.workloads import SPECS, Spec, Workload

ENGINES = ["loop", "hooks", "auto"]
CYCLE = 10
CYCLES = ("wrn22", "roberta512")
"""Workloads of which whole cycles are timed."""


@dataclass(frozen=True)
class Point:
    """One setting. A `full` point has all methods, the others only those whose growth is of
    interest.
    """

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
    if quick:
        return
    yield from (Point(k, spec.m, full=False) for k in (5, 20) if k != spec.k)
    yield from (Point(spec.k, m, full=False) for m in spec.sweep if m != spec.m)


class Bench:
    """Measures one point of one workload."""

    def __init__(
        self, spec: Spec, point: Point, *, device: str, quick: bool, seed: int, seconds: float
    ) -> None:
        self.point, self.quick, self.limit = point, quick, seconds
        self.work = Workload(spec, m=point.m, device=device, tiny=quick, seed=seed)
        self.device = self.work.device
        self.rows: dict[str, dict[str, Any]] = {}
        self.ready: dict[str, Method] = {}

    def run(self) -> dict[str, Any]:
        engines = ENGINES if self.point.full else ["loop", "hooks"]
        makers = methods_for(self.work, self.point.k, engines)
        if not self.point.full:
            makers = {
                name: make
                for name, make in makers.items()
                if name.startswith(("multitask", "attittud"))
            }
        bandwidth = copy_bandwidth(self.device, size=1 << (16 if self.quick else 28))
        flops = self.work.flops()
        self.settle()
        for name, make in makers.items():
            self.prepare(name, make)
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
        """Let the optimizer allocate its state, which would otherwise count as memory of the first
        method.
        """
        losses = self.work.losses("primary").mean() + self.work.losses("auxiliary").mean()
        losses.backward()
        self.work.optimizer.step()
        self.work.optimizer.zero_grad(set_to_none=True)

    def prepare(self, name: str, make: Any) -> None:
        """Build a method, run each kind of its steps and note the memory; a method that cannot run
        is noted with the reason.
        """
        row = self.rows[name] = {}
        self.work.optimizer.zero_grad(
            set_to_none=True
        )  # the gradients of an earlier method would count as memory
        base = allocated(self.device)
        try:
            method = make()
            warm_up(method)
            if method.same_as is not None:
                row["same_as"] = method.same_as
                return
            for refresh in method.kinds[::-1]:
                peak = peak_bytes(partial(method.step, refresh), self.device)
                self.work.optimizer.zero_grad(set_to_none=True)
                if peak is not None:
                    row["peak_refresh" if refresh else "peak_step"] = peak - base
                    row["with_model"] = peak
        except (
            Exception
        ) as error:  # a peer that is missing, refuses this model or breaks on it is a result
            row["note"] = note(error)
            self.work.optimizer.zero_grad(set_to_none=True)
            error.__traceback__ = None
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            print(f"    {name}: {row['note']}", flush=True)
            return
        self.ready[name] = method

    @staticmethod
    def actions(method: Method) -> dict[str, Action]:
        return {"refresh" if kind else "step": partial(method.step, kind) for kind in method.kinds}

    def time(self, mode: str, actions: dict[str, dict[str, Action]]) -> None:
        every = {
            (name, kind): action
            for name, kinds in actions.items()
            for kind, action in kinds.items()
        }
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
        """Time the steps as CUDA graphs, and a whole cycle of one refresh and nine steps against
        ten multitask steps.
        """
        actions: dict[str, dict[str, Action]] = {}
        pool = torch.cuda.graph_pool_handle()
        for name, method in self.ready.items():
            if not method.in_graph:
                continue
            for kind, action in self.actions(method).items():
                self.work.optimizer.zero_grad(set_to_none=True)
                try:
                    actions.setdefault(name, {})[kind] = captured(action, self.device, pool)
                except Exception as error:
                    self.rows[name].setdefault("graph_notes", {})[kind] = note(error)
                    print(f"    {name}, {kind} in a graph: {note(error)}", flush=True)
                    torch.cuda.synchronize(self.device)
        self.time("graph", actions)
        if self.point.full and self.work.spec.name in CYCLES:
            ours = {
                name: kinds
                for name, kinds in actions.items()
                if name.startswith(("multitask", "attittud"))
            }
            cycles = {
                name: {"steps": partial(cycle, kinds)}
                for name, kinds in ours.items()
                if "step" in kinds
            }
            self.time("cycle", cycles)


def warm_up(method: Method) -> None:
    """Run refreshes and plain steps until all is compiled, and what a guide captures by itself is
    captured.
    """
    for refresh in method.kinds:
        for _ in range(2 if refresh else 5):
            method.step(refresh)


def note(error: Exception) -> str:
    """The first line of a message, to be printed instead of a figure."""
    return f"{type(error).__name__}: {error}".split("\n")[0][:300]


def cycle(kinds: dict[str, Action]) -> None:
    for number in range(CYCLE):
        kinds["refresh" if number == 0 and "refresh" in kinds else "step"]()


def measure(
    job: str, point: Point, *, device: str, quick: bool, seed: int, seconds: float
) -> dict[str, Any]:
    spec = SPECS[job].tiny() if quick else SPECS[job]
    return Bench(spec, point, device=device, quick=quick, seed=seed, seconds=seconds).run()
