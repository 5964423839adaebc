"""A forward pass without side effects, for the callables `basis_losses` and `judge`.

Dropout is off, BatchNorm uses the batch (or its frozen statistics), and random numbers come from a
separate seed. Modes, buffers and random states are restored afterwards, even after an error.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import string_at
from itertools import chain
from operator import attrgetter
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from attittud._torch import BatchNorm, concatenate, foreach_copy_, undoing

BatchNormMode = Literal["batch", "frozen"]

_DROPOUT: set[Callable[..., Any]] = {
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout),
    *(torch.dropout, torch.alpha_dropout, torch.feature_dropout, torch.feature_alpha_dropout),
}
_ATTENTION = F.scaled_dot_product_attention
_DEVICE = attrgetter("device")
_KIND = attrgetter("device", "dtype", "layout", "is_nested")
"""What buffers must have in common to be copied together."""


class NoDropout(TorchFunctionMode):
    """Turns off functional dropout that ignores `eval()`, which only reaches dropout modules.

    It intercepts every function of torch, so a forward pass of small kernels takes a fifth to a
    third longer.
    """

    def __init__(self, states: list[tuple[torch.Generator, Tensor]]) -> None:
        """`states`: the generators that a forward pass may draw random numbers from, and their
        states before it.
        """
        super().__init__()
        self._states = states
        self._has_dropout = False

    @property
    def drawn(self) -> bool:
        """Whether random numbers have been drawn so far, or dropout would have drawn some."""
        return self._has_dropout or any(_differs(*pair) for pair in self._states)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run a function of torch; dropout returns its input, attention gets dropout_p=0."""
        kwargs = kwargs or {}
        if func in _DROPOUT:
            # Arguments of dropout: input, p, training (`train` in functions of `torch` itself).
            if len(args) > 2:
                training = args[2]
            else:
                training = kwargs.get("training", kwargs.get("train", True))
            self._has_dropout |= bool(training)
            if args:
                return args[0]
            return kwargs["input"]
        if func is _ATTENTION:
            # Its arguments: query, key, value, attn_mask, dropout_p.
            if len(args) > 4:
                probability = args[4]
                args = (*args[:4], 0.0, *args[5:])
            else:
                probability = kwargs.get("dropout_p", 0.0)
                kwargs = kwargs | {"dropout_p": 0.0}
            self._has_dropout |= probability != 0
        return func(*args, **kwargs)


def _differs(generator: torch.Generator, state: Tensor) -> bool:
    """Whether the state of a generator differs from an earlier state. Both are in the memory of the
    CPU: no device is waited for.
    """
    now = generator.get_state()
    return string_at(now.data_ptr(), now.numel()) != string_at(state.data_ptr(), state.numel())


@contextmanager
def isolated_forward(
    model: nn.Module, batch_norm: BatchNormMode, seed: int, *, draws: bool = True
) -> Iterator[NoDropout]:
    """Run forward passes without side effects. Keep the block open until the graph has been used.

    Dropout is off, BatchNorm uses the batch or its frozen statistics, and random numbers come from
    `seed`. Modes, buffers and random states are restored afterwards.

    `draws`: whether the passes may draw random numbers. False is faster, but then functional
        dropout stays on. Check `drawn` of the yielded object after the forward pass: if it is
        True, dropout may have been applied.
    """
    modules = all_modules(model)
    with _seeded(modules, seed, draws=draws) as states, _modes(modules, batch_norm):
        dropout = NoDropout(states)
        if draws or not states:  # if some generators are unknown, `drawn` could miss a draw
            with dropout:
                yield dropout
        else:
            yield dropout


def all_modules(model: nn.Module) -> list[nn.Module]:
    """List the modules of a model, several times as fast as the nested generators of
    `Module.modules()`.
    """
    modules = [model]
    ids = {id(model)}
    for module in modules:
        for child in module._modules.values():
            if child is not None and id(child) not in ids:
                ids.add(id(child))
                modules.append(child)
    return modules


