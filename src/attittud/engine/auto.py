"""Picks an engine, and says which and why."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from attittud.engine.base import Engine, Gradients, logger
from attittud.engine.batched import Batched, rows_at_once
from attittud.engine.loop import Loop
from attittud.parameters import Layout


class Auto(Engine):
    name = "auto"

    def __init__(self) -> None:
        self.chosen: Engine | None = None

    def products(self, losses: Tensor, layout: Layout, weights: Tensor) -> Iterator[tuple[slice, Gradients]]:
        if self.chosen is None:
            self.chosen = self._choose(layout)
        return self.chosen.products(losses, layout, weights)

    @staticmethod
    def _choose(layout: Layout) -> Engine:
        at_once = rows_at_once(layout)
        if at_once > 1:
            logger.info("engine: 'batched', because %d shared parameters allow %d rows at once", layout.size, at_once)
            return Batched()
        logger.info("engine: 'loop', because %d shared parameters are too many for several rows at once", layout.size)
        return Loop()
