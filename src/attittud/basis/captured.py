"""The arithmetic of a step as a CUDA graph, for small models, in which launching kernels takes longer than running them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from types import NoneType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from attittud._torch import foreach_mul, foreach_zero_
from attittud.autograd.layout import copy_each_
from attittud.basis.subspace import Finished, Gathered, Stored, finished
from attittud.decompose import Weights
from attittud.engine.base import logger
from attittud.eta import Eta

if TYPE_CHECKING:
    from attittud.autograd.layout import Layout
    from attittud.step.step import Given, Step

LARGEST = 1 << 26
"""The largest gradient in bytes. The two gradients at fixed addresses then take 128 MB, with eta="auto" three take 192 MB."""
ALIKE = 2
"""How many steps with the same settings run before a step is captured. Kernels are compiled in these steps."""


class CapturedUpdate:
    """Memory for the gradients of the primary task, the auxiliary task and the judges, and a CUDA graph that makes the update.

    It is used in steps of one process with one auxiliary loss, while parameters, settings and the shape of the basis stay the
    same. A refresh writes new rows to the same addresses, and eta="auto" writes new weights there. All other steps run without
    it. Steps that use the judges have a graph of their own.
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
        self._counts = {False: 0, True: 0}  # steps with these settings, without judges and with them
        self._memory: list[Tensor] = []
        self._views: list[list[Tensor]] = []
        self._graphs: dict[bool, tuple[torch.cuda.CUDAGraph, Gathered]] = {}  # without judges and with them

    def serves(self, step: Step, tasks: dict[str, Given], primary_weight: float) -> bool:
        """Whether this step can use the captured update. If so, the step's gradients go into the update's memory."""
        space = step.refresher.subspace if step.refreshing else step.subspace
        if self._refused or not isinstance(space, Stored) or not self._may_serve(step, space, tasks):
            return False
        ((name, task),) = tasks.items()
        # The graph reads the tensors of the subspace, whose addresses stay the same while the number of rows does. It also
        # reads the scores of a task, whose addresses stay the same until other scores are loaded.
        eta = task.eta if isinstance(task.eta, Eta) else step.parts.auto.scores.get(name)
        settings = space.rows.shape, name, eta, task.weight, primary_weight, step.include_mean
        if self._space is None or self._space() is not space or settings != self._settings:
            self._forget(space, settings)
        asked = step.judge is not None
        self._counts[asked] += 1
        if self._counts[asked] <= ALIKE:
            return False
        while len(self._memory) < 2 + asked:
            self._memory.append(space.layout.empty())
            self._views.append(space.layout.views(self._memory[-1]))
        return True

    @staticmethod
    def _may_serve(step: Step, space: Stored, tasks: dict[str, Given]) -> bool:
        layout, workers = space.layout, step.workers
        if not space.rows.is_cuda or layout.size * layout.dtype.itemsize > LARGEST or len(tasks) > 1:
            return False
        # (A group sums over its workers even if it has only one.)
        if workers.size > 1 or workers.splits_examples or workers.splits_columns:
            return False
        return layout.alike and not step.replayed and not torch.cuda.is_current_stream_capturing()

    def take(self, which: int, layout: Layout, gradients: Sequence[Tensor | None]) -> Tensor | None:
        """Copy the gradient of the primary task (0), the auxiliary task (1) or the judges (2) into the update's memory.

        Returns None if this is impossible.
        """
        space = None if self._space is None else self._space()
        if space is None or layout is not space.layout:  # a refresh begins with other parameters
            return None
        views, kinds = self._views[which], set(map(type, gradients))
        if kinds == {Tensor, NoneType}:  # a missing gradient counts as zero
            foreach_zero_([view for view, gradient in zip(views, gradients, strict=True) if gradient is None])
            views = [view for view, gradient in zip(views, gradients, strict=True) if gradient is not None]
            gradients = [gradient for gradient in gradients if gradient is not None]
        elif kinds != {Tensor}:
            return None
        try:
            copy_each_(views, cast(list[Tensor], gradients))
        except RuntimeError:  # sparse gradients: the ordinary path refuses them and names the parameter
            return None
        return self._memory[which]

    def finish(self, step: Step, primary_weight: float) -> Finished:
        """Form the update from the gradients in memory; the tensors of the result are new."""
        space = step.subspace
        assert isinstance(space, Stored) and self._space is not None
        if space is not self._space() or space.rows.shape != self._settings[0]:  # a refresh has made another basis
            self._forget(None, ())  # the memory becomes `.grad`
            return space.finish(step, primary_weight)
        asked = step.judges is not None
        if asked not in self._graphs:
            try:
                self._graphs[asked] = self._capture(step, primary_weight)
            except RuntimeError as error:
                logger.info("steps are not captured in a CUDA graph: %s", error)
                self._forget(None, ())  # the memory becomes `.grad`
                self._refused = True
                return space.finish(step, primary_weight)
        graph, numbers = self._graphs[asked]
        graph.replay()
        numbers = replace(numbers, vector=numbers.vector.clone())
        return finished(list(foreach_mul(self._views[1], 1.0)), step.tasks, numbers, {})

    def _compute(self, step: Step, primary_weight: float) -> Gathered:
        """The computations in the graph: write the update over the auxiliary gradient, and update the scores of eta="auto"."""
        space, ((name, task),) = step.subspace, step.tasks.items()
        assert isinstance(space, Stored)
        scores = step.parts.auto.scores[name] if isinstance(task.eta, Weights) else None
        # The graph reads the weights at the time it runs.
        weights = None if scores is None else Weights(*scores.weights.unbind())
        _, numbers, cosines = space.compute(step.copied(weights), primary_weight)
        gathered = numbers.gather()
        if scores is not None and cosines:
            scores.add(cosines[name])
        return gathered

    def _capture(self, step: Step, primary_weight: float) -> tuple[torch.cuda.CUDAGraph, Gathered]:
        graph, device = torch.cuda.CUDAGraph(), self._memory[0].device
        if self._stream is None or self._stream.device != device:
            self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._stream):
            # Other threads, such as a data loader's, may use the device meanwhile.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                numbers = self._compute(step, primary_weight)
            finally:
                graph.capture_end()
        return graph, numbers
