"""Time and memory of a function, on a GPU by its own clock."""

from __future__ import annotations

import gc
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # unless another one is named
Action = Callable[[], object]


class FastCores:
    """Keeps the threads of this process on the fastest cores of a shared machine.

    Other users of such a machine make some cores half as fast, for seconds or minutes. An eager
    step is as fast as the core of its thread. Without this, a method whose thread happens to be on
    a slow core would look slow.
    """

    USED = 4  # a step uses two threads in turn
    EVERY = 10.0  # seconds until the cores are compared again

    def __init__(self) -> None:
        self._all: list[int] = []
        if hasattr(os, "sched_getaffinity"):
            self._all = sorted(os.sched_getaffinity(0))
        self._last = float("-inf")
        self.spread = 1.0
        """How many times as long as the fastest core the slowest core took, when they were last
        compared.
        """

    def choose(self, device: torch.device) -> None:
        """Compare the cores, unless this was done a short time ago, and move all threads to the
        fastest ones.

        Measurements on a CPU have no use for this: they are only a check that everything runs.
        """
        recent = time.perf_counter() - self._last < self.EVERY
        if device.type == "cpu" or len(self._all) <= self.USED or recent:
            return
        times = {core: self._time(core) for core in self._all}
        fastest = sorted(self._all, key=times.__getitem__)[: self.USED]
        for thread in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):  # it may have ended in the meantime
                os.sched_setaffinity(int(thread.name), fastest)
        self.spread = max(times.values()) / min(times.values())
        self._last = time.perf_counter()

    def _time(self, core: int) -> float:
        os.sched_setaffinity(0, {core})
        return min(_busy_loop() for _ in range(2))


def _busy_loop() -> float:
    start = time.perf_counter()
    total = 0
    for number in range(100_000):
        total += number
    return time.perf_counter() - start


CORES = FastCores()


def seconds(action: Action, device: torch.device) -> float:
    """Seconds that the action takes; on a GPU until its last kernel has ended."""
    if device.type != "cuda":
        start = time.perf_counter()
        action()
        return time.perf_counter() - start
    begin = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    begin.record()
    action()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000


def rounds(
    actions: Mapping[tuple[str, str], Action], device: torch.device, *, repeats: int, limit: float
) -> dict[tuple[str, str], list[float]]:
    """Seconds of each action in every round; they take turns, so that a drift of the clock affects
    all of them.

    Stops before `repeats` rounds when `limit` seconds are over, but not before three.
    """
    seconds_of: dict[tuple[str, str], list[float]] = defaultdict(list)
    start = time.perf_counter()
    for done in range(repeats):
        CORES.choose(device)
        if done >= 3 and time.perf_counter() - start > limit:
            break
        first = done % len(actions)
        names = list(actions)
        for name in names[first:] + names[:first]:  # each is the first one in some rounds
            seconds_of[name].append(seconds(actions[name], device))
    return seconds_of


def allocated(device: torch.device) -> int:
    """Bytes in use on a GPU, 0 elsewhere."""
    gc.collect()
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def peak_bytes(action: Action, device: torch.device) -> int | None:
    """The most memory in use while the action runs."""
    if device.type != "cuda":
        action()
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    action()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device)


def captured(action: Action, device: torch.device, pool: tuple[int, int]) -> Action:
    """The action as a CUDA graph; it has been run before, so that nothing is built for the first
    time.

    Graphs of one pool share their memory: each is a whole step that needs nothing of the others.
    """
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        action()
        action()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    before = torch.cuda.current_stream(device)
    try:
        with torch.cuda.graph(graph, pool=pool):
            action()
    finally:
        torch.cuda.set_stream(before)  # a capture that fails leaves its own stream behind
    graph.replay()
    torch.cuda.synchronize(device)
    return graph.replay
