"""Per-example losses out of somebody else's scalar loss function, by cutting the graph at the model's outputs.

A trainer's loss L is a function of the outputs Z of one forward pass, and row i of Z belongs to example i. So

    l_i = m * <dL/dZ_i, Z_i>        (dL/dZ_i held fixed)

is a vector whose mean has the gradient of L, and whose Jacobian has the m per-example gradients as rows: all that a Guide
asks of per-example losses. That way every loss of TRL, label smoothing and a user's own `compute_loss` work unchanged.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attittud.autograd.backward import walk

OUTPUTS = ("logits", "log_probs")  # what models of transformers and TRL's fused heads hand to a loss function


class Cut:
    """Stands in for a model while a loss is computed from its outputs; the forward pass is the model's own."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._cuts: list[tuple[Tensor, Tensor]] = []

    @property  # type: ignore[misc]  # what isinstance asks may differ from the type, on purpose
    def __class__(self) -> type:
        """Loss functions ask whether a model is a PEFT or a wrapped one, and shift labels accordingly."""
        return type(self._model)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outputs = self._model(*args, **kwargs)
        for name in OUTPUTS if torch.is_grad_enabled() else ():
            value = getattr(outputs, name, None)
            if isinstance(value, Tensor) and value.requires_grad:
                leaf = value.detach().requires_grad_()
                self._cuts.append((value, leaf))
                outputs[name] = leaf
        return outputs

    def share_out(self, loss: Tensor, rows_per_example: int, whose: str) -> Tensor:
        """Per-example losses with the mean and the gradients of `loss`; their values are first-order shares of it.

        Rows of one example are `examples` apart (chosen answers first, then the rejected ones).
        """
        leaves = [leaf for _, leaf in self._cuts]
        if not leaves or not walk(loss).leaves <= {id(leaf) for leaf in leaves}:
            raise ValueError(
                f"the loss of {whose} is not a function of the model's {' or '.join(OUTPUTS)} alone, so it cannot be shared "
                "out among the examples. A loss that the model computes itself (a fused loss without logits, a mixture of "
                "experts' router loss) does this: turn that off (use_liger_kernel=False, router_aux_loss_coef=0), or "
                "pass primary_losses=, a function of (model, inputs) that returns one loss per example"
            )
        found = torch.autograd.grad(loss, leaves, allow_unused=True)
        shares = torch.zeros((), dtype=loss.dtype, device=loss.device)
        for (value, _), gradient in zip(self._cuts, found, strict=True):
            if gradient is not None:
                examples = value.shape[0] // rows_per_example
                products = (gradient * value).reshape(rows_per_example, examples, -1)
                shares = shares + examples * products.sum(dim=(0, 2)).to(loss.dtype)
        return shares + (loss - shares.mean()).detach()
