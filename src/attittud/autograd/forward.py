"""A forward pass without side effects, for the callables `basis_losses` and `judge`.

Dropout is off, BatchNorm uses the batch (or its frozen statistics), and random numbers come from a
separate seed. Modes, buffers and random states are restored afterwards, even after an error.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from attittud._torch import BatchNorm, foreach_copy_

BatchNormMode = Literal["batch", "frozen"]

_DROPOUT: set[Callable[..., Any]] = {
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout),
    *(torch.dropout, torch.alpha_dropout, torch.feature_dropout, torch.feature_alpha_dropout),
}
_ATTENTION = F.scaled_dot_product_attention


class NoDropout(TorchFunctionMode):
    """Turns off functional dropout that ignores `eval()`, which only reaches dropout modules."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUT:
            return args[0] if args else kwargs["input"]
        if func is _ATTENTION:
            # Its arguments: query, key, value, attn_mask, dropout_p.
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            else:
                kwargs = kwargs | {"dropout_p": 0.0}
        return func(*args, **kwargs)


@contextmanager
def isolated_forward(model: nn.Module, batch_norm: BatchNormMode, seed: int) -> Iterator[None]:
    """Run forward passes without side effects. Keep the block open until the graph has been used.

    Dropout is off, BatchNorm uses the batch or its frozen statistics, and random numbers come from
    `seed`. Modes, buffers and random states are restored afterwards.
    """
    with _seeded(model, seed), _modes(list(model.modules()), batch_norm), NoDropout():
        yield


@contextmanager
def _seeded(model: nn.Module, seed: int) -> Iterator[None]:
    """Seed all random generators, and restore them afterwards."""
    devices = {parameter.device for parameter in model.parameters()}
    gpus = [device.index or 0 for device in devices if device.type == "cuda"]
    if gpus and torch.cuda.is_current_stream_capturing():
        # A CUDA graph under capture has its own random state, which may not be set. It draws new
        # numbers at every replay.
        gpus = []
    numpy_random = sys.modules["numpy"].random if "numpy" in sys.modules else None
    numpy_state = numpy_random.get_state() if numpy_random else None
    python_state = random.getstate()
    with torch.random.fork_rng(gpus):
        # Only the generators that are restored: torch.manual_seed would seed all devices.
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            torch.cuda.default_generators[gpu].manual_seed(seed)
        random.seed(seed)
        if numpy_random:
            numpy_random.seed(seed & 0xFFFFFFFF)
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy_random:
                numpy_random.set_state(numpy_state)


@contextmanager
def _modes(modules: list[nn.Module], batch_norm: BatchNormMode) -> Iterator[None]:
    """Set evaluation mode, except for modules that need training mode; restore modes and buffers
    afterwards.
    """
    registered = [dict(module._buffers) for module in modules]
    contents = _Contents([b for buffers in registered for b in buffers.values() if b is not None])
    training = [module.training for module in modules]
    recurrent = [(m, m.training, m.dropout) for m in modules if isinstance(m, nn.RNNBase)]
    norms = []
    if batch_norm == "batch":
        norms = [(m, m.track_running_stats) for m in modules if isinstance(m, BatchNorm)]
    try:
        for module in modules:
            module.training = False
        for rnn, mode, _ in recurrent:
            # cuDNN has no backward pass for recurrent layers outside of training mode, so only
            # their dropout is set to 0.
            rnn.training = mode
            rnn.dropout = 0.0
        for norm, _ in norms:
            # In training mode without tracking, BatchNorm uses statistics of the batch and writes
            # nothing.
            norm.training = True
            norm.track_running_stats = False
        yield
    finally:
        for module, mode, buffers in zip(modules, training, registered, strict=True):
            module.training = mode
            module._buffers.clear()
            module._buffers.update(buffers)
        for rnn, _, dropout in recurrent:
            rnn.dropout = dropout
        for norm, tracks in norms:
            norm.track_running_stats = tracks
        contents.restore()


class _Contents:
    """Copies of the contents of buffers, which `restore` writes back.

    Simple blocks of memory are written back even if their version says that nothing has changed:
    F.batch_norm writes running statistics without a new version. They are written through `.data`,
    because a new version would forbid the backward pass of a loss that uses the buffer.
    """

    def __init__(self, buffers: list[Tensor]) -> None:
        with torch.no_grad():
            self._blocks = [(b, b.clone()) for b in buffers if _is_block(b)]
            self._others = [(b, b.clone(), b._version) for b in buffers if not _is_block(b)]

    def restore(self) -> None:
        with torch.no_grad():
            if self._blocks:
                targets = [buffer.data for buffer, _ in self._blocks]
                foreach_copy_(targets, [content for _, content in self._blocks])
            for buffer, content, version in self._others:
                if buffer._version != version:
                    buffer.copy_(content)


def _is_block(buffer: Tensor) -> bool:
    plain = type(buffer) is Tensor and buffer.layout == torch.strided and not buffer.is_nested
    return plain and buffer.is_contiguous() and not buffer.is_conj() and not buffer.is_neg()
