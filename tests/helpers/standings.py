"""Made-up candidates of a portfolio: held-out labels, outputs of a chosen accuracy, standings."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from attittud_lab.config.load import loads
from attittud_lab.config.schema import CandidateConfig, to_dict
from attittud_lab.data.tasks import Examples, Task
from attittud_lab.portfolio.candidates import named
from attittud_lab.portfolio.choose import Curve, HeldOut
from attittud_lab.portfolio.standing import Standing


def held(targets: Tensor, metric: str = "accuracy") -> HeldOut:
    """Held-out labels in three folds; targets of two dimensions are several labels at once."""
    objective = "multi_label" if targets.ndim == 2 else "classify"
    count = targets.shape[1] if targets.ndim == 2 else int(targets.max()) + 1
    classes = [f"c{number}" for number in range(count)]
    task = Task("primary", objective, classes, Examples(torch.zeros(len(targets), 1), targets))
    return HeldOut(task, targets, np.arange(len(targets)) % 3, metric)


def outputs_right(targets: Tensor, share: float, *, first: int = 0) -> Tensor:
    """Scores of which this share is right; the wrong ones begin with example number `first`."""
    wrong = torch.arange(round((1 - share) * len(targets)))
    outputs = torch.nn.functional.one_hot(targets).float() * 4
    outputs[(first + wrong) % len(targets)] *= -1
    return outputs


def simple(label: str, outputs: Tensor, held_out: HeldOut, *, alone: bool = True) -> Standing:
    """A simple candidate with these out-of-fold scores."""
    sources = [] if alone else ["more"]
    settings = {"features": "columns", "learner": "linear", "use": label, "sources": sources}
    return Standing(label, settings, alone, outputs=outputs, curve=Curve.of([outputs], held_out))


def network(name: str, outputs: Tensor | None, held_out: HeldOut, **more: Any) -> Standing:
    """A network with these out-of-fold scores; None if it diverged."""
    candidate = named(CandidateConfig(name=name), loads(""))
    alone = candidate.label == "primary_only"
    curve = None if outputs is None else Curve.of([outputs], held_out)
    return Standing(
        candidate.label,
        {"learner": "network", **to_dict(candidate.strategy)},
        alone,
        candidate,
        outputs=outputs,
        curve=curve,
        **more,
    )
