"""A refresh: from the losses of primary examples to the basis in use."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attittud._checks import as_losses, check_dense
from attittud.autograd.graph import walk
from attittud.autograd.layout import Layout
from attittud.basis import Refresh
from attittud.basis.base import Basis
from attittud.engine.base import Engine
from attittud.step.forward import BatchNormMode, enough_examples, untraced_forward
from attittud.step.implicit import ImplicitExact
from attittud.step.memory import check_fits
from attittud.step.roles import Roles
from attittud.step.step import Step
from attittud.step.subspace import Subspace
from attittud.step.task import Losses
from attittud.workers.one import Share, Workers


class Refresher:
    """Keeps the basis of a guide, and makes it anew in the steps that are due."""

    def __init__(
        self,
        model: nn.Module,
        workers: Workers,
        roles: Roles,
        basis: Basis,
        engine: Engine,
        *,
        rank: int,
        seed: int,
        dtype: torch.dtype | None,
        batch_norm: BatchNormMode,
    ) -> None:
        self.model, self.workers, self.roles = model, workers, roles
        self.basis, self.engine = basis, engine
        self.rank, self.seed, self.dtype, self.batch_norm = rank, seed, dtype, batch_norm
        self.subspace: Subspace | None = None
        self.age: int | None = None
        """Steps that the basis has served; None: there is none."""
        self.count = 0
        # On the device once that is known. A captured refresh must draw new numbers at every replay, so the index that
        # the random numbers depend on is a tensor too.
        self.index = torch.zeros((), dtype=torch.int64)
        self.skipped = torch.zeros((), dtype=torch.int64)

    def decide(self, asked: bool | None, every: int) -> bool:
        """Whether the step that begins has a refresh."""
        parameters = (parameter for _, parameter in self.workers.named(self.model))
        if self.subspace is not None and not self.subspace.layout.belongs_to(parameters):
            # They were replaced (load_state_dict(assign=True), a conversion): the basis is of none of these.
            self.subspace, self.age = None, None
        if asked is False and self.basis.keeps_graph:
            raise ValueError("engine='implicit' keeps no basis, so every step is a refresh; leave refresh at None")
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

    def can_wait(self, examples: int) -> bool:
        """Whether a step of so many primary examples had better go on with the old basis: one spans no subspace.

        (On several workers nobody knows how many the others have.)
        """
        asks = self.basis.needs == "jacobian" and not self.basis.keeps_graph
        return examples < 2 and asks and self.workers.size == 1 and self.subspace is not None

    def losses(self, losses: Tensor | None, where: str) -> Tensor:
        filled = self.workers.losses(losses, where)
        return as_losses(filled, where, may_be_empty=self.workers.size > 1)

    def _watch(self) -> AbstractContextManager[None]:
        """Show a forward pass to the engine, unless parameters are in shards, which it could not tell apart."""
        return nullcontext() if self.workers.splits_columns else self.engine.watch(self.model)

    @contextmanager
    def computed(self, step: Step, primary: Tensor | Losses | None, basis_losses: Losses | None) -> Iterator[Tensor]:
        """Per-example primary losses. Where a basis is due from a callable's, the engine watches while they are used."""
        if not callable(primary):
            yield self.losses(primary, "primary")
            return
        due = step.refreshing and not step.fixed and basis_losses is None and step.basis_losses is None
        with self._watch() if due and self.basis.needs == "jacobian" else nullcontext():
            more = "return the losses of at least two, or put the BatchNorm layers into eval()"
            with torch.enable_grad(), enough_examples("primary", more):
                losses = self.losses(primary(), "primary")
            self.engine.seen()
            yield losses

    def start(self, step: Step, leaves: set[int]) -> None:
        """Decide which parameters take part: those both losses reach, as far as that is known by now."""
        known = step.reach_complete or self.roles.auxiliary is not None
        reach = step.reached_auxiliary if step.reach_complete else self.roles.auxiliary_ids()
        leaves, reach = self.roles.agree(leaves, reach, anew=True, final=step.reach_complete)
        self.roles.auxiliary = self.roles.names(reach) if known else None
        layout = self.roles.shared(leaves, reach if known else None)
        check_dense(self.model, layout)
        device = layout.device
        self.index, self.skipped = self.index.to(device), self.skipped.to(device)
        step.layout = layout
        step.refresh = Refresh(layout, self.rank, self.seed, self.index, self.workers)

    def take_in(self, step: Step, losses: Tensor, share: Share) -> None:
        """Let the examples behind `losses` contribute to the basis in the making."""
        refresh = step.refresh
        assert refresh is not None
        if refresh.calls and not self.basis.adds_up:
            raise RuntimeError(
                f"basis {self.basis.name!r} cannot add up over several primary() calls of one step; make it one call, pass "
                "basis_losses=, or use basis='sketch'"
            )
        refresh.share = share
        if self.subspace is None and refresh.calls == 0 and self.basis.stored:
            working = partial(self.basis.working_rows, examples=losses.shape[0] * self.workers.size)
            check_fits(refresh.layout, self.rank, working, self.dtype or refresh.layout.dtype)
        if self.basis.needs == "jacobian":
            if refresh.calls == 0 and step.basis_losses is None:
                refresh.shrink = _shrink(share.count(losses))
            with torch.enable_grad():
                shrunk = losses * refresh.shrink
            self.basis.add(refresh, self.workers.jacobian(self.engine, shrunk, refresh.layout, share))
        refresh.calls += 1
        refresh.examples = refresh.examples + share.count(losses)

    def _take_in_from_callable(self, step: Step) -> None:
        assert step.refresh is not None and step.basis_losses is not None
        seed = (self.seed * 1_000_003 + self.count) & (2**63 - 1)
        step.refresh.scope = partial(untraced_forward, self.model, self.batch_norm, seed)
        with step.refresh.scope(), self._watch(), torch.enable_grad():
            with enough_examples("basis_losses", "return the losses of at least two, better of many"):
                losses = self.losses(step.basis_losses(), "basis_losses")
            self.engine.seen()
            reached = walk(losses).leaves
            # (A sharded model's graph ends in other tensors than its parameters.)
            visible = losses.numel() > 0 and not self.workers.splits_columns
            if visible and not any(id(p) in reached for p in step.refresh.layout.parameters):
                raise ValueError(
                    "basis_losses: the losses reach none of the shared parameters; compute them from the model given to "
                    "Guide"
                )
            share = self.workers.shares([losses])[0]
            self.take_in(step, losses, share)
            if self.basis.needs == "mean":
                ones = torch.ones(1, losses.shape[0], device=losses.device) / share.count(losses)
                step.refresh.rows = self.workers.jacobian(self.engine, losses, step.refresh.layout, share).left(ones)

    def fix(self, step: Step) -> None:
        """Orthonormalise what was added up; from here on gradients can be projected."""
        refresh = step.refresh
        assert refresh is not None and step.layout is not None
        if self.roles.auxiliary is None:
            _, reach = self.roles.agree(step.reached_primary(), step.reached_auxiliary)
            kept = self.roles.narrowed(step.layout, reach)
            if kept.size != step.layout.size:
                step.narrow_(kept)
        if step.basis_losses is not None:
            # Not before the shared parameters are known, and after the primary graph is gone.
            self._take_in_from_callable(step)
        # (The examples of several workers are counted on the device, and waiting for that number is not worth it.)
        if self.basis.needs == "jacobian" and isinstance(refresh.examples, int) and refresh.examples < 2:
            raise ValueError(
                "a refresh needs at least 2 primary examples to span a subspace, got 1; use a larger primary batch, "
                "basis_losses= with more examples, or basis='mean'"
            )
        finite = self.basis.finish(refresh)
        assert refresh.rows is not None
        rows, refresh.rows = refresh.rows, None
        if isinstance(self.basis, ImplicitExact):
            self.subspace = self.basis.subspace(step.layout, self.rank, self.workers)
        elif self.subspace is None or not self.subspace.layout.same(step.layout):
            self.subspace = Subspace(self.basis, step.layout, self.rank, self.dtype, self.workers)
        self.subspace.replace(rows, finite)
        self.index += 1
        self.count += 1
        step.refresh, step.fixed = None, True

    def close(self, step: Step) -> None:
        """The step is over."""
        assert self.subspace is not None
        if step.refreshing:
            self.skipped += ~self.subspace.finite
        self.subspace.release()
        self.age = 1 if step.refreshing else (self.age or 0) + 1

    def settings(self) -> dict[str, Any]:
        """What decides the meaning of a saved basis."""
        dtype = None if self.dtype is None else str(self.dtype)
        return {"basis": self.basis.name, "rank": self.rank, "basis_dtype": dtype, "seed": self.seed}

    def state(self, include_basis: bool) -> dict[str, Any]:
        space, reach = self.subspace, self.roles.auxiliary
        saved = space is not None and space.stored and include_basis
        return {
            "settings": self.settings(),
            "since_refresh": self.age,
            "refreshes": int(self.index),
            "skipped_refreshes": int(self.skipped),
            "shared": {} if space is None else dict(zip(space.layout.names, space.layout.shapes, strict=True)),
            "reached_by_auxiliary": None if reach is None else sorted(reach),
            "basis": self.workers.pack(space.layout, space.rows) if space is not None and saved else None,
            "worker": self.workers.place if saved else None,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        if state.get("worker") not in (None, self.workers.place):
            raise ValueError(
                f"this state holds the shards of worker {state['worker']} of a sharded basis (FSDP2), which nobody else "
                "can go on from; save attittud.checkpoint.entries(guide) with torch.distributed.checkpoint instead"
            )
        subspace: Subspace | None = None
        if state["basis"] is not None or (state["shared"] and not self.basis.stored):
            named = dict(self.workers.named(self.model))
            layout = Layout((name, named[name]) for name in state["shared"])
            subspace = Subspace(self.basis, layout, self.rank, self.dtype, self.workers)
            subspace.load(state["basis"] if state["basis"] is None else self.workers.unpack(layout, state["basis"]))
        self.subspace = subspace
        self.age = state["since_refresh"] if subspace is not None else None
        reach = state["reached_by_auxiliary"]
        self.roles.auxiliary = None if reach is None else set(reach)
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
