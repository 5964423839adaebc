"""Picks an engine, and logs its choice with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from attittud.autograd.layout import Layout
from attittud.engine.base import Engine, Jacobian, UnsupportedError, logger
from attittud.engine.batched import Batched, rows_at_once, worthwhile
from attittud.engine.hooks import Hooks
from attittud.engine.loop import Loop

# With fewer parameters, launching kernels takes most of the time, and `batched` launches fewer
# kernels.
HOOKS_FROM = 10_000


class Auto(Engine):
    name = "auto"
    on_shards = Loop.name

    def __init__(self) -> None:
        self._hooks = Hooks()
        self._reason: str | None = None  # why `hooks` cannot be used
        self.products: Engine | None = None  # the engine that needs only the losses
        self.chosen: str | None = None  # the name of the engine that was last used

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[None]:
        size = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        if size < HOOKS_FROM:
            self._reason = f"'hooks' gains nothing with {size} parameters"
        with ExitStack() as stack:
            if self._reason is None:
                try:
                    stack.enter_context(self._hooks.watch(model))
                except UnsupportedError as error:
                    self._reason = str(error)
            yield

    def used(self) -> None:
        self._hooks.used()

    def jacobian(self, losses: Tensor, layout: Layout) -> Jacobian:
        if self._hooks.record is not None:
            try:
                jacobian = self._hooks.jacobian(losses, layout)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self._reason = str(error)
            else:
                self._say(
                    "hooks", "it saw the forward pass and the examples do not influence each other"
                )
                return jacobian
        return self._choose(layout).jacobian(losses, layout)

    def write(
        self, losses: Tensor, layout: Layout, weights: Tensor, out: Tensor, *, fresh: bool
    ) -> None:
        self._choose(layout).write(losses, layout, weights, out, fresh=fresh)

    def _choose(self, layout: Layout) -> Engine:
        """Choose between the engines that need only the losses."""
        if self.products is None:
            self.products = Batched() if worthwhile(layout) else Loop()
        batched = isinstance(self.products, Batched)
        pays = (
            f"are few enough to compute {rows_at_once(layout)} products at once"
            if batched
            else "are too many to gain from computing several products at once"
        )
        why = self._reason or "'hooks' cannot see the forward pass without a callable"
        self._say(self.products.name, f"{layout.size} shared parameters {pays}; {why}")
        return self.products

    def _say(self, name: str, why: str) -> None:
        if name != self.chosen:
            self.chosen = name
            logger.info("engine: %r, because %s", name, why)
