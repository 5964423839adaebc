"""Time the first steps of a run, for forecasts of comparisons and portfolios."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from attittud_lab.config.schema import Config
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import Examples
from attittud_lab.training.devices import choose_device, on_device
from attittud_lab.training.evaluate import outputs_of
from attittud_lab.training.phase import Phase
from attittud_lab.training.train import conditions, new_model, phase_names

TIMED = 3
"""How many steps of each phase are timed."""


@dataclass(frozen=True)
class FirstSteps:
    """How long the parts of a run take, in seconds, as its first steps tell."""

    steps: Mapping[str, float]
    """One step of each phase, by the phase's name."""
    evaluation: float
    """One evaluation on the validation examples."""
    setup: float = 0.0
    """Everything before the first timed step."""

    def of_run(self, lengths: Mapping[str, int], evaluations: int, share: float = 1.0) -> float:
        """Return the seconds of a `share` of the steps of each phase, and of all evaluations."""
        steps = sum(self.steps[name] * count for name, count in lengths.items())
        return share * steps + evaluations * self.evaluation


def first_steps(
    config: Config, data: Prepared, threads: int, judges: Examples | None = None
) -> FirstSteps:
    """Train a few steps of each phase of a new model in this process, and time them.

    Nothing of the model is kept. Steps that are later replayed from a CUDA graph take less.
    `judges` are as in `Phase`. Raises DivergedError.
    """
    device = choose_device(config.device)
    began = time.perf_counter()
    steps = {}
    setup = 0.0
    with conditions(config, data, device):
        data = on_device(data, device)
        model = new_model(config, data, device)
        torch.set_num_threads(threads)
        for name in phase_names(config):
            phase = Phase(name, config, data, model, device, "loss", judges=judges)
            times = []
            for _ in range(1 + TIMED):  # libraries choose their kernels in the first step
                phase.step()
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                times.append(time.perf_counter())
            if not setup:  # of the first phase
                setup = times[0] - began
            steps[name] = (times[-1] - times[0]) / TIMED
        began = time.perf_counter()
        outputs_of(model, data.validation, device, head="primary")
        evaluation = time.perf_counter() - began
    return FirstSteps(steps, evaluation, setup)
