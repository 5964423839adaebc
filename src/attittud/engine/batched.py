"""Several vector-Jacobian products at once by `torch.func.vmap`: faster where kernels are small.

Not `is_grads_batched=True`: that is a hidden loop for most backward operations.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attittud.engine.base import Engine, Gradients
from attittud.parameters import Layout

# What a chunk of rows may take beside the sketch itself. Beyond it kernels are large and a loop is as fast.
CHUNK_BYTES = 1 << 28


def rows_at_once(layout: Layout) -> int:
    return max(1, CHUNK_BYTES // max(1, layout.size * layout.dtype.itemsize))


class Batched(Engine):
    name = "batched"

    def products(self, losses: Tensor, layout: Layout, weights: Tensor) -> Iterator[tuple[slice, Gradients]]:
        def product(row: Tensor) -> tuple[Tensor, ...]:
            # vmap cannot return None, so parameters these losses do not reach come back as zeros.
            return torch.autograd.grad(losses, layout.parameters, row, retain_graph=True, materialize_grads=True)

        size = rows_at_once(layout)
        for start in range(0, weights.shape[0], size):
            chunk = weights[start : start + size]
            try:
                gradients = torch.func.vmap(product)(chunk)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                raise RuntimeError(
                    "engine 'batched' cannot vectorise the backward pass of this model (known for normalisation layers "
                    "right after a bf16 operation under autocast, for compiled modules and for channels_last in fp32); "
                    f"use engine='loop' or engine='auto'. torch said: {error}"
                ) from error
            yield slice(start, start + chunk.shape[0]), gradients