@contextmanager
def _seeded(
    modules: list[nn.Module], seed: int, *, draws: bool
) -> Iterator[list[tuple[torch.Generator, Tensor]]]:
    """Seed the random generators of torch, Python and NumPy inside the block, and restore their
    states afterwards.

    Yields torch's generators with the states that they have at the beginning of the block, or [] if
    some generators are unknown (a device other than CPU and CUDA, or a CUDA graph under capture).

    Without `draws`, torch's generators are not seeded: a pass that draws from them nevertheless is
    run again with `draws`.
    """
    used = set[torch.device]()
    for module in modules:
        used.update(map(_DEVICE, [p for p in module._parameters.values() if p is not None]))
    devices = {device for device in used if device.type == "cuda"}
    seedable = all(device.type in ("cpu", "cuda") for device in used)
    if devices and torch.cuda.is_current_stream_capturing():
        # A CUDA graph under capture has its own random state, which may not be set. It draws new
        # numbers at every replay.
        devices = set()
        seedable = False
    python_state = random.getstate()
    numpy_random: Any = None
    if "numpy" in sys.modules:
        numpy_random = sys.modules["numpy"].random
        numpy_state = numpy_random.get_state()
    # Only the generators that are restored: torch.manual_seed would seed all devices.
    generators = [
        torch.default_generator,
        *(torch.cuda.default_generators[d.index or 0] for d in devices),
    ]
    states = [(generator, generator.get_state()) for generator in generators]
    inside = states

    def restore() -> None:
        """Set the states from before the block."""
        for generator, state in states:
            if _differs(generator, state):
                generator.set_state(state)
        random.setstate(python_state)
        if numpy_random:
            numpy_random.set_state(numpy_state)

    with undoing(restore):
        if draws or not seedable:
            for generator in generators:
                generator.manual_seed(seed)
            inside = [(generator, generator.get_state()) for generator in generators]
        random.seed(seed)
        if numpy_random:
            numpy_random.seed(seed & 0xFFFFFFFF)
        if not seedable:
            inside = []
        yield inside


@contextmanager
def _modes(modules: list[nn.Module], batch_norm: BatchNormMode) -> Iterator[None]:
    """Set evaluation mode inside the block, and restore modes and buffers afterwards.

    Two kinds of modules stay in training mode, without its effects: recurrent layers, whose dropout
    is set to 0, and with `batch_norm` "batch" BatchNorm, which tracks no statistics.
    """
    registered = [dict(module._buffers) for module in modules]
    every_buffer = chain.from_iterable(map(dict.values, registered))
    contents = _Contents([buffer for buffer in every_buffer if buffer is not None])
    # Modes are set in vars(module), because Module.__setattr__ takes ten times as long.
    owned: list[dict[str, Any]] = [vars(module) for module in modules]
    training = [module.training for module in modules]
    recurrent = [(m, m.training, m.dropout) for m in modules if isinstance(m, nn.RNNBase)]
    tracked = []
    if batch_norm == "batch":
        tracked = [(m, m.track_running_stats) for m in modules if isinstance(m, BatchNorm)]

    def restore() -> None:
        """Set modes, dropout and tracking from before the block; register the same buffers, with
        the same contents.
        """
        # First, while the modules are still in the modes of the block.
        silent = _silent_buffers(modules, registered)
        for attributes, mode in zip(owned, training, strict=True):
            attributes["training"] = mode
        for rnn, _, dropout in recurrent:
            vars(rnn)["dropout"] = dropout
        for norm, tracks in tracked:
            vars(norm)["track_running_stats"] = tracks
        for module, buffers in zip(modules, registered, strict=True):
            if buffers or module._buffers:
                module._buffers.clear()
                module._buffers.update(buffers)
        contents.restore(silent)

    with undoing(restore):
        for attributes in owned:
            attributes["training"] = False
        for rnn, mode, _ in recurrent:
            # cuDNN has no backward pass for recurrent layers outside of training mode, so only
            # their dropout is set to 0.
            vars(rnn).update(training=mode, dropout=0.0)
        for norm, _ in tracked:
            # In training mode without tracking, BatchNorm uses statistics of the batch and writes
            # nothing.
            vars(norm).update(training=True, track_running_stats=False)
        yield


