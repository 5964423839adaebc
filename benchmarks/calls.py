"""How many functions a step calls: eager training is bound by Python between the kernels.

    python -m benchmarks --only calls --device cpu --out benchmarks/results

The counts belong to a version of Python and of torch, not to a machine.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import attittud
from attittud import Eta, Guide

OURS = str(Path(attittud.__file__).parent)
POINTS = {
    f"{tensors} tensors{', autocast' if half else ''}": (tensors, half)
    for half in (False, True)
    for tensors in (198, 774)
}


def network(tensors: int) -> nn.ModuleDict:
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range((tensors - 4) // 2))
    model = nn.ModuleDict(
        {"body": nn.Sequential(*blocks), "primary": nn.Linear(16, 3), "other": nn.Linear(16, 2)}
    )
    assert len(list(model.parameters())) == tensors
    return model


def calls(
    tensors: int,
    *,
    verbs: bool = False,
    engine: str = "loop",
    refresh: bool = False,
    half: bool = False,
) -> tuple[int, int]:
    """The number of our own functions that a step calls, and of all functions, including C
    functions.

    `refresh`: in a step with a refresh, where the forward pass of the primary losses is counted too
        if an engine watches it.
    `half`: forward passes under autocast. A step then looks at each node of their graphs.
    """
    model = network(tensors)
    guide = Guide(model, eta=Eta(1, 1, 0), rank=5, engine=engine)
    x, y = torch.randn(8, 16), torch.randint(3, (8,))
    ours = every = 0

    def watch(frame: FrameType, event: str, _: object) -> None:
        nonlocal ours, every
        ours += event == "call" and frame.f_code.co_filename.startswith(OURS)
        every += event in ("call", "c_call")

    def logits(head: str) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            return model[head](model["body"](x)).float()

    def primary() -> Tensor:
        return F.cross_entropy(logits("primary"), y, reduction="none")

    for number in range(4):
        model.zero_grad()
        losses = primary if engine == "hooks" else primary()
        loss = logits("other").square().mean()
        sys.setprofile(watch if number == 3 else None)
        if verbs:
            guide.primary(losses)
            guide.auxiliary(loss)
            guide.combine()
        else:
            guide.backward(losses, loss, refresh=refresh or None)
        sys.setprofile(None)
    return ours, every


def measure(tensors: int, half: bool) -> dict[str, Any]:
    ours, every = calls(tensors, half=half)
    return {"tensors": tensors, "autocast": half, "own": ours, "all": every}
