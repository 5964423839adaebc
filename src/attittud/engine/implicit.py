"""`hooks`, with a forward pass that stays open until the step is over: V is never formed, J is asked again instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from attittud.engine.per_example.hooks import Hooks, refuse_coupled
from attittud.engine.per_example.recorder import Recorder


class Implicit(Hooks):
    name = "implicit"
    instead = "use basis='exact' with engine='loop', which stores the basis"

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[None]:
        self.release()
        refuse_coupled(model, self.instead)
        self.record = record = Recorder(model)
        record.begin()
        try:
            yield
        finally:
            record.leave()

    def release(self) -> None:
        """Let go of the forward pass."""
        if self.record is not None:
            self.record.close()
            self.record = None
