"""One step in the making: gradients are added up call by call. `directions` or `coordinates` make the update of them."""

from __future__ import annotations

from torch import Tensor

from attittud.autograd.graph import Graph, owned
from attittud.autograd.layout import Layout
from attittud.basis.base import Refresh
from attittud.decompose import Weights
from attittud.eta import Eta
from attittud.kernels.products import dot
from attittud.step.subspace import Subspace
from attittud.step.task import Judges, Losses, Rest, Task, add_to
from attittud.workers.one import Workers


class Step:
    """Accumulates over micro-batches: calls add, as `Tensor.backward` does."""

    def __init__(
        self, layout: Layout | None, workers: Workers, *, refreshing: bool, include_mean: bool, norms: bool
    ) -> None:
        self.layout = layout
        self.workers = workers
        self.norms = norms
        """The report shall state norms although they cost an exchange."""
        self.include_mean = include_mean
        self.refreshing = refreshing
        """A refresh is due in this step."""
        self.fixed = not refreshing
        """The basis of this step stands: V is the one to project on."""
        self.refresh: Refresh | None = None
        """The basis in the making, from the first primary call of a refreshing step until it is fixed."""
        self.basis_losses: Losses | None = None
        """Where the basis comes from, if not from the primary losses."""
        self.primary: Tensor | None = None
        """The primary gradient over the shared parameters."""
        self.in_span = False
        """The primary gradient is no vector: the subspace knows J of its examples, and so its products and its place."""
        self.kept: Graph | None = None
        """The graph of the primary losses, where it is needed until the step is over."""
        self.primary_calls = 0
        self.primary_complete = False
        """No further primary call will come."""
        self.measured: tuple[int, Tensor, Tensor] | None = None
        """V g_prim and ‖g_prim‖² after so many primary calls."""
        self.primary_whole = not workers.splits_examples
        """`primary` is over the examples of all workers."""
        self.tasks: dict[str, Task] = {}
        self.sum: Tensor | None = None
        """Over the tasks that were folded: neutral * weight * g_aux."""
        self.judge: Losses | None = None
        """Where the judges' losses come from, in a step in which they are heard."""
        self.judges: Tensor | None = None
        """The judges' mean gradient, over the judges of all workers."""
        self.rest = Rest()
        self.beside: list[Tensor] = []
        """What the next sum over workers takes along."""
        self.reached_auxiliary: set[int] = set()
        self.reach_complete = False
        """No further auxiliary loss will come than those `reached_auxiliary` is of."""

    def add_primary(self, found: dict[int, Tensor]) -> None:
        self._split(found, self.rest.primary, 1.0)
        self.primary_calls += 1
        if not self.in_span:
            self.primary = self._added(self.primary, found)

    def room_for(self, name: str, subspace: Subspace) -> Tensor | None:
        """Memory that the gradient of a second or later task is written into as it comes up.

        Beside the common sum or the judges' gradient it would otherwise be held twice, as autograd returns it and as one vector.
        """
        known = self.tasks.get(name)
        alone = not self.tasks.keys() - {name} and self.judges is None
        if alone or self.layout is None or (known is not None and known.flat is not None):
            return None
        if not self._folds(subspace) or self.workers.size > 1 or self.workers.splits_columns:
            return None
        self._fold_others(name, subspace)
        return self.layout.empty()

    def _folds(self, subspace: Subspace) -> bool:
        """Whether only one task's gradient is held on its own, the others being k-vectors and a common sum.

        With the mean as a direction that has to wait for the whole primary gradient, with judges for the whole of each.
        """
        return subspace.projects and (self.primary_complete or not (self.include_mean or self.judges is not None))

    def _fold_others(self, name: str, subspace: Subspace) -> None:
        for other, task in self.tasks.items():
            if other != name:
                self.measure(task, subspace)
                self.fold(task)

    def add_auxiliary(
        self,
        name: str,
        found: dict[int, Tensor],
        eta: Eta | Weights,
        weight: float,
        subspace: Subspace | None,
        flat: Tensor | None = None,
    ) -> None:
        """Take in gradients by identity; those of the shared parameters are in `flat` where it is given."""
        task = self.tasks.setdefault(name, Task(eta, weight, whole=not self.workers.splits_examples))
        self.reached_auxiliary |= found.keys()
        if subspace is None or self.layout is None:
            task.waiting = task.waiting or {}
            for key, gradient in found.items():
                add_to(task.waiting, key, owned(gradient))
            return
        if self._folds(subspace):
            self._fold_others(name, subspace)
        self._split(found, self.rest.auxiliary, weight)
        task.flat = self._added(task.flat, found) if flat is None else flat

    def reached_primary(self) -> set[int]:
        """Parameters that take part or that the primary losses of this worker reach."""
        assert self.layout is not None
        return self.rest.primary.keys() | self.layout.ids

    def release_waiting(self, subspace: Subspace) -> None:
        """Hand in what came before the basis was fixed."""
        for name, task in list(self.tasks.items()):
            if task.waiting is not None:
                found, task.waiting = task.waiting, None
                self.add_auxiliary(name, found, task.eta, task.weight, subspace)

    def narrow_(self, kept: Layout) -> None:
        """Parameters that turned out to be the primary task's own leave the flat vectors."""
        assert self.layout is not None and self.primary is not None
        stays = kept.ids
        for key, view in self.layout.by_identity(self.primary).items():
            if key not in stays:
                self.rest.primary[key] = view.clone()
        self.primary = self.layout.narrow_(self.primary, kept)
        if self.refresh is not None:
            self.refresh.narrow_(kept)
        self.layout = kept

    def _split(self, found: dict[int, Tensor], rest: dict[int, Tensor], weight: float) -> None:
        assert self.layout is not None
        shared = self.layout.ids
        for key, gradient in found.items():
            if key not in shared:
                add_to(rest, key, owned(gradient) if weight == 1.0 else weight * gradient)

    def _added(self, flat: Tensor | None, found: dict[int, Tensor]) -> Tensor:
        """The shared parameters' gradients added to `flat`, where there is one already."""
        assert self.layout is not None
        total = self.layout.empty() if flat is None else flat
        self.layout.add_(total, self.layout.pick(found), fresh=flat is None)
        return total

    def measure(self, task: Task, subspace: Subspace) -> None:
        """Reduce a task's gradient to its k-vector and inner products."""
        if task.flat is None:
            return
        if self.include_mean:
            self.sum_primary_()
        square: Tensor | None
        inner: Tensor | None
        if self.in_span or (self.primary is not None and self.primary_whole and task.whole):
            found = subspace.products(task.flat, self.primary)
            a, square, inner = found.rows_x, found.xx, found.xy
            self.measured = self.primary_calls, found.rows_y, found.yy
        else:
            a = subspace.project(task.flat)
            square = dot(task.flat, task.flat) if task.whole else None
            inner = dot(task.flat, self.primary) if self.primary is not None and self.primary_whole else None
        if self.judges is not None:
            if square is None:
                # Parts of it on several workers do not add up; the exchange counts this once for every worker.
                whole = self.workers.sum_examples_(task.flat.clone(), "auxiliary gradients")
                square = dot(whole, whole) / self.workers.size
            judged = dot(task.flat, self.judges)
            task.judged = judged if task.judged is None else task.judged + judged
        if task.a is None:
            task.a, task.square, task.inner = a, square, inner
        else:
            # The cross term of an earlier, already folded part is gone.
            task.a, task.square = task.a + a, None
            same_primary = task.primary_calls == self.primary_calls
            task.inner = task.inner + inner if same_primary and task.inner is not None and inner is not None else None
        task.primary_calls = self.primary_calls

    def measure_primary(self, subspace: Subspace) -> tuple[Tensor, Tensor | None]:
        """V g_prim and ‖g_prim‖², which a task that was measured last has found on the way."""
        if self.measured is not None and self.measured[0] == self.primary_calls:
            return self.measured[1:]
        assert self.primary is not None
        square = dot(self.primary, self.primary) if self.primary_whole else None
        return subspace.project(self.primary), square

    def measure_judges(self, subspace: Subspace | None) -> Judges | None:
        if self.judges is None:
            return None
        assert self.primary is not None and self.primary_whole
        rows = self.judges if subspace is None else subspace.project(self.judges)
        return Judges(rows, dot(self.judges, self.judges), dot(self.judges, self.primary))

    def sum_primary_(self) -> None:
        """Make the primary gradient that of all workers' examples."""
        if not self.primary_whole and self.primary is not None:
            self.workers.sum_examples_(self.primary, "primary gradients")
            self.primary_whole = True

    def sum_tasks_(self) -> None:
        """The same for the gradient of each task, which must still be held on its own."""
        for task in self.tasks.values():
            if not task.whole and task.flat is not None:
                self.sum_over_workers_(task.flat, "auxiliary gradients")
                task.whole = True

    def sum_over_workers_(self, x: Tensor, what: str) -> None:
        self.workers.sum_examples_(x, what, *self.beside)
        self.beside = []

    def fold(self, task: Task) -> None:
        """Add neutral * weight * g_aux to the common sum."""
        if task.flat is not None:
            scaled = task.flat.mul_(task.weight * task.eta.neutral)
            self.sum = scaled if self.sum is None else self.sum.add_(scaled)
            task.flat = None

    def rest_updates(self, primary_weight: float, auxiliary: set[int]) -> dict[int, Tensor]:
        """Updates of the parameters outside of the decomposition, by identity.

        `auxiliary`: what the auxiliary losses of any worker reach.
        """
        updates = dict(self.rest.auxiliary)
        for key, gradient in self.rest.primary.items():
            if key in auxiliary:
                add_to(updates, key, primary_weight * gradient)
            else:
                # Only the primary loss reaches it (its head): always weight 1, or primary_weight=0 would never train it.
                # (Workers learn at the next refresh that an auxiliary loss has begun to do so too.)
                add_to(updates, key, gradient)
        return updates
