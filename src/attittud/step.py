"""One step in the making: gradients are added up call by call, signs are taken and the update is formed at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from attittud.basis.base import Refresh
from attittud.decompose import Residual, correction, harmful_mask, residual_tolerance
from attittud.eta import Eta
from attittud.linalg import chunk_size, dot
from attittud.parameters import Layout
from attittud.report import Split, TaskReport, describe, ratio
from attittud.subspace import Subspace

Named = Sequence[tuple[str, nn.Parameter]]


def gradients(loss: Tensor, named: Named, *, retain_graph: bool) -> dict[int, Tensor]:
    """Gradients by identity of the parameter; parameters the loss does not reach are missing."""
    parameters = [parameter for _, parameter in named]
    found = torch.autograd.grad(loss, parameters, retain_graph=retain_graph, allow_unused=True)
    return {id(p): gradient for p, gradient in zip(parameters, found, strict=True) if gradient is not None}


@dataclass
class Task:
    """One auxiliary task in this step."""

    eta: Eta
    weight: float
    flat: Tensor | None = None
    """Its gradient over the shared parameters, until it is folded into the common sum."""
    a: Tensor | None = None
    square: Tensor | None = None
    inner: Tensor | None = None
    primary_calls: int = 0
    waiting: dict[int, Tensor] | None = None
    """Its gradients before the shared parameters are known: auxiliary came before primary in a refresh."""


@dataclass
class Rest:
    """Gradients of parameters that are not decomposed."""

    primary: dict[int, Tensor] = field(default_factory=dict)
    auxiliary: dict[int, Tensor] = field(default_factory=dict)


def add_to(sums: dict[int, Tensor], key: int, gradient: Tensor) -> None:
    sums[key] = gradient if key not in sums else sums[key] + gradient


@dataclass(frozen=True)
class Outcome:
    """The update over the shared parameters, what each task looked like, and the captured share of g_prim."""

    update: Tensor
    tasks: dict[str, TaskReport]
    captured_primary: Tensor


class Step:
    """Accumulates over micro-batches: calls add, as `Tensor.backward` does."""

    def __init__(self, layout: Layout | None, *, refreshing: bool, include_mean: bool) -> None:
        self.layout = layout
        self.include_mean = include_mean
        self.refreshing = refreshing
        """A refresh is due in this step."""
        self.fixed = not refreshing
        """The basis of this step stands: V is the one to project on."""
        self.refresh: Refresh | None = None
        """The basis in the making, from the first primary call of a refreshing step until it is fixed."""
        self.basis_losses: Callable[[], Tensor] | None = None
        """Where the basis comes from, if not from the primary losses."""
        self.primary: Tensor | None = None
        self.primary_calls = 0
        self.tasks: dict[str, Task] = {}
        self.sum: Tensor | None = None
        self.rest = Rest()
        self.reached_auxiliary: set[int] = set()

    def add_primary(self, found: dict[int, Tensor]) -> None:
        assert self.layout is not None
        self._split(found, self.rest.primary, 1.0)
        fresh = self.primary is None
        if self.primary is None:
            self.primary = self.layout.empty()
        self.layout.add_(self.primary, [found.get(id(p)) for p in self.layout.parameters], fresh=fresh)
        self.primary_calls += 1

    def add_auxiliary(
        self, name: str, found: dict[int, Tensor], eta: Eta, weight: float, subspace: Subspace | None
    ) -> None:
        task = self.tasks.setdefault(name, Task(eta, weight))
        self.reached_auxiliary |= found.keys()
        if subspace is None or self.layout is None:
            task.waiting = task.waiting or {}
            for key, gradient in found.items():
                add_to(task.waiting, key, gradient)
            return
        if subspace.stored:
            # Only one task's gradient is held on its own; the others are k-vectors and a common sum.
            for other in self.tasks.values():
                if other is not task:
                    self._measure(other, subspace)
                    self._fold(other)
        self._split(found, self.rest.auxiliary, weight)
        fresh = task.flat is None
        if task.flat is None:
            task.flat = self.layout.empty()
        self.layout.add_(task.flat, [found.get(id(p)) for p in self.layout.parameters], fresh=fresh)

    def release_waiting(self, subspace: Subspace) -> None:
        """Hand in what came before the basis was fixed."""
        for name, task in list(self.tasks.items()):
            if task.waiting is not None:
                found, task.waiting = task.waiting, None
                self.add_auxiliary(name, found, task.eta, task.weight, subspace)

    def narrow_(self, kept: Layout) -> None:
        """Parameters that turned out to be the primary task's own leave the flat vectors."""
        assert self.layout is not None and self.primary is not None
        for parameter, view in zip(self.layout.parameters, self.layout.views(self.primary), strict=True):
            if parameter not in kept:
                self.rest.primary[id(parameter)] = view.clone()
        self.primary = self.layout.narrow_(self.primary, kept)
        if self.refresh is not None:
            self.refresh.narrow_(kept)
        self.layout = kept

    def _split(self, found: dict[int, Tensor], rest: dict[int, Tensor], weight: float) -> None:
        assert self.layout is not None
        shared = {id(p) for p in self.layout.parameters}
        for key, gradient in found.items():
            if key not in shared:
                add_to(rest, key, gradient if weight == 1.0 else weight * gradient)

    def _measure(self, task: Task, subspace: Subspace) -> None:
        """Reduce a task's gradient to its k-vector and inner products."""
        if task.flat is None:
            return
        a = subspace.project(task.flat)
        unknown = torch.full((), torch.nan, dtype=torch.float64, device=a.device)
        square = dot(task.flat, task.flat)
        inner = unknown if self.primary is None else dot(task.flat, self.primary)
        if task.a is None:
            task.a, task.square, task.inner = a, square, inner
        else:
            assert task.inner is not None
            # The cross term of an earlier, already folded part is gone.
            task.a, task.square, task.inner = task.a + a, unknown, task.inner + inner
        task.primary_calls = self.primary_calls

    def _fold(self, task: Task) -> None:
        """Add neutral * weight * g_aux to the common sum."""
        if task.flat is not None:
            scaled = task.flat.mul_(task.weight * task.eta.neutral)
            self.sum = scaled if self.sum is None else self.sum.add_(scaled)
            task.flat = None

    def finish(self, subspace: Subspace, primary_weight: float) -> Outcome:
        """Take the signs and form the update over the shared parameters."""
        if not subspace.stored:
            return self._finish_canonical(primary_weight)
        assert self.primary is not None
        for task in self.tasks.values():
            self._measure(task, subspace)
        p, square = subspace.project(self.primary), dot(self.primary, self.primary)
        residual = Residual.of(p, square, residual_tolerance(self.primary.dtype)) if self.include_mean else None
        weights, multiple = torch.zeros_like(p), torch.zeros((), dtype=torch.float64, device=p.device)
        reports = {}
        for name, task in self.tasks.items():
            a, directions, active, inner = task.a, p, subspace.active, task.inner
            assert a is not None and inner is not None and task.square is not None
            if task.primary_calls != self.primary_calls:
                # The primary gradient grew after this task was reduced to a k-vector.
                if residual is not None:
                    raise RuntimeError(
                        f"include_mean needs the whole primary gradient before a second auxiliary task arrives, but "
                        f"primary() was called after {name!r} had been reduced; call primary() first"
                    )
                inner = torch.full_like(inner, torch.nan)
            if residual is not None:
                a = torch.cat([a, residual.coefficient(a, inner)[None]])
                directions = torch.cat([p, residual.norm[None]])
                active = torch.cat([active, (residual.norm > 0)[None]])
            harmful = harmful_mask(a, directions)
            change = task.weight * correction(a, harmful, task.eta)
            if residual is not None:
                in_span, times_primary = residual.lift(change[-1])
                change = change[:-1] + in_span
                multiple = multiple + times_primary
            weights = weights + change
            reports[name] = describe(Split.of(a, harmful, active), task.square, inner, square)
        inside = p.square().sum() if residual is None else p.square().sum() + residual.norm.square()
        for task in self.tasks.values():
            self._fold(task)
        assert self.sum is not None
        subspace.add_(self.sum, weights)
        # A multiplication and an addition, not one fused operation: equal weights give w * g_p to the last bit.
        self.sum.add_(self.primary.mul_(primary_weight + multiple))
        return Outcome(self.sum, reports, ratio(inside, square))

    def _finish_canonical(self, primary_weight: float) -> Outcome:
        """The same where every coordinate is a direction: by chunks, since k-vectors are as long as the gradient."""
        assert self.primary is not None
        square = dot(self.primary, self.primary)
        reports = {}
        for name, task in self.tasks.items():
            assert task.flat is not None
            inner, split = dot(task.flat, self.primary), Split.none(task.flat.device)
            size = chunk_size(task.flat)
            for a, p in zip(task.flat.split(size), self.primary.split(size), strict=True):
                harmful = harmful_mask(a, p)
                split = split + Split.of(a, harmful, torch.ones_like(harmful))
                change = task.weight * correction(a, harmful, task.eta)
                a.mul_(task.weight * task.eta.neutral).add_(change)
            reports[name] = describe(split, split.helpful + split.harmful, inner, square)
            self.sum = task.flat if self.sum is None else self.sum.add_(task.flat)
        assert self.sum is not None
        self.sum.add_(self.primary.mul_(primary_weight))
        return Outcome(self.sum, reports, torch.ones_like(square))

    def rest_updates(self, primary_weight: float) -> dict[int, Tensor]:
        """Updates of the parameters outside of the decomposition, by identity."""
        updates = dict(self.rest.auxiliary)
        for key, gradient in self.rest.primary.items():
            if key in updates:
                updates[key] = updates[key] + primary_weight * gradient
            else:
                # Only the primary loss reaches it (its head): always weight 1, or primary_weight=0 would never train it.
                updates[key] = gradient
        return updates


def write_gradients(named: Named, layout: Layout, update: Tensor, rest: dict[int, Tensor]) -> None:
    """Add to `.grad` as `Tensor.backward` does; a missing `.grad` becomes a view of the update."""
    shared = {id(p): view for p, view in zip(layout.parameters, layout.views(update), strict=True)}
    old, new = [], []
    for _, parameter in named:
        key = id(parameter)
        if key not in shared and key not in rest:
            continue
        if parameter.grad is not None:
            old.append(parameter.grad)
            new.append(shared[key] if key in shared else rest[key])
        elif key in shared:
            parameter.grad = shared[key].to(parameter.dtype)
        elif rest[key].layout != torch.strided:
            parameter.grad = rest[key].clone()
        else:
            # autograd may hand out one tensor for two parameters, or an expanded one; optimizers write into .grad.
            parameter.grad = torch.empty_like(parameter).copy_(rest[key])
    if old:
        torch._foreach_add_(old, new)
