"""A refresh: from the losses of primary examples to the basis in use."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attittud._checks import as_losses, check_dense
from attittud.autograd.forward import BatchNormMode, enough_examples, isolated_forward
from attittud.autograd.layout import Layout, walk
from attittud.basis.base import Basis, Refresh
from attittud.basis.memory import check_fits
from attittud.basis.subspace import Subspace
from attittud.engine.base import Engine
from attittud.step.shared import Shared
from attittud.workers.one import Share, Workers

Losses = Callable[[], Tensor]
"""Computes losses when they are needed."""


class Refresher:
    """Keeps the basis of a guide, and recomputes it in the steps that are due."""

    def __init__(
        self,
        model: nn.Module,
        workers: Workers,
        shared: Shared,
        basis: Basis,
        engine: Engine,
        *,
        rank: int,
        seed: int,
        dtype: torch.dtype | None,
        batch_norm: BatchNormMode,
    ) -> None:
        self.model, self.workers, self.shared = model, workers, shared
        self.basis, self.engine = basis, engine
        self.rank, self.seed, self.dtype, self.batch_norm = rank, seed, dtype, batch_norm
        saved_as = basis.same_as or basis.name
        self.settings = {"basis": saved_as, "rank": rank, "basis_dtype": dtype and str(dtype), "seed": seed}
        """What decides the meaning of a saved basis."""
        self.subspace: Subspace | None = None
        self.age: int | None = None
        """Steps that the basis has served; None: there is none."""
        self.count = 0
        # On the device once that is known. A captured refresh must draw new numbers at every replay, so the index that
        # the random numbers depend on is a tensor too.
        self.index = torch.zeros((), dtype=torch.int64)
        self.skipped = torch.zeros((), dtype=torch.int64)

    def decide(self, asked: bool | None, every: int, *, held: bool) -> bool:
        """Whether the step that begins has a refresh. `held`: the model still has the parameters of the basis."""
        if not held:
            # Parameters were replaced (load_state_dict(assign=True), a conversion): the basis is of none of these.
            self.subspace, self.age = None, None
        if asked is False and self.basis.keeps_graph:
            raise ValueError("basis='implicit' keeps no basis, so every step is a refresh; leave refresh at None")
        if asked is False and self.subspace is None:
            raise ValueError(
                "refresh=False before the first refresh: there is no basis yet; leave refresh at None once"
            )
        return self.due(every) if asked is None else asked

    def due(self, every: int) -> bool:
        return self.age is None or self.age >= every

    def count_replay(self, *, refresh: bool) -> None:
        """A captured step was repeated on the device: what Python counts has to follow."""
        self.age = 1 if refresh else (self.age or 0) + 1
        self.count += refresh

    def waits(self, refresh: Refresh) -> bool:
        """Whether the old basis goes on to serve, since one example, such as the last of an epoch, spans no subspace.

        (The examples of several workers are counted on the device, and waiting for that number is not worth it.)
        """
        few = self.basis.needs == "jacobian" and isinstance(refresh.examples, int) and refresh.examples < 2
        return few and self.subspace is not None and self.subspace.layout.same(refresh.layout)

    def start(self, layout: Layout) -> Refresh:
        """Begin a basis over the parameters that take part."""
        if self.subspace is None or layout is not self.subspace.layout:
            check_dense(self.model, layout)
        self.index, self.skipped = self.index.to(layout.device), self.skipped.to(layout.device)
        return Refresh(layout, self.rank, self.seed, self.index, self.workers)

    def take_in(self, refresh: Refresh, losses: Tensor, share: Share, *, scaled: bool, complete: bool) -> None:
        """Let the examples behind `losses` contribute to the basis in the making.

        `scaled`: the losses are those that train, and may carry a loss scale. `complete`: no others will follow.
        """
        if refresh.calls and not self.basis.adds_up:
            raise RuntimeError(
                f"basis {self.basis.name!r} cannot add up over several primary() calls of one step; make it one call, pass "
                "basis_losses=, or use basis='sketch'"
            )
        refresh.share, refresh.complete = share, complete
        if self.subspace is None and refresh.calls == 0 and self.basis.stored:
            examples = losses.shape[0] * self.workers.size
            rank = min(self.rank, examples) if complete and self.basis.needs == "jacobian" else self.rank
            working = partial(self.basis.working_rows, examples=examples)
            check_fits(refresh.layout, rank, working, self.dtype or refresh.layout.dtype)
        if self.basis.needs == "jacobian":
            if refresh.calls == 0 and scaled:
                refresh.shrink = _shrink(share.count(losses))
            with torch.enable_grad():
                shrunk = losses * refresh.shrink
            self.basis.add(refresh, self.workers.jacobian(self.engine, shrunk, refresh.layout, share))
        refresh.calls += 1
        refresh.examples = refresh.examples + share.count(losses)

    def take_in_from(self, refresh: Refresh, basis_losses: Losses) -> None:
        """The same with losses that a callable returns, in a forward pass that the library controls."""
        seed = (self.seed * 1_000_003 + self.count) & (2**63 - 1)
        refresh.scope = partial(isolated_forward, self.model, self.batch_norm, seed)
        with refresh.scope(), self.engine.watch(self.model), torch.enable_grad():
            with enough_examples("basis_losses", "return the losses of at least two, better of many"):
                losses = as_losses(
                    self.workers.losses(basis_losses(), "basis_losses"),
                    "basis_losses",
                    may_be_empty=self.workers.size > 1,
                )
            self.engine.seen()
            # (A sharded model's graph ends in other tensors than its parameters.)
            visible = losses.numel() > 0 and not self.workers.splits_columns
            if visible and walk(losses).leaves.isdisjoint(map(id, refresh.layout.parameters)):
                raise ValueError(
                    "basis_losses: the losses reach none of the shared parameters; compute them from the model given to "
                    "Guide"
                )
            share = self.workers.shares([losses])[0]
            self.take_in(refresh, losses, share, scaled=False, complete=True)
            if self.basis.needs == "mean":
                ones = torch.ones(1, losses.shape[0], device=losses.device) / share.count(losses)
                refresh.rows = self.workers.jacobian(self.engine, losses, refresh.layout, share).left(ones)

    def fix(self, refresh: Refresh) -> Subspace:
        """Orthonormalise what was added up; from here on gradients can be projected."""
        if self.basis.needs == "jacobian" and isinstance(refresh.examples, int) and refresh.examples < 2:
            raise ValueError(
                "a refresh needs at least 2 primary examples to span a subspace, got 1; use a larger primary batch, "
                "basis_losses= with more examples, or basis='mean'"
            )
        finite = self.basis.finish(refresh)
        assert refresh.rows is not None
        rows, refresh.rows = refresh.rows, None
        if self.basis.keeps_graph or self.subspace is None or not self.subspace.layout.same(refresh.layout):
            self.subspace = self.basis.subspace(refresh.layout, self.rank, self.workers, self.dtype, refresh)
        self.subspace.replace(rows, finite)
        self.index += 1
        self.count += 1
        return self.subspace

    def close(self, *, refreshed: bool) -> None:
        """The step is over."""
        assert self.subspace is not None
        if refreshed:
            self.skipped += ~self.subspace.finite
        if self.basis.keeps_graph:
            self.subspace.release()
        self.age = 1 if refreshed else (self.age or 0) + 1

    def state(self, include_basis: bool) -> dict[str, Any]:
        space, reach = self.subspace, self.shared.auxiliary
        rows = space.rows if space is not None and include_basis else None
        return {
            "settings": self.settings,
            "since_refresh": self.age,
            "refreshes": int(self.index),
            "skipped_refreshes": int(self.skipped),
            "shared": {} if space is None else dict(zip(space.layout.names, space.layout.shapes, strict=True)),
            "reached_by_auxiliary": None if reach is None else sorted(reach),
            "basis": None if rows is None or space is None else self.workers.pack(space.layout, rows),
            "worker": None if rows is None else self.workers.place,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        if state.get("worker") not in (None, self.workers.place):
            raise ValueError(
                f"this state holds the shards of worker {state['worker']} of a sharded basis (FSDP2), which nobody else "
                "can go on from; use attittud.checkpoint.save(guide, folder) instead"
            )
        subspace: Subspace | None = None
        if state["basis"] is not None or (state["shared"] and not self.basis.stored):
            named = dict(self.shared.listing.named)
            layout = Layout((name, named[name]) for name in state["shared"])
            subspace = self.basis.subspace(layout, self.rank, self.workers, self.dtype, None)
            if state["basis"] is not None:
                subspace.load(self.workers.unpack(layout, state["basis"]))
        self.subspace = subspace
        self.age = state["since_refresh"] if subspace is not None else None
        reach = state["reached_by_auxiliary"]
        self.shared.auxiliary = None if reach is None else set(reach)
        self.count = state["refreshes"]
        self.index = self.index.new_tensor(state["refreshes"])
        self.skipped = self.skipped.new_tensor(state["skipped_refreshes"])


def _shrink(examples: int | Tensor) -> float | Tensor:
    """A factor for J, whose size no basis depends on, so that its products overflow no sooner than the mean gradient.

    In float16 a loss scale is raised until that one overflows, and it has a factor 1/m which single examples lack. (Three
    powers of two for the largest entries of Π.) Not for the losses of `basis_losses`, which nobody needs to scale: what is
    small in float16 already would be rounded away.
    """
    if isinstance(examples, Tensor):
        return torch.exp2(-torch.ceil(torch.log2(examples.clamp(min=1).float())) - 3)
    return 2.0 ** -(math.ceil(math.log2(max(1, examples))) + 3)
