"""Compares what an engine says of J with an ordinary gradient, parameter by parameter."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attittud._torch import kept_graph
from attittud.autograd.layout import Layout
from attittud.engine.base import Jacobian, UnsupportedError


def probe(losses: Tensor) -> Tensor:
    """Weights (2 x m) that differ from example to example.

    With equal ones, gradients given to the wrong example, or examples that influence each other, would not show. Two
    rows, so that gradients are contracted as in a refresh. Their sums, by which the ordinary gradient is weighted, are
    powers of two: half precision then rounds every example's gradients as without weights, and what is left where they
    cancel, often in biases, is not taken for a difference.
    """
    at = torch.arange(1, losses.shape[0] + 1, dtype=torch.float64, device=losses.device)
    # Multiples of the golden section, without their whole part, are never near those of their neighbours.
    golden = (math.sqrt(5) - 1) / 2
    total = torch.exp2(((at * golden) % 1 * 4).floor() - 2)
    first = total * (1 + ((at * math.sqrt(2)) % 1 * 63).floor()) / 64
    return torch.stack([first, total - first]).to(losses.dtype)


class Checked:
    """Parameters whose gradients have been compared with the ordinary ones."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._silent: set[str] = set()
        """Of zero or not finite gradients: behind a head or a gate that starts at zero they tell nothing yet."""
        self._asked = 0

    def due(self, layout: Layout) -> bool:
        """Whether there is something to compare: the silent ones again at the next refresh, and the 2nd, 4th, 8th after.

        (Not inside of a CUDA graph, which cannot wait.)
        """
        if not self._told | self._silent >= set(layout.names):
            return True
        if self._silent.isdisjoint(layout.names):
            return False
        if layout.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return False
        self._asked += 1
        return self._asked.bit_count() == 1

    def add(self, layout: Layout, silent: set[str]) -> None:
        self._told |= set(layout.names) - silent
        self._silent = (self._silent | silent) - self._told


def verify(jacobian: Jacobian, weights: Tensor, product: Tensor, *, half: bool, cure: str) -> set[str]:
    """Raise where `product`, weights @ J, is not what ordinary gradients of the weighted losses say.

    Returns the names of parameters whose gradients tell nothing.
    """
    with torch.autocast(jacobian.layout.device.type, enabled=False):  # as in the pass that is verified
        found, silent = differing(jacobian.losses, jacobian.layout, weights.sum(0), product.sum(0), half=half)
    if found:
        raise UnsupportedError(
            f"engine {jacobian.engine.name!r}: per-example gradients do not add up to the gradient of {', '.join(found)}. "
            "Either examples influence each other (statistics of the batch, a loss over pairs), or the batch has others beside "
            "those of the losses, or these parameters are used where no torch function shows it (a custom autograd.Function, "
            "TorchScript) or in one that draws random numbers; "
            f"{cure}"
        )
    return silent


def differing(
    losses: Tensor, layout: Layout, weights: Tensor, product: Tensor, *, half: bool
) -> tuple[list[str], set[str]]:
    """Parameters over which `product`, weights (m) @ J, is not the ordinary gradient of the weighted losses.

    And the names of those whose gradient tells nothing, because it is zero or not finite. `half`: whether gradients went
    through half precision.
    """
    expected = layout.empty()
    with kept_graph():
        ordinary = torch.autograd.grad(losses, layout.parameters, weights, retain_graph=True, allow_unused=True)
    layout.add_(expected, ordinary, fresh=True)
    used = [gradient is not None for gradient in ordinary]
    del ordinary
    # float64 too: models compute parts of themselves in float32, normalisation for example.
    relative = 5e-2 if half or _rounded(layout) else 3e-4
    # A gradient that is zero by symmetry, such as that of an attention's key bias, is rounding noise of the others.
    absolute = 1e-2 * relative * torch.linalg.vector_norm(expected)
    if not bool(torch.isfinite(absolute)):  # losses that are not finite are the refresh's business
        return [], set(layout.names)
    found, silent = [], set()
    for name, met, a, b in zip(layout.names, used, layout.views(product), layout.views(expected), strict=True):
        error, size = torch.linalg.vector_norm(a - b), torch.linalg.vector_norm(b)
        if not bool(error <= relative * size + absolute):
            found.append(f"{name} (by {float(error / size):.2g} of its size)")
        elif met and not bool(size > 0):
            silent.add(name)
    return found, silent


def _rounded(layout: Layout) -> bool:
    """Whether float32 may be multiplied with fewer bits: as TF32, which cuDNN does on GPUs unless told not to, or bfloat16."""
    if layout.dtype != torch.float32:
        return False
    if layout.device.type != "cpu":
        return True
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # set by backend, which this question has no answer for
        return True
