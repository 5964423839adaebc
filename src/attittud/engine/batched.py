"""Several vector-Jacobian products at once by `torch.func.vmap`: faster if kernels are small.

`is_grads_batched=True` is not used, because it runs a hidden loop for most backward operations.
Some backward passes cannot be vectorised (normalisation right after a bf16 operation under
autocast, compiled modules, channels_last in fp32), and torch vectorises some wrongly
(`torch.cdist`). Then the engine logs the reason and continues with a loop.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attittud._torch import kept_graph
from attittud.autograd.layout import Layout, run_backward, written_into
from attittud.engine.base import Checked, Engine, UnsupportedError, differing, logger, quiet_vmap
from attittud.engine.loop import Loop

# Memory for several short rows together: for short rows, only launches take time.
CHUNK_BYTES = 1 << 28
# How many longer rows at once. Each of them also needs its own gradients of activations.
AT_ONCE = 16
# A single row above this length mostly keeps the device busy, so `loop` is as fast and takes less
# memory.
LONGEST_ROW = 1 << 26


def worthwhile(layout: Layout) -> bool:
    """Whether computing rows of ΠJ together is likely to be faster than one by one."""
    return layout.size * layout.dtype.itemsize <= LONGEST_ROW


def rows_at_once(layout: Layout) -> int:
    """How many rows of ΠJ are computed together.

    Besides the sketch, each row needs memory for the gradient of one parameter at a time: at most
    two vectors of length D.
    """
    row = max(1, layout.size * layout.dtype.itemsize)
    largest = max(parameter.numel() for parameter in layout.parameters)
    return max(1, min(max(AT_ONCE, CHUNK_BYTES // row), 2 * layout.size // max(1, largest)))


class Batched(Engine):
    name = "batched"

    def __init__(self) -> None:
        self.fallback: Loop | None = None
        self.checked = Checked()

    def write(
        self, losses: Tensor, layout: Layout, weights: Tensor, out: Tensor, *, fresh: bool
    ) -> None:
        size, check = (
            rows_at_once(layout),
            fresh and self.fallback is None and self.checked.due(layout),
        )
        for start in range(0, weights.shape[0], size):
            rows, present = slice(start, start + size), set[int]()
            if self.fallback is None:
                try:
                    _vectorised(losses, layout, weights[rows], out[rows], fresh, present)
                    if check and start == 0:
                        self._check(losses, layout, weights[rows][-1], out[rows][-1])
                    continue
                except RuntimeError as error:
                    why = str(error).split("\n")[0]
                    logger.warning(
                        "engine: 'loop' from now on, because torch cannot vectorise this backward pass (%s)",
                        why,
                    )
                    self.fallback = Loop()
            # Gradients that arrived before a failure must not be added twice. In fresh memory they
            # are simply written again.
            done = set[int]() if fresh else present
            self.fallback.write(losses, layout, weights[rows], out[rows], fresh=fresh, present=done)

    def _check(self, losses: Tensor, layout: Layout, weights: Tensor, row: Tensor) -> None:
        """Raise an error if the vectorised row is wrong, because torch has a wrong rule for some
        operation.

        The ordinary gradient uses the same weights, so half precision rounds both alike. The error
        of a wrong rule is larger.
        """
        found, silent = differing(losses, layout, weights, row, half=True)
        if found:
            raise UnsupportedError(f"its result differs from the gradient of {', '.join(found)}")
        self.checked.add(layout, silent)


def _vectorised(
    losses: Tensor, layout: Layout, weights: Tensor, out: Tensor, fresh: bool, present: set[int]
) -> None:
    """Write several rows at once. `present` collects the parameters whose gradients arrived, even
    if the pass fails.
    """
    parameters = tuple(layout.parameters)
    # A few gradients wait to be written together, which saves launches. More of them would take
    # more memory.
    into = written_into(
        layout, out, add=not fresh, most=layout.size // 8, returned=True, arrived=present
    )
    with quiet_vmap(), kept_graph(), into as writing:

        def product(row: Tensor) -> Tensor:
            writing.keep(
                run_backward(
                    (losses,), (row,), True, False, parameters, True, accumulate_grad=False
                )
            )
            return row.sum()  # vmap needs a tensor result

        torch.func.vmap(product)(weights)
