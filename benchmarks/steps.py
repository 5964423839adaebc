"""Time and memory of the steps of one workload, all methods side by side in one process.

Three things are measured:

* the peak of memory in each kind of step;
* the median time of each kind of eager step, where Python between the kernels counts, over rounds
  in which every method has its turn: a plain step that is not timed, because it follows a step of
  another method, then a refresh and three plain steps. What a refresh adds is its median difference
  to the plain step that follows it. A multitask step comes before and after each turn, and both
  kinds of step are also divided by the mean of these two, because the speed of a machine changes
  within seconds;
* on a GPU, the median time of each kind of step as a CUDA graph.

The process stays on the fastest cores of the machine (`FastCores`), because on a shared machine
cores differ.
"""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch

from benchmarks.methods import Method, methods_for
from benchmarks.timing import CORES, Action, allocated, captured, peak_bytes, rounds, seconds
from benchmarks.workloads import SPECS, Workload

CYCLE = 10
"""Steps from refresh to refresh."""
PLAIN = 3
ROUNDS = 40
FEWEST_ROUNDS = 9
KINDS = {False: "step", True: "refresh"}
"""What results call a step, by whether it refreshes the basis."""


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
    plain: list[float] = []
    plain_ratios: list[float] = []
    added: list[float] = []
    added_ratios: list[float] = []
    for turn in turns:
        plain += turn.plain
        plain_ratios += [seconds / turn.multitask for seconds in turn.plain]
        if turn.refresh is not None:
            by_refresh = turn.refresh - turn.plain[0]  # what the refresh adds to a step
            added.append(by_refresh)
            added_ratios.append(by_refresh / turn.multitask)
    times = {"step": median(plain)}
    ratios = {"step": median(plain_ratios)}
    if added:
        times["refresh"] = times["step"] + median(added)
        ratios["refresh"] = ratios["step"] + median(added_ratios)
    return {"eager": times, "over_multitask": ratios, "rounds": len(turns)}


class Bench:
    """Measures one workload."""

    def __init__(self, job: str, *, device: str, quick: bool, limit: float) -> None:
        self.quick = quick
        self.limit = limit
        self.work = Workload(SPECS[job], device=device, tiny=quick)
        self.spec = self.work.spec
        self.device = self.work.device
        self.rows: dict[str, dict[str, Any]] = {}  # the results, by method
        self.ready: dict[str, Method] = {}  # the methods to time

    def run(self) -> dict[str, Any]:
        self.settle()
        for name, make in methods_for(self.work, self.spec.k).items():
            self.prepare(name, make)
        self.time_eager()
        if self.device.type == "cuda":
            self.time_graphs()
        return {
            "k": self.spec.k,
            "m": self.spec.m,
            "auxiliary": self.spec.auxiliary,
            "D": sum(p.numel() for p in self.work.shared().values()),
            "parameters": sum(p.numel() for p in self.work.model.parameters()),
            "slowest_core": round(CORES.spread, 2),
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

    def prepare(self, name: str, make: Callable[[], Method]) -> None:
        """Build a method, note its peak of memory in each kind of step, and add it to `ready`: the
        methods to time. Without an addition, `same_as` or `note` in its row says why.
        """
        row = self.rows[name] = {}
        # The gradients of an earlier method would count as memory.
        self.work.optimizer.zero_grad(set_to_none=True)
        base = allocated(self.device)
        try:
            method = make()
            warm_up(method)
            if method.same_as is not None:  # the other method is measured
                row["same_as"] = method.same_as
                return
            for refresh in reversed(method.kinds):  # `warm_up` has ended with plain steps
                peak = peak_bytes(partial(method.step, refresh), self.device)
                self.work.optimizer.zero_grad(set_to_none=True)
                if peak is not None:
                    row[f"peak_{KINDS[refresh]}"] = peak - base
        except Exception as error:
            # A peer that is missing, refuses this model or breaks on it is a result.
            row["note"] = note(error)
            self.work.optimizer.zero_grad(set_to_none=True)
            error.__traceback__ = None  # its frames hold the method and its memory
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            print(f"    {name}: {row['note']}", flush=True)
            return
        self.ready[name] = method

    def time_eager(self) -> None:
        """Time eager steps in rounds, in which every method has its turn, and note the medians."""
        turns: dict[str, list[Turn]] = defaultdict(list)
        most, fewest = ROUNDS, FEWEST_ROUNDS
        if self.quick:
            most, fewest = 2, 2
        start = time.perf_counter()
        for number in range(most):
            if number >= fewest and time.perf_counter() - start > self.limit:
                break
            CORES.choose(self.device)
            before = self.multitask()
            for name, method in self.ready.items():
                method.step(False)  # not timed: it follows a step of another method
                refresh = self.time(method, True) if method.has_refresh else None
                plain = [self.time(method, False) for _ in range(PLAIN)]
                after = self.multitask()
                turns[name].append(Turn(plain, refresh, (before + after) / 2))
                before = after
        for name, times in turns.items():
            self.rows[name] |= summary(times)

    def multitask(self) -> float:
        """The seconds of a multitask step, after one that is not timed."""
        self.ready["multitask"].step(False)
        return self.time(self.ready["multitask"], False)

    def time(self, method: Method, refresh: bool) -> float:
        return seconds(partial(method.step, refresh), self.device)

    def time_graphs(self) -> None:
        """Time each kind of step as a CUDA graph; a method that cannot be captured is noted."""
        actions: dict[tuple[str, str], Action] = {}
        pool = torch.cuda.graph_pool_handle()
        graphed = {name: method for name, method in self.ready.items() if method.in_graph}
        for name, method in graphed.items():
            for refresh in method.kinds:
                kind = KINDS[refresh]
                self.work.optimizer.zero_grad(set_to_none=True)
                try:
                    action = captured(partial(method.step, refresh), self.device, pool)
                    actions[name, kind] = action
                except Exception as error:
                    self.rows[name].setdefault("graph_notes", {})[kind] = note(error)
                    print(f"    {name}, {kind} in a graph: {note(error)}", flush=True)
                    torch.cuda.synchronize(self.device)
        times = rounds(actions, self.device, repeats=15, limit=self.limit)
        for (name, kind), values in times.items():
            self.rows[name].setdefault("graph", {})[kind] = median(values)


def warm_up(method: Method) -> None:
    """Run so many refreshes and plain steps that all is compiled, and that a guide has captured the
    CUDA graphs that it captures by itself.
    """
    for refresh in method.kinds:
        for _ in range({True: 2, False: 5}[refresh]):
            method.step(refresh)


def note(error: Exception) -> str:
    """The first line of a message, to be printed instead of a figure."""
    return f"{type(error).__name__}: {error}".split("\n")[0][:300]
