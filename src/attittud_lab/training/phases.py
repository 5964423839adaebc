"""The phases of a run or of a trial, one after the other, from the step that a checkpoint has.

`train.py` runs the phases of a run, `portfolio/trial.py` those of a trial on a fold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from attittud_lab.data.tasks import mix
from attittud_lab.errors import InputError, one_line
from attittud_lab.models.network import Network
from attittud_lab.output.progress import Progress
from attittud_lab.runs.result import PhaseSummary
from attittud_lab.training.phase import Phase


class Phases:
    """Trains a model phase by phase, and tells how many phases and steps are done."""

    def __init__(self, model: Network, phases: Sequence[Phase]) -> None:
        self.model = model
        self.phases = phases
        self.summaries: list[PhaseSummary] = []
        """The finished phases."""
        self.validation: dict[str, float] = {}
        """The figures of the model that the last finished phase chose."""

    @property
    def current(self) -> Phase:
        """The phase that is trained; the last one where all are finished."""
        return self.phases[min(len(self.summaries), len(self.phases) - 1)]

    @property
    def finished_steps(self) -> int:
        """The steps of the finished phases together."""
        return sum(summary["steps"] for summary in self.summaries)

    @property
    def progress(self) -> list[PhaseSummary]:
        """Summaries of the finished phases and, if any is left, of the current one so far."""
        if len(self.summaries) == len(self.phases):
            return self.summaries
        return [*self.summaries, _summary(self.current)]

    def run(
        self,
        record: Callable[[Mapping[str, Any]], None],
        checkpoint: Callable[[], None],
        progress: Progress,
        until: int | None = None,
    ) -> Iterator[Phase]:
        """Train the phases that are left, and yield each after its last step.

        A phase is yielded when the model has the weights that it chose. `until` is the last step,
        counted over all phases; None for all of them. `record` and `checkpoint` are passed on to
        `Phase.run`.
        """
        for phase in self.phases[len(self.summaries) :]:
            steps = phase.steps
            if until is not None:
                steps = min(steps, until - self.finished_steps)
            if steps <= 0:
                break
            begin_phase(phase)
            progress.phase(phase.name, steps, phase.state.step)
            phase.run(record, checkpoint, progress.advance, steps)
            self.validation = phase.finish()
            self.summaries.append(_summary(phase))
            yield phase

    def state_dict(self) -> dict[str, Any]:
        """Return the state to continue from: finished phases, the model, and the current phase."""
        return {
            "summaries": self.summaries,
            "validation": self.validation,
            "model": self.model.state_dict(),
            "phase": self.current.state_dict(),
        }

    def load_state_dict(self, saved: Mapping[str, Any], path: Path) -> None:
        """Continue from a state that was read from a file; refuses one that does not fit."""
        try:
            self.summaries = saved["summaries"]
            self.validation = saved["validation"]
            self.model.load_state_dict(saved["model"])
            self.current.load_state_dict(saved["phase"])
        except (LookupError, RuntimeError, TypeError, ValueError) as error:
            problem = f"{path}: the checkpoint does not fit this run ({one_line(error, 200)})"
            raise InputError(f"{problem}; delete it to start from the beginning") from None


def begin_phase(phase: Phase) -> None:
    """Reset the primary head before the first step of fine-tuning, if training.reset_head asks for
    it; any other phase begins with the model as it is.
    """
    if phase.name == "finetune" and phase.job.training.reset_head and phase.state.step == 0:
        torch.manual_seed(mix(phase.job.seed, "head"))
        phase.model.reset_head(phase.model.heads["primary"])  # type: ignore[arg-type]  # heads are linear


def _summary(phase: Phase) -> PhaseSummary:
    state = phase.state
    return PhaseSummary(
        name=phase.name,
        steps=state.step,
        best_step=state.best_step,
        seconds=state.seconds,
        stopped=state.stopped,
    )
