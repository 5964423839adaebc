"""Symmetric multi-task baselines, delegated to TorchJD: to them the primary task is one of several equals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attittud_lab.errors import InputError, needs, one_line
from attittud_lab.strategies.gradients import Sides

if TYPE_CHECKING:
    from attittud_lab.strategies.registry import MicroLosses, StepLosses, Telemetry
    from attittud_lab.training.capture import StepKind

# Names in TorchJD, and arguments it has no default for.
_AGGREGATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "torchjd_pcgrad": ("PCGrad", {}),
    "torchjd_gradvac": ("GradVac", {}),
    "torchjd_cagrad": ("CAGrad", {"c": 0.4}),  # the value of its paper's experiments
    "torchjd_mgda": ("MGDA", {}),
    "torchjd_upgrad": ("UPGrad", {}),
    "torchjd_nashmtl": ("NashMTL", {}),
    "torchjd_imtl_g": ("IMTLG", {}),
    "torchjd_aligned_mtl": ("AlignedMTL", {}),
    "torchjd_config": ("ConFIG", {}),
}

SYMMETRIC: dict[str, str] = {
    name: f"symmetric baseline {aggregator} of TorchJD (needs the extra torchjd)"
    for name, (aggregator, _) in _AGGREGATORS.items()
}


class Symmetric:
    """One row per task over the shared parameters, aggregated by TorchJD; heads get their own task's gradient."""

    needs_auxiliary = True

    def __init__(self, name: str, model: nn.Module, weights: Mapping[str, float]) -> None:
        try:
            from torchjd import aggregation
        except ImportError:
            raise needs("torchjd", "torchjd", f"strategy {name!r}") from None
        kind, arguments = _AGGREGATORS[name]
        if kind == "NashMTL":
            arguments = {"n_tasks": len(weights) + 1}
        try:
            self.aggregator = getattr(aggregation, kind)(**arguments)
        except (ImportError, AttributeError) as error:
            raise InputError(f"strategy {name!r}: TorchJD cannot provide {kind} here: {one_line(error)}") from None
        self.model, self.weights = model, weights
        # They keep something from step to step that TorchJD does not give away.
        self.resumable = kind not in ("GradVac", "NashMTL")

    def step(self, losses: StepLosses) -> Telemetry:
        share = 1 / len(losses.micro)
        sides = Sides.of(self.model, (self._rows(part, share) for part in losses.micro))
        sides.write(self.aggregator(torch.stack(sides.rows)))
        return dict

    def _rows(self, losses: MicroLosses, share: float) -> list[Tensor]:
        tasks = [loss * (self.weights[name] * share) for name, loss in losses.auxiliary().items()]
        return [losses.primary().mean() * share, *tasks]

    def kind(self) -> StepKind | None:
        return None  # most aggregators solve a small problem on the host

    def replayed(self, kind: StepKind) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass
