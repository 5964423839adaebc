"""The device of a run: its choice, the data on it, repeatable bits, and steps as CUDA graphs.

Small networks wait for kernel launches; a replayed graph does not. Each kind of step (a plain step,
a step with a refresh) runs as usual a few times, is then recorded, and is replayed from then on.
Everything that changes from step to step (rows, learning rate, random seed) is in memory that the
graph reads.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import Any, Generic, TypeVar

import torch

from attittud_lab.config.schema import Config
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import Task
from attittud_lab.errors import InputError, one_line

logger = logging.getLogger("attittud")

T = TypeVar("T")
Replay = Callable[[], object]
Record = Callable[[Callable[[], T]], tuple[T, Replay]]
"""Records an action without running it: gives its result, and a function that does its work on the
device.
"""

_LESS = "raise training.guided.accumulate, lower the batch sizes, or choose a smaller model"
CLEARLY_FASTER = 0.9
"""Several threads are used if they take at most this share of the time that one thread takes."""
MEASURED_STEPS = 5
"""How many steps are timed with each number of threads."""
MEASURED_SECONDS = 2.0
"""No further steps are timed after so many seconds.

On a busy machine a step of two threads may take a second.
"""
WARM_UP = 3
"""How many steps of a kind run before it is recorded: libraries choose their kernels, optimizers
make their state.
"""


def choose_device(name: str) -> torch.device:
    """`auto` is the first CUDA device, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # the device `meta` has no memory
    except (RuntimeError, AssertionError) as error:
        problem = f"device: {name!r} cannot be used here ({one_line(error, 120)})"
        raise InputError(f"{problem}; use device=auto or device=cpu") from None
    return device


@contextmanager
def single_thread() -> Iterator[None]:
    """Use one thread until a run sets its number: image statistics are sums, whose last digits
    depend on the threads.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fastest_threads(step: Callable[[], object], usual: int) -> int:
    """Return `usual` if so many threads make a step clearly faster than one thread, else 1.

    Threads wait for each other. On a busy machine that can make a small step a hundred times
    slower. The two numbers take turns, so that other work on the machine slows both. torch is left
    with one of the two numbers; the caller sets the one to use.
    """
    if usual == 1:
        return 1
    seconds: dict[int, list[float]] = {1: [], usual: []}
    began = perf_counter()
    # Round 0 is not timed: libraries choose their kernels, and threads start.
    for number in range(1 + MEASURED_STEPS):
        for threads, times in seconds.items():
            torch.set_num_threads(threads)
            before = perf_counter()
            step()
            if number > 0:
                times.append(perf_counter() - before)
        if number > 0 and perf_counter() - began > MEASURED_SECONDS:
            break
    if median(seconds[usual]) <= CLEARLY_FASTER * median(seconds[1]):
        return usual
    return 1


def on_device(data: Prepared, device: torch.device) -> Prepared:
    """Move all tensors to the device if they take less than half of its free memory; otherwise
    leave them where they are.
    """
    if device.type != "cuda" or data.bytes > torch.cuda.mem_get_info(device)[0] / 2:
        return data
    return replace(
        data,
        primary=_task_on_device(data.primary, device),
        validation=data.validation.to(device),
        test=data.test.to(device),
        auxiliary={name: _task_on_device(task, device) for name, task in data.auxiliary.items()},
    )


def _task_on_device(task: Task, device: torch.device) -> Task:
    return replace(task, examples=task.examples.to(device))


def captures(config: Config, data: Prepared, device: torch.device) -> bool:
    """Whether the steps of a run become CUDA graphs; logs why not if the settings ask for it."""
    if not config.training.cuda_graph:
        return False
    if device.type != "cuda":
        logger.info("training.cuda_graph: has no effect on %s", device)
        return False
    if any(part.inputs.device.type != "cuda" for part in data.all_examples):
        logger.warning(
            "training.cuda_graph: has no effect, because the data do not fit into the memory of "
            "the GPU"
        )
        return False
    return True


@contextmanager
def repeatable(active: bool, device: torch.device) -> Iterator[None]:
    """Use only operations that give the same bits every time inside the block, if `active` and on a
    GPU; restore torch's settings afterwards.

    CPU operations need no setting: their bits depend on the number of threads alone.
    """
    if not active or device.type != "cuda":
        yield
        return
    # cuBLAS reads this variable when it is first used, so it is not restored.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.get_deterministic_debug_mode()
    settings: Any = torch.utils.deterministic
    filling = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    settings.fill_uninitialized_memory = False  # nothing here reads uninitialised memory
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
            yield
    finally:
        torch.set_deterministic_debug_mode(before)
        settings.fill_uninitialized_memory = filling


@contextmanager
def enough_memory(device: torch.device, cure: str = _LESS) -> Iterator[None]:
    """Turn an error of memory that runs out inside the block into an InputError with a cure."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        full = isinstance(error, (MemoryError, torch.OutOfMemoryError))
        if not full and "can't allocate memory" not in str(error):
            raise
        problem = f"the memory of {device} is not enough ({one_line(error, 160)})"
        raise InputError(f"{problem}; {cure}") from None


class CapturedSteps(Generic[T]):
    """Runs the steps of a phase, recorded if possible. A step that cannot be recorded runs as usual
    and is logged once.
    """

    def __init__(self, record: Record[T]) -> None:
        self._record = record
        self._seen: Counter[str] = Counter()
        self._recorded: dict[str, tuple[T, Replay] | None] = {}
        """By kind of step: the result of the recorded action and its replay; None for a kind that
        cannot be recorded.
        """

    def run(self, kind: str | None, action: Callable[[], T]) -> tuple[T, bool]:
        """Run an action, or replay it if this kind was recorded; after the warm-up, record it.

        Returns its result, and whether it was replayed, so that its Python code did not run. The
        result of a replay is the recorded one, whose memory the replay writes. `kind` is None for a
        step that must not be recorded.
        """
        if kind is None:
            return action(), False
        recorded = self._recorded.get(kind)
        if recorded is not None:
            recorded[1]()
            return recorded[0], True
        self._seen[kind] += 1
        if self._seen[kind] <= WARM_UP or kind in self._recorded:
            return action(), False
        try:
            result, replay = self._recorded[kind] = self._record(action)
        except Exception as error:  # a failed capture may raise anything
            self._recorded[kind] = None
            reason = f"{type(error).__name__}: {one_line(error, 300)}"
            logger.warning(
                "training.cuda_graph: a %s cannot be captured and is run as usual (%s)",
                kind,
                reason,
            )
            return action(), False
        # Recording ran the Python code, so this first replay is an ordinary step for the caller.
        replay()
        return result, False


class CudaRecorder:
    """Records with `torch.cuda.graph`. All graphs of a phase share their memory, as only one runs
    at a time.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, action: Callable[[], T]) -> tuple[T, Replay]:
        """Record an action; returns its result, whose memory a replay writes, and the replay."""
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream(self._device)
        try:
            # On the stream of the steps: autograd remembers the stream on which parameters were
            # first used.
            with torch.cuda.graph(graph, pool=self._pool, stream=stream):
                result = action()
        finally:
            torch.cuda.set_stream(stream)  # a failed capture leaves its own stream behind
        return result, graph.replay


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """A separate stream, since nothing can be captured on the default stream."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)
