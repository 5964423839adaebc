"""The arithmetic of a step as a CUDA graph, for small models, in which launching kernels takes
longer than running them.

A step hands over its vectors, and a function of them that writes the update. This file knows
nothing else about steps. To do without it, delete the file and the lines of `step/step.py` that
name it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attittud.autograd.layout import Layout
from attittud.engine.base import logger
from attittud.report import Gathered

LARGEST = 1 << 26
"""The largest gradient in bytes. Kernels for larger gradients run longer than their launches
take.
"""
ALIKE = 2
"""How many steps run with the same settings and addresses before one is captured. Kernels are
compiled in these steps.
"""
MOST = 8
"""How many graphs are kept. Mostly one or two are needed, because torch gives freed memory to the
next tensor of its size.
"""
MOST_COUNTED = 64
"""With more addresses of gradients than this, the counts of their steps begin again."""
UNUSED = 100
"""A graph that was not used for this many steps is replaced if another one is needed."""

Addresses = tuple[int, ...]
Vectors = Sequence[Tensor]


@dataclass
class Captured:
    """A CUDA graph with what it writes."""

    graph: torch.cuda.CUDAGraph
    numbers: Gathered  # for the report
    changed: list[tuple[Tensor, Tensor]]
    """The tensors that it changes besides the vectors, each with its value before the step."""
    used: int = 0  # the number of the step that used it last

    def undo(self) -> None:
        """Restore the changed tensors, after a step that fails later."""
        for tensor, before in self.changed:
            tensor.copy_(before)


@dataclass(frozen=True)
class Work:
    """What a step computes from its vectors."""

    basis: object
    """The object that holds V. A graph belongs to one such object, because it refers to its
    tensors.
    """
    settings: Hashable
    """Everything else that `compute` depends on, apart from the contents of tensors whose addresses
    stay the same.
    """
    compute: Callable[[Vectors], Gathered]
    """Writes the update over the vectors, and returns the numbers of the report."""
    changes: Sequence[Tensor] = ()
    """Tensors that `compute` changes besides the vectors."""


def is_small(layout: Layout) -> bool:
    """Whether the gradient is on a GPU, and so small that launching its kernels takes longer than
    running them.
    """
    return layout.device.type == "cuda" and layout.size * layout.dtype.itemsize <= LARGEST


class CapturedUpdate:
    """CUDA graphs that make the update, each for gradients at certain addresses.

    The guide holds no gradients between steps. It looks where they lie in this step, and uses the
    graph for these addresses.

    A graph is used in steps of one process with one auxiliary loss, while settings and the shape of
    the basis stay the same. A refresh writes new rows to the same addresses, and eta="auto" writes
    new weights there. All other steps run without a graph.
    """

    def __init__(self) -> None:
        self._refused = False  # whether torch failed to capture the update
        self._stream: torch.cuda.Stream | None = None
        """The stream of every capture. It is reused, because torch keeps memory for matrix products
        on each stream.
        """
        self.forget()

    def __reduce__(self) -> Any:
        return CapturedUpdate, ()  # a copy captures its own

    def forget(self) -> None:
        """Drop all graphs, which hold memory."""
        self._begin(None, ())

    def _begin(self, basis: object | None, settings: Hashable) -> None:
        """Drop all graphs, and serve steps with this basis and these settings."""
        # A weak reference is compared by identity, because another basis may later have the same
        # addresses.
        self._basis: weakref.ref[object] | None = None
        if basis is not None:
            self._basis = weakref.ref(basis)
        self._settings = settings
        self._steps = 0
        self._counts: dict[Addresses, int] = {}  # steps by the addresses of their gradients
        self._graphs: dict[Addresses, Captured] = {}

    def leave_out(self, basis: object) -> None:
        """Note a step without a graph. If the basis is another one, graphs are dropped: the model
        may have moved.
        """
        if self._basis is not None and self._basis() is not basis:
            self.forget()

    def run(self, work: Work, vectors: Vectors) -> tuple[Gathered, Callable[[], None]] | None:
        """Write the update over the vectors by a graph. Returns None if this step has no graph.

        Otherwise returns the numbers for the report, and a function that restores the tensors in
        `work.changes`.
        """
        if self._refused or torch.cuda.is_current_stream_capturing():
            self.leave_out(work.basis)
            return None
        same_basis = self._basis is not None and self._basis() is work.basis
        if not same_basis or work.settings != self._settings:
            self._begin(work.basis, work.settings)
        self._steps += 1
        addresses = _addresses(vectors)
        captured = self._graphs.get(addresses)
        if captured is None:
            captured = self._capture_if_due(addresses, work, vectors)
        if captured is None:
            return None
        captured.used = self._steps
        # Before the replay, because memory may be short.
        vector = torch.empty_like(captured.numbers.vector)
        captured.graph.replay()
        numbers = captured.numbers
        return Gathered(vector.copy_(numbers.vector), numbers.sizes, numbers.names), captured.undo

    def _capture_if_due(
        self, addresses: Addresses, work: Work, vectors: Vectors
    ) -> Captured | None:
        """Capture a graph for gradients at these addresses, if they have come often enough and
        there is room for it.

        If torch cannot capture the update, this is logged, and no later step tries again.
        """
        # Many addresses come from batches of many sizes, for example.
        if len(self._counts) > MOST_COUNTED and addresses not in self._counts:
            self._counts.clear()
        self._counts[addresses] = self._counts.get(addresses, 0) + 1
        if self._counts[addresses] <= ALIKE:
            return None
        if len(self._graphs) == MOST:
            oldest = min(self._graphs, key=lambda key: self._graphs[key].used)
            if self._graphs[oldest].used > self._steps - UNUSED:
                return None
            del self._graphs[oldest]
        try:
            self._graphs[addresses] = self._capture(work, vectors)
        except RuntimeError as error:
            logger.info("steps are not captured in a CUDA graph: %s", error)
            self.forget()
            self._refused = True
            return None
        return self._graphs[addresses]

    def _capture(self, work: Work, vectors: Vectors) -> Captured:
        """Record the kernels of `work.compute`; they run at the first replay."""
        graph = torch.cuda.CUDAGraph()
        device = vectors[0].device
        if self._stream is None or self._stream.device != device:
            self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))
        # Graphs run one after the other, so they can use the same memory.
        pool = next((captured.graph.pool() for captured in self._graphs.values()), None)
        with torch.cuda.stream(self._stream):
            # Other threads, such as a data loader's, may use the device meanwhile.
            graph.capture_begin(pool, capture_error_mode="thread_local")
            try:
                before = [(tensor, tensor.clone()) for tensor in work.changes]
                numbers = work.compute(vectors)
            finally:
                graph.capture_end()
        return Captured(graph, numbers, before)


def _addresses(vectors: Vectors) -> Addresses:
    return tuple([vector.data_ptr() for vector in vectors])
