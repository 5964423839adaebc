"""`training.compile`: the shared body as compiled code, in training steps only: evaluations have batches of odd sizes.

The compiled code depends only on the shapes of a batch and on nothing that came before (`dynamic=False`), so that a
continued run, or the tenth run of a comparison, computes the same bits as a run alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from attittud_lab.errors import one_line
from attittud_lab.models.network import Network

logger = logging.getLogger("attittud")

BACKEND = "inductor"
LIMIT = 64
"""The most compiled variants of a body in one process, one per batch size, text length, mode and precision (torch: 8)."""


class _Compiler:
    """Counts the seconds that compiling has taken so far."""

    seconds = began = 0.0


def _starts(_: object) -> None:
    _Compiler.began = time.perf_counter()


def _ends(_: object) -> None:
    _Compiler.seconds += time.perf_counter() - _Compiler.began


def clock() -> float:
    """Seconds without the time for compiling, which the first run of a comparison would pay for all others."""
    return time.perf_counter() - _Compiler.seconds


@contextmanager
def _timed() -> Iterator[None]:
    from torch._dynamo.callback import callback_handler as handler

    handler.register_start_callback(_starts)
    handler.register_end_callback(_ends)
    try:
        yield
    finally:
        if _starts in handler.start_callbacks:  # torch.compiler.reset() forgets them
            handler.remove_start_callback(_starts)
            handler.remove_end_callback(_ends)


@contextmanager
def compiling(wanted: bool, *, deterministic: bool) -> Iterator[None]:
    """Torch's settings for a run with a compiled body; restored afterwards."""
    if not wanted:
        yield
        return
    import torch._dynamo.config
    import torch._functorch.config
    import torch._inductor.config

    with _timed(), ExitStack() as patched:
        for settings, values in (
            (torch._dynamo.config, {"recompile_limit": LIMIT}),
            # A refresh walks a graph several times. Backward passes are compiled at once, so that a pass that cannot be
            # compiled is noticed before anything has run.
            (torch._functorch.config, {"donated_buffer": False, "force_non_lazy_backward_lowering": True}),
            # Otherwise kernels would be chosen by timing them.
            (torch._inductor.config, {"deterministic": deterministic}),
        ):
            # These settings may disappear from torch.
            known = {name: value for name, value in values.items() if hasattr(settings, name)}
            patched.enter_context(settings.patch(known))
        yield


def compile_body(model: Network) -> None:
    """Compile the shared body in place, which leaves names in files of weights as they are.

    A body may name a `compiled_part` that every pass goes through. Without it, passes for masked words are not compiled.
    Heads are never compiled. Either the whole body is compiled, or it runs as usual.
    """
    part = getattr(model.body, "compiled_part", model.body)
    assert isinstance(part, nn.Module)
    try:
        part.compile(backend=BACKEND, fullgraph=True, dynamic=False)
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
    except RuntimeError as error:  # a system or a Python that torch does not compile for
        _run_as_usual(part, error)
        return
    compiled = part._compiled_call_impl
    assert compiled is not None

    def call(*args: Any, **kwargs: Any) -> Any:
        # Both are raised before anything of the body has run.
        try:
            return compiled(*args, **kwargs)
        except FailOnRecompileLimitHit:
            reason = f"this process saw more than {LIMIT} variants of it (batch sizes, lengths, modes); for texts"
            _run_as_usual(part, RuntimeError(f"{reason}, data.buckets: null needs only one length"))
        except TorchDynamoException as error:
            _run_as_usual(part, error)
        return part(*args, **kwargs)

    part._compiled_call_impl = call


def _run_as_usual(part: nn.Module, error: Exception) -> None:
    part._compiled_call_impl = None
    # The end of torch's message is for developers of torch.
    reason = f"{type(error).__name__}: {one_line(error, 300).partition(' Set TORCHDYNAMO_VERBOSE')[0]}"
    logger.warning("training.compile: the body cannot be compiled and is run as usual (%s)", reason)


def is_compiled(model: nn.Module) -> bool:
    return any(module._compiled_call_impl is not None for module in model.modules())


@contextmanager
def eagerly(model: nn.Module) -> Iterator[None]:
    """Compile nothing inside the block, and do not use compiled code."""
    if not is_compiled(model):  # the switch alone would import all of the compiler
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
