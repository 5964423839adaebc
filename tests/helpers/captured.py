"""A stand-in for CUDA graphs on a CPU."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attittud_lab.strategies.guided import Guided
from attittud_lab.training.phase import Phase


class StandIn:
    """Records like a CUDA graph: Python code runs once, when it is recorded; device work runs at
    replays alone.
    """

    def __init__(self, device: torch.device) -> None:
        self.phase: Phase | None = None
        self.replays = 0

    def _tensors(self) -> list[Tensor]:
        assert self.phase is not None
        found = [*self.phase.model.state_dict().values()]
        for state in self.phase.optimizer.state.values():
            found += [value for value in state.values() if isinstance(value, Tensor)]
        if isinstance(self.phase.strategy, Guided):
            guide = self.phase.strategy.guide
            assert guide.subspace is not None
            found += [guide._schedule.index, guide._schedule.skipped, guide.subspace.active]
            found += [guide.subspace.rows] if guide.subspace.rows is not None else []
            for record in guide._auto.scores.values():
                found += [record.moments, record.weights, record.skipped]
        else:
            found += list(getattr(self.phase.strategy, "memory", {}).values())
        return found

    def counts(self, new: tuple[Any, Any] | None = None) -> tuple[Any, Any] | None:
        """What the guide counts in Python."""
        assert self.phase is not None
        guide = getattr(self.phase.strategy, "guide", None)
        if guide is None:
            return None
        refresher, hearings = guide._schedule, guide._auto
        old = (refresher.age, refresher.count), (hearings.age, hearings.count)
        if new is not None:
            (refresher.age, refresher.count), (hearings.age, hearings.count) = new
        return old

    def __call__(self, action: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        places = self._tensors()
        before = [tensor.clone() for tensor in places]
        random, counts = torch.get_rng_state(), self.counts()
        found = action()
        with torch.no_grad():
            for place, value in zip(places, before, strict=True):
                place.copy_(value)
        torch.set_rng_state(random)

        def replay() -> None:
            self.replays += 1
            assert self.phase is not None
            now, values = self.counts(), dict(self.phase.streams.values)
            self.counts(counts)  # the same work that was recorded
            again = action()
            for name, tensor in found.values.items():
                tensor.copy_(again.values[name])
            self.phase.streams.values = values
            self.counts(now)

        return found, replay


def trained(phase: Phase) -> tuple[list[dict[str, Any]], Tensor]:
    lines: list[dict[str, Any]] = []
    phase.run(lambda line: lines.append(dict(line)), lambda: None, lambda *_: None)
    for line in lines:
        del line["seconds"]
    return lines, torch.cat(
        [parameter.detach().flatten() for parameter in phase.model.parameters()]
    )
