"""Picks an engine, and logs its choice with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from attittud.autograd.layout import Layout
from attittud.engine.base import Engine, Jacobian, Loop, UnsupportedError, logger
from attittud.engine.hooks import Hooks

HOOKS_FROM = 10_000
"""With fewer parameters, a few backward passes take less time than hooks."""


class Auto(Engine):
    """`hooks` until it refuses the model or a batch, and from then on `loop`."""

    name = "auto"
    on_shards = Loop.name

    def __init__(self) -> None:
        self._hooks = Hooks()
        self._loop = Loop()
        self._reason: str | None = None  # why `hooks` cannot be used
        self.chosen: str | None = None  # the name of the engine that was last used

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[None]:
        """Observe the forward pass for `hooks`, unless an earlier pass showed that it cannot be
        used.
        """
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
        """Return J by `hooks`, or by `loop` where `hooks` refuses the calls or fails its comparison
        with an ordinary gradient.
        """
        if self._hooks.record is not None:
            try:
                jacobian = self._hooks.jacobian(losses, layout)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self._reason = str(error)
            else:
                self._log(
                    Hooks.name,
                    "it saw the forward pass and the examples do not influence each other",
                )
                return jacobian
        self._log_loop()
        return self._loop.jacobian(losses, layout)

    def write(
        self, losses: Tensor, layout: Layout, weights: Tensor, out: Tensor, *, fresh: bool
    ) -> None:
        """Add products by `loop`, which needs no forward pass."""
        self._log_loop()
        self._loop.write(losses, layout, weights, out, fresh=fresh)

    def _log_loop(self) -> None:
        reason = self._reason or "'hooks' cannot see the forward pass without a callable"
        self._log(Loop.name, reason)

    def _log(self, name: str, reason: str) -> None:
        """Log a choice once, until another engine is chosen."""
        if name != self.chosen:
            self.chosen = name
            logger.info("engine: %r, because %s", name, reason)
