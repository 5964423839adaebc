"""A refresh: from the losses of primary examples to the basis in use.

`Step` calls a `Refresher` in this order:

    start           at the first primary call of the step: no rows yet
    take_in         at each primary call, or once `take_in_from` for `basis_losses`: adds to the
                    rows. Most bases take products with J (m x D), the gradients of m examples
    fix             the rows become orthonormal (k x D) and are written over the old V

At the end of the file is the check that all of this fits into memory, before the first basis.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attittud._checks import check_dense
from attittud.autograd.forward import BatchNormMode, isolated_forward
from attittud.autograd.layout import Layout, Share
from attittud.basis.base import Ahead, Basis, Refresh
from attittud.basis.subspace import Subspace
from attittud.engine.base import Engine, logger
from attittud.step.gradients import Losses, losses_of
from attittud.step.shared import Schedule, Shared

LEAST_EXAMPLES = 2
"""The fewest primary examples, of all workers together, from which a basis is built."""


class Refresher:
    """Computes the basis of a guide in every n-th step."""

    def __init__(
        self,
        shared: Shared,
        basis: Basis,
        engine: Engine,
        rank: int,
        seed: int,
        dtype: torch.dtype | None,
        batch_norm: BatchNormMode,
    ) -> None:
        self.shared = shared
        self.model = shared.model
        self.workers = shared.workers
        self.basis = basis
        self.engine = engine
        self.rank = rank
        self.seed = seed
        self.dtype = dtype
        """The type in which V is stored; None: the type of the gradients."""
        self.batch_norm: BatchNormMode = batch_norm
        self.settings = {
            "basis": basis.name,
            "rank": rank,
            "basis_dtype": dtype and str(dtype),
            "seed": seed,
        }
        """The settings that decide the meaning of a saved basis."""
        self._ahead = Ahead()
        """Random numbers of the next refreshes, made in advance."""

    def start(self, layout: Layout, schedule: Schedule) -> Refresh:
        """Start a new basis over the parameters of a layout."""
        if schedule.subspace is None or layout is not schedule.subspace.layout:
            check_dense(self.model, layout)
        schedule.move(layout.device)
        ahead = self._ahead.begin(schedule.count, layout.device)
        return Refresh(layout, self.rank, self.seed, schedule.index, self.workers, ahead)

    def take_in(
        self,
        refresh: Refresh,
        losses: Tensor,
        share: Share,
        *,
        scaled: bool = False,
        complete: bool,
        first: bool,
        parameters: Sequence[Tensor] = (),
    ) -> Sequence[Tensor | None] | None:
        """Add the examples behind `losses` (m, on this worker) to the new basis.

        Args:
            refresh: the new basis.
            losses: per-example losses; for a basis that needs only their mean, also one entry.
            share: this worker's part of the examples of all workers.
            scaled: these losses train the model and may carry a loss scale.
            complete: no further losses will follow.
            first: the guide has no basis yet, so there must be memory for one.
            parameters: parameters whose gradients the caller needs too, if it does not need the
                graph after this call.

        Returns:
            The gradients of the mean loss for `parameters`, if the pass for J can give the same bits
            as a pass of their own; the graph is freed then. Otherwise None.
        """
        if refresh.calls and not self.basis.adds_up:
            raise RuntimeError(
                f"basis {self.basis.name!r} cannot be built from several primary() calls of one step; use a single call, pass "
                "basis_losses=, or use basis='sketch'"
            )
        if first and refresh.calls == 0 and self.basis.stored:
            # An estimate: workers may have different numbers of examples.
            examples = losses.shape[0] * self.workers.size
            # m examples have at most m directions.
            if complete and self.basis.needs == "jacobian":
                rank = min(self.rank, examples)
            else:
                rank = self.rank
            working = partial(self.basis.working_rows, examples=examples)
            check_fits(refresh.layout, rank, working, self.dtype or refresh.layout.dtype)
        # A basis that needs only the mean gradient gets it from the caller (`Refresh.put`).
        uses_j = self.basis.needs == "jacobian"
        refresh.receive(share, share.count(losses), scaled=scaled and uses_j, complete=complete)
        if not uses_j:
            return None
        # `shrink` keeps products with J from overflowing under a loss scale; no basis depends on it.
        with torch.enable_grad():
            shrunk = losses * refresh.shrink
        jacobian = self.workers.jacobian(self.engine, shrunk, refresh.layout, share)
        if parameters and self.basis.one_product:
            weight = _mean_weight(losses, refresh.shrink)
            if weight is not None:
                jacobian.expect(parameters, weight)
        self.basis.add(refresh, jacobian)
        self.engine.used()
        return jacobian.gradients

    def take_in_from(
        self, refresh: Refresh, basis_losses: Losses, *, number: int, first: bool
    ) -> None:
        """Add the examples whose losses `basis_losses` returns to the new basis. The library controls
        the forward pass: without dropout, and without changes to BatchNorm or to the random state.

        `number`: the number of refreshes so far, for random numbers of its own in each refresh.
        `first`: as for `take_in`.
        """
        # & keeps 63 bits, because a seed must not be negative.
        seed = (self.seed * 1_000_003 + number) & (2**63 - 1)
        isolated = isolated_forward(self.model, self.batch_norm, seed)
        with isolated, self.engine.watch(self.model), torch.enable_grad():
            losses = losses_of(
                basis_losses,
                "basis_losses",
                "return the losses of at least two examples, and preferably of many",
                self.workers,
                refresh.layout,
                may_be_scalar=self.basis.needs != "jacobian",
            )
            share = self.workers.shares([losses])[0]
            self.take_in(refresh, losses, share, complete=True, first=first)
            if self.basis.needs == "mean":
                # The mean gradient is the product of J with the weights 1 / m.
                ones = torch.ones(1, losses.shape[0], device=losses.device) / share.count(losses)
                refresh.put(
                    self.workers.jacobian(self.engine, losses, refresh.layout, share).left(ones)
                )

    def fix(self, refresh: Refresh, schedule: Schedule, *, may_wait: bool) -> Subspace | None:
        """Orthonormalise the collected rows and return the new basis.

        The old basis of the same parameters is overwritten, because a captured CUDA graph may refer
        to its memory. If the new rows are not finite, the basis keeps its old rows.

        Returns None if there are too few examples and the refresh may wait for a later step
        (`may_wait`): then nothing has changed. If it may not wait, too few examples are an error.
        """
        old = schedule.subspace
        if old is not None and not old.layout.same(refresh.layout):
            old = None
        # With several workers only the device knows the number of examples.
        few = isinstance(refresh.examples, int) and refresh.examples < LEAST_EXAMPLES
        if self.basis.needs == "jacobian" and few:
            # Waiting needs an old basis whose rows are complete. (Without an age, an interrupted
            # refresh may have left rows that are not orthonormal.)
            if may_wait and old is not None and schedule.age is not None:
                return None
            raise ValueError(
                "a refresh needs at least 2 primary examples to span a subspace, got 1; use a larger primary batch, "
                "basis_losses= with more examples, or basis='mean'"
            )
        finite = self.basis.finish(refresh)
        assert refresh.rows is not None
        if old is None:
            new = self.basis.subspace(refresh.layout, self.rank, self.workers, self.dtype)
        else:
            schedule.overwrite()
            new = old
        new.replace(refresh.rows, finite, refresh.layout)
        return new

    def state(self, schedule: Schedule, include_basis: bool) -> dict[str, Any]:
        """Return the basis and its age for `Guide.state_dict`, with the settings that decide the
        meaning of the basis and the counts of refreshes.

        The basis is left out, with a warning in the log, if the model has changed so that it no
        longer has the basis's parameters. Then a guide that loads the state refreshes first.
        """
        named = dict(self.shared.named)
        state: dict[str, Any] = {
            "settings": self.settings,
            "since_refresh": None,
            "refreshes": int(schedule.index),
            "skipped_refreshes": int(schedule.skipped),
            "shared": {},
            "reached_by_auxiliary": None,
            "basis": None,
            "worker": None,
        }
        if self.shared.auxiliary is not None:
            state["reached_by_auxiliary"] = sorted(self.shared.auxiliary & named.keys())
        space = schedule.subspace
        if space is None:
            return state
        shapes = dict(zip(space.layout.names, space.layout.shapes, strict=True))
        for name, shape in shapes.items():
            if name not in named or named[name].shape != shape:
                logger.warning(
                    "the state is saved without the basis, because some of its parameters are gone or have another name or size; "
                    "whoever loads it computes the basis again in the first step"
                )
                return state
        state["since_refresh"] = schedule.age
        state["shared"] = shapes
        if space.rows is not None and include_basis:
            state["basis"] = self.workers.pack(space.layout, space.rows)
            state["worker"] = self.workers.state_owner
        return state

    def load(self, state: Mapping[str, Any], schedule: Schedule) -> None:
        """Continue from what `state` returned: read it into `schedule`, and remember the parameters
        that auxiliary losses reach.
        """
        if state.get("worker") not in (None, self.workers.state_owner):
            raise ValueError(
                f"this state holds the shards of worker {state['worker']} of a sharded basis (FSDP2), and no other worker can "
                "continue from it; use attittud.checkpoint.save(guide, folder) instead"
            )
        subspace: Subspace | None = None
        # A basis that is not stored has no rows to load, only its parameters.
        if state["basis"] is not None or (state["shared"] and not self.basis.stored):
            named = dict(self.shared.named)
            layout = Layout((name, named[name]) for name in state["shared"])
            subspace = self.basis.subspace(layout, self.rank, self.workers, self.dtype)
            if state["basis"] is not None:
                subspace.load(self.workers.unpack(layout, state["basis"]))
        reached = state["reached_by_auxiliary"]
        if reached is not None:
            reached = set(reached)
        self.shared.remember(reached)
        schedule.load(
            subspace, state["since_refresh"], state["refreshes"], state["skipped_refreshes"]
        )


def _mean_weight(losses: Tensor, shrink: float | Tensor) -> float | None:
    """Return the weight 1 / (m * shrink), with which the sum of the m shrunk losses becomes the mean
    of the losses.

    Returns None where the weight would round gradients: only a power of two rounds nothing. With
    several workers, also None: the number of all examples is only on the device.
    """
    if isinstance(shrink, Tensor):
        return None
    weight = 1 / (losses.shape[0] * shrink)
    mantissa, _ = math.frexp(weight)
    if mantissa != 0.5:  # not a power of two
        return None
    return weight


# ------------------------------------------------------------------------------------------- memory

GIB = 2**30


def available_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device, on the CPU within the limit of a container; None if it is
    not known.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type == "cpu":
        try:
            lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
            for line in lines:
                if line.startswith("MemAvailable:"):
                    free = int(line.split()[1]) * 1024
                    return min(free, _container_bytes(free))
        except OSError:
            pass
        try:
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError, AttributeError):
            return None
    return None


def _container_bytes(otherwise: int) -> int:
    """Return the memory that is left under the limit of a container (cgroup version 2), or
    `otherwise` if there is no limit.
    """
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii")
        if limit != "max":
            return max(0, int(limit) - int(used))
    except (OSError, ValueError):
        pass
    return otherwise


def check_fits(
    layout: Layout, rank: int, working_rows: Callable[[int], int], storage: torch.dtype
) -> None:
    """Raise MemoryError if a refresh does not fit into memory; the message lists settings that do
    fit.

    Args:
        layout: the shared parameters, with their device.
        rank: the number of rows that would be stored.
        working_rows: returns how many rows of length D a refresh of a given rank works on.
        storage: the type in which V is stored.
    """
    available = available_bytes(layout.device)
    rows = working_rows(rank)
    needed = _needed_bytes(layout, rank, rows, storage)
    if available is None or needed <= available:
        return
    settings = []
    smaller = _largest_rank(layout, rank, working_rows, storage, available)
    in_half_precision = _largest_rank(layout, rank, working_rows, torch.bfloat16, available)
    # A sketch works on as many rows as it keeps.
    with_sketch = _largest_rank(layout, rank, lambda r: r, storage, available)
    if smaller:
        settings.append(f"rank={smaller}")
    if in_half_precision > smaller:
        settings.append(f"basis_dtype=torch.bfloat16 with rank={in_half_precision}")
    if with_sketch > smaller:
        settings.append(
            f"basis='sketch' with rank={with_sketch}, which works on no more rows than it keeps"
        )
    settings.append("parameters= to decompose only a part of the model, such as its last layers")
    raise MemoryError(
        f"a basis of rank {rank} over {layout.size:,} shared parameters needs {needed / GIB:.2f} GiB on "
        f"{layout.device} ({rank} stored and {rows} working rows, 3 gradient vectors), but {available / GIB:.2f} GiB are free. "
        f"Settings that fit: {'; '.join(settings)}."
    )


def _needed_bytes(layout: Layout, rank: int, rows: int, storage: torch.dtype) -> int:
    """Return the bytes of the stored V, of the `rows` that a refresh works on, and of three gradient
    vectors.
    """
    return layout.size * (rank * storage.itemsize + (rows + 3) * layout.dtype.itemsize)


def _largest_rank(
    layout: Layout,
    rank: int,
    working_rows: Callable[[int], int],
    storage: torch.dtype,
    available: int,
) -> int:
    """Return the largest rank up to `rank` whose refresh fits into the available bytes; 0 if none
    does. A higher rank never needs less, so bisection finds it.
    """
    return bisect_right(
        range(1, rank + 1),
        available,
        key=lambda r: _needed_bytes(layout, r, working_rows(r), storage),
    )