def _silent_buffers(modules: list[nn.Module], registered: list[dict[str, Any]]) -> set[int]:
    """Return the ids of the buffers of those modules that are silent now (see `_is_silent`).
    `registered`: the buffers of each module by name, from before the block.
    """
    ids = set[int]()
    for module, buffers in zip(modules, registered, strict=True):
        if buffers and _is_silent(module):
            ids.update(map(id, buffers.values()))
    return ids


def _is_silent(module: nn.Module) -> bool:
    """Whether a module is torch's own BatchNorm in a mode in which it writes into none of its
    buffers.

    (A model may have called `train()` in its forward pass.)
    """
    is_torchs = type(module).forward is BatchNorm.forward
    return is_torchs and not (module.training and module.track_running_stats)


class _Contents:
    """Copies of the contents of buffers, which `restore` writes back.

    Buffers are copied in groups: a network may have hundreds of small buffers, and one launch for
    each of them would take longer than the copy itself.
    """

    def __init__(self, buffers: list[Tensor]) -> None:
        """Copy the contents of these buffers. A number of a buffer is its position in this list."""
        self.buffers = buffers
        self.versions = [buffer._version for buffer in buffers]
        self._single: dict[int, Tensor] = {}
        """The contents of buffers outside of any group, by number."""
        self._groups: list[tuple[list[int], Tensor]] = []
        """For each group the numbers of its buffers, and their contents one after the other."""
        groups: dict[Any, list[int]] = {}
        for at, kind in enumerate(zip(map(type, buffers), map(_KIND, buffers), strict=True)):
            groups.setdefault(kind, []).append(at)
        with torch.no_grad():
            for (cls, (_, _, layout, nested)), numbers in groups.items():
                if len(numbers) > 1 and cls is Tensor and layout == torch.strided and not nested:
                    self._groups.append((numbers, concatenate([buffers[at] for at in numbers])))
                else:
                    for at in numbers:
                        self._single[at] = buffers[at].clone()

    def restore(self, silent: set[int]) -> None:
        """Write the contents back, also where the version of a buffer says that it has not changed.

        F.batch_norm writes running statistics without a new version, and so does
        `buffer.data.add_()`. Only `silent` buffers (ids), and the few that are not simple blocks of
        memory, are left alone if their version is the old one. Blocks are written through `.data`:
        a new version would forbid the backward pass of a loss that uses the buffer.
        """
        # Numbers of the buffers with a new version, and of those to be written through `.data`.
        changed = set[int]()
        blocks = set[int]()
        for at, buffer in enumerate(self.buffers):
            if buffer._version != self.versions[at]:
                changed.add(at)
            if (at in changed or id(buffer) not in silent) and _is_block(buffer):
                blocks.add(at)
        with torch.no_grad():
            for numbers, flat in self._groups:
                if blocks.isdisjoint(numbers) and changed.isdisjoint(numbers):
                    continue
                parts = flat.split([self.buffers[at].numel() for at in numbers])
                contents = dict(zip(numbers, parts, strict=True))
                together = sorted(blocks.intersection(numbers))
                if together:
                    foreach_copy_(
                        [self.buffers[at].data for at in together],
                        [contents[at].view_as(self.buffers[at]) for at in together],
                    )
                for at in changed.difference(blocks).intersection(numbers):
                    self.buffers[at].copy_(contents[at].view_as(self.buffers[at]))
            for at, content in self._single.items():
                if at in blocks:
                    self.buffers[at].data.copy_(content)
                elif at in changed:
                    self.buffers[at].copy_(content)


def _is_block(buffer: Tensor) -> bool:
    """Whether a buffer is simply memory, so that it may be written through `.data`."""
    plain = type(buffer) is Tensor and buffer.layout == torch.strided and not buffer.is_nested
    return plain and buffer.is_contiguous() and not buffer.is_conj() and not buffer.is_neg()
