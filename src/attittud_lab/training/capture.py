"""The steps of a phase as CUDA graphs: small networks wait for kernel launches, a replayed graph does not.

Each kind of step (an ordinary one, one with a refresh) is run as usual a few times, then recorded and from there on
replayed. Whatever changes from step to step lies in memory that the graph reads: rows, learning rate, random seed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

from attittud_lab.errors import one_line

logger = logging.getLogger("attittud")

T = TypeVar("T")
Replay = Callable[[], object]
Record = Callable[[Callable[[], T]], tuple[T, Replay]]
"""Records an action without carrying it out: what it returned, and a function that does its work on the device."""

WARM_UP = 3
"""Steps of a kind before it is recorded: libraries choose their kernels, optimizers make their state."""


class Steps(Generic[T]):
    """Runs the steps of a phase, recorded where possible. What cannot be recorded is said once and run as usual."""

    def __init__(self, record: Record[T]) -> None:
        self._record = record
        self._seen: Counter[str] = Counter()
        self._recorded: dict[str, tuple[T, Replay]] = {}
        self._failed: set[str] = set()

    def run(self, kind: str | None, action: Callable[[], T]) -> tuple[T, bool]:
        """What the action returns, and whether it was replayed: then its Python code did not run.

        `kind` is None for a step that must not be recorded.
        """
        if kind is None or kind in self._failed:
            return action(), False
        if kind in self._recorded:
            found, replay = self._recorded[kind]
            replay()
            return found, True
        self._seen[kind] += 1
        if self._seen[kind] <= WARM_UP:
            return action(), False
        try:
            found, replay = self._recorded[kind] = self._record(action)
        except Exception as error:  # what cannot be captured raises all sorts
            self._failed.add(kind)
            reason = one_line(error, 300)
            logger.warning(
                "training.cuda_graph: a %s cannot be captured and is run as usual (%s: %s)",
                kind,
                type(error).__name__,
                reason,
            )
            return action(), False
        # Recording ran its Python code, so that this first replay is an ordinary step to the caller.
        replay()
        return found, False


class CudaRecorder:
    """Records with `torch.cuda.graph`. All graphs of a phase share their memory, as they never run side by side."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, action: Callable[[], T]) -> tuple[T, Replay]:
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream(self._device)
        try:
            # On the stream that the steps run on: autograd remembers where parameters were used first.
            with torch.cuda.graph(graph, pool=self._pool, stream=stream):
                found = action()
        finally:
            torch.cuda.set_stream(stream)  # a capture that fails leaves its own behind
        return found, graph.replay


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """A stream of one's own, since nothing can be captured on the default one."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)
