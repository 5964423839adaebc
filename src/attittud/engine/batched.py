"""Several vector-Jacobian products at once by `torch.func.vmap`: faster where kernels are small.

Not `is_grads_batched=True`: that is a hidden loop for most backward operations. Where torch cannot vectorise a backward
pass (normalisation right after a bf16 operation under autocast, compiled modules, channels_last in fp32), the engine says
so in the log and goes on with a loop.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from attittud.engine.base import Engine, Gradients, logger
from attittud.engine.loop import Loop
from attittud.parameters import Layout

# What a chunk of rows may take beside the sketch itself where rows are short and only launches cost.
CHUNK_BYTES = 1 << 28
# Longer rows: three at once keep a refresh within 2k + 3 rows in all. The longest keep the device busy one by one.
LONG_ROW, LONGEST_ROW = 1 << 24, 1 << 26


def rows_at_once(layout: Layout) -> int:
    """How many rows of ΠJ are worth computing together."""
    row = max(1, layout.size * layout.dtype.itemsize)
    if row > LONGEST_ROW:
        return 1
    return 3 if row > LONG_ROW else CHUNK_BYTES // row


class Batched(Engine):
    name = "batched"

    def __init__(self) -> None:
        self.fallback: Loop | None = None

    def products(self, losses: Tensor, layout: Layout, weights: Tensor) -> Iterator[tuple[slice, Gradients]]:
        start, size = 0, rows_at_once(layout)
        while start < weights.shape[0] and self.fallback is None:
            chunk = weights[start : start + size]
            try:
                gradients = _vectorised(losses, layout, chunk)
            except RuntimeError as error:
                reason = str(error).split("\n")[0]
                logger.warning(
                    "engine: 'loop' from now on, because torch cannot vectorise this backward pass (%s)", reason
                )
                self.fallback = Loop()
                break
            yield slice(start, start + chunk.shape[0]), gradients
            start += chunk.shape[0]
        if self.fallback is not None:
            for rows, gradients in self.fallback.products(losses, layout, weights[start:]):
                yield slice(rows.start + start, rows.stop + start), gradients


def _vectorised(losses: Tensor, layout: Layout, weights: Tensor) -> Gradients:
    def product(row: Tensor) -> tuple[Tensor, ...]:
        # vmap cannot return None, so parameters these losses do not reach come back as zeros.
        return torch.autograd.grad(losses, layout.parameters, row, retain_graph=True, materialize_grads=True)

    with warnings.catch_warnings():
        # torch loops inside for the few operations without a batching rule: slower, not wrong.
        warnings.filterwarnings("ignore", message=".*batching rule.*", category=UserWarning)
        return torch.func.vmap(product)(weights)
