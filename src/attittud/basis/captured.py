"""The arithmetic of a step as a CUDA graph, for small models, in which launching kernels takes longer than running them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attittud.basis.subspace import Finished, Gathered, Stored, finished
from attittud.decompose import Weights
from attittud.engine.base import logger
from attittud.eta import Eta

if TYPE_CHECKING:
    from attittud.autograd.layout import Layout
    from attittud.step.step import Step

LARGEST = 1 << 26
"""The largest gradient in bytes. Kernels for larger gradients run longer than their launches take."""
ALIKE = 2
"""How many steps run with the same settings and addresses before one is captured. Kernels are compiled in these steps."""
MOST = 8
"""How many graphs are kept. Mostly one or two are needed, because torch gives freed memory to the next tensor of its size."""
UNUSED = 100
"""A graph that was not used for this many steps is replaced if another one is needed."""

Addresses = tuple[int, ...]


@dataclass
class Captured:
    """A CUDA graph with what it writes."""

    graph: torch.cuda.CUDAGraph
    numbers: Gathered  # for the report
    scores: list[tuple[Tensor, Tensor]]
    """In a step with judges: the tensors of the scores, each with its value before the step."""
    used: int = 0  # the number of the step that used it last

    def undo(self) -> None:
        """Restore the scores, after a step that fails later."""
        for tensor, before in self.scores:
            tensor.copy_(before)


def is_small(layout: Layout) -> bool:
    """Whether the gradient is on a GPU, and so small that launching its kernels takes longer than running them."""
    return layout.device.type == "cuda" and layout.size * layout.dtype.itemsize <= LARGEST


class CapturedUpdate:
    """CUDA graphs that make the update, each for gradients at certain addresses.

    The guide holds no gradients between steps. It looks where they lie in this step, and uses the graph for these addresses.

    A graph is used in steps of one process with one auxiliary loss, while settings and the shape of the basis stay the same.
    A refresh writes new rows to the same addresses, and eta="auto" writes new weights there. All other steps run without a
    graph.
    """

    def __init__(self) -> None:
        self._refused = False  # whether torch failed to capture the update
        self._stream: torch.cuda.Stream | None = None
        """The stream of every capture. It is reused, because torch keeps memory for matrix products on each stream."""
        self._forget(None, ())

    def __reduce__(self) -> Any:
        return CapturedUpdate, ()  # a copy captures its own

    def _forget(self, space: Stored | None, settings: tuple[Any, ...]) -> None:
        # A weak reference is compared by identity, because another basis may later have the same addresses.
        self._space = None if space is None else weakref.ref(space)
        self._settings = settings
        self._steps = 0
        self._counts: dict[Addresses, int] = {}  # steps by the addresses of their gradients
        self._graphs: dict[Addresses, Captured] = {}

    def finish(self, step: Step, primary_weight: float) -> Finished | None:
        """Write the update over the auxiliary gradient. Returns None if this step has no graph."""
        space = step.subspace
        if self._refused or not isinstance(space, Stored) or not _may_serve(step, space):
            if self._space is not None and self._space() is not space:
                self._forget(None, ())  # the model may have moved, and a graph holds memory
            return None
        ((name, task),) = step.tasks.items()
        # The graph reads the tensors of the subspace, whose addresses stay the same while the number of rows does. It also
        # reads the scores of a task, whose addresses stay the same until other scores are loaded.
        eta = task.eta if isinstance(task.eta, Eta) else step.parts.auto.scores[name]
        settings = space.rows.shape, name, eta, task.weight, primary_weight, step.include_mean
        if self._space is None or self._space() is not space or settings != self._settings:
            self._forget(space, settings)
        self._steps += 1
        assert step.primary_gradient is not None and task.flat is not None
        vectors = [step.primary_gradient, task.flat, *([] if step.judges is None else [step.judges])]
        at = _addresses(vectors)
        found = self._graphs.get(at) or self._captured(at, step, primary_weight)
        if found is None:
            return None
        found.used = self._steps
        vector = torch.empty_like(found.numbers.vector)  # before the replay, because memory may be short
        found.graph.replay()
        numbers = replace(found.numbers, vector=vector.copy_(found.numbers.vector))
        return replace(finished(task.flat, step.tasks, numbers, {}), undo=found.undo)

    def _captured(self, at: Addresses, step: Step, primary_weight: float) -> Captured | None:
        """Capture a graph for gradients at these addresses, if they have come often enough and there is room for it."""
        if len(self._counts) > 64 and at not in self._counts:  # batches of many sizes, for example
            self._counts.clear()
        self._counts[at] = self._counts.get(at, 0) + 1
        if self._counts[at] <= ALIKE:
            return None
        if len(self._graphs) == MOST:
            oldest = min(self._graphs, key=lambda key: self._graphs[key].used)
            if self._graphs[oldest].used > self._steps - UNUSED:
                return None
            del self._graphs[oldest]
        try:
            self._graphs[at] = self._capture(step, primary_weight)
        except RuntimeError as error:
            logger.info("steps are not captured in a CUDA graph: %s", error)
            self._forget(None, ())
            self._refused = True
            return None
        return self._graphs[at]

    def _compute(self, step: Step, primary_weight: float) -> tuple[Gathered, list[tuple[Tensor, Tensor]]]:
        """The computations in the graph: write the update over the auxiliary gradient, and update the scores of eta="auto"."""
        space, ((name, task),) = step.subspace, step.tasks.items()
        assert isinstance(space, Stored)
        scores = step.parts.auto.scores[name] if isinstance(task.eta, Weights) else None
        # The graph reads the weights at the time it runs.
        weights = None if scores is None else Weights(*scores.weights.unbind())
        _, numbers, cosines = space.compute(step.copied(weights), primary_weight)
        gathered, before = numbers.gather(), []
        if scores is not None and cosines:
            before = [(tensor, tensor.clone()) for tensor in scores.tensors()]
            scores.add(cosines[name])
        return gathered, before

    def _capture(self, step: Step, primary_weight: float) -> Captured:
        assert step.layout is not None
        graph, device = torch.cuda.CUDAGraph(), step.layout.device
        if self._stream is None or self._stream.device != device:
            self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))
        # Graphs run one after the other, so they can use the same memory.
        pool = next((known.graph.pool() for known in self._graphs.values()), None)
        with torch.cuda.stream(self._stream):
            # Other threads, such as a data loader's, may use the device meanwhile.
            graph.capture_begin(pool, capture_error_mode="thread_local")
            try:
                written = self._compute(step, primary_weight)
            finally:
                graph.capture_end()
        return Captured(graph, *written)


def _may_serve(step: Step, space: Stored) -> bool:
    workers = step.workers
    if not is_small(space.layout) or len(step.tasks) != 1 or step.skips:
        return False
    # (A group sums over its workers even if it has only one.)
    if workers.size > 1 or workers.splits_examples or workers.splits_columns:
        return False
    return not step.replayed and not torch.cuda.is_current_stream_capturing()


def _addresses(vectors: list[Tensor]) -> Addresses:
    return tuple([vector.data_ptr() for vector in vectors])
