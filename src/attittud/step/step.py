"""One update, in the order in which it happens: primary, auxiliary, fix the basis, measure, write."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from attittud._checks import AnyEta, as_losses
from attittud._torch import CUDA_GRAPH_TREES, in_cuda_graphs, saved_by_compiled
from attittud.autograd.layout import EVERYTHING, Layout, Share, walk, written_into
from attittud.autograd.reused import ReusedVector
from attittud.basis.base import Refresh
from attittud.basis.captured import CapturedUpdate, is_small
from attittud.basis.subspace import Directions, Finished, Subspace
from attittud.decompose import Judges, Weights
from attittud.eta import Eta
from attittud.report import Report, SkipWarning
from attittud.step.auto import AutoWeights
from attittud.step.refresh import Losses, Refresher, losses_of
from attittud.step.shared import GraphMemory, KnownGraph, Shared
from attittud.workers.one import Workers

PRIMARY = ""  # the name of the primary losses among named losses


@dataclass(frozen=True)
class Given:
    """An auxiliary loss with the settings of its task."""

    loss: Tensor
    eta: AnyEta
    weight: float


@dataclass
class AuxiliaryGradient:
    """One auxiliary task in a step."""

    eta: Eta | Weights
    weight: float
    whole: bool  # `flat` covers the examples of all workers
    flat: Tensor | None = None  # its gradient over the shared parameters, until it is added to the common sum
    views: list[Tensor] | None = None  # the parts of `flat`, if they are known; the update will be in the same memory
    a: Tensor | None = None  # V g_aux
    square: Tensor | None = None  # ‖g_aux‖²; None if the whole gradient never was in memory
    inner: Tensor | None = None  # ⟨g_prim, g_aux⟩, or None
    judged: Tensor | None = None  # ⟨g_judge, g_aux⟩, or None
    primary_calls: int = 0  # how many primary calls there were when it was measured
    waiting: dict[str, Tensor] | None = None
    """Its gradients while the shared parameters are still unknown, because auxiliary() came before primary() in a refresh."""


@dataclass(frozen=True)
class Found:
    """The gradients of all trainable parameters; None for a parameter that the loss does not reach."""

    gradients: Sequence[Tensor | None]
    layout: Layout | None = None
    flat: Tensor | None = None  # if given, this vector holds the gradients of the layout's parameters

    def over(self, layout: Layout | None, shared: Shared) -> Found:
        """Return the same gradients for another layout, if the shared parameters turned out to be different."""
        if self.layout is None or self.flat is None or layout is self.layout:
            return self
        views = self.layout.by_identity(self.flat)
        named = zip(shared.listing.trainable, self.gradients, strict=True)
        return Found([None if g is None else views.get(id(parameter), g) for (_, parameter), g in named])


@dataclass(frozen=True)
class GuideParts:
    """The parts of a guide that are kept from step to step."""

    shared: Shared
    refresher: Refresher
    auto: AutoWeights
    graphs: GraphMemory
    captured: CapturedUpdate
    primary: ReusedVector  # for the primary gradient
    judges: ReusedVector  # for the judges' gradient
    warn: SkipWarning

    def release(self) -> None:
        """Give back the memory of a step."""
        self.primary.release()
        self.judges.release()


class Gradients:
    """The gradients of the primary task, the auxiliary tasks and the judges over the shared parameters."""

    def __init__(self, workers: Workers, subspace: Subspace | None, include_mean: bool, norms: bool) -> None:
        self.workers = workers
        self.subspace = subspace  # the basis to project onto; None until it is fixed
        self.layout: Layout | None = None if subspace is None else subspace.layout
        """The shared parameters, as far as they are known."""
        self.include_mean = include_mean
        self.norms = norms  # whether the report has norms even if they cost an exchange
        self.skips = False  # whether this step needs no primary losses and got None for them
        self.primary_gradient: Tensor | None = None
        self.primary_calls = 0
        self.primary_complete = False  # no further primary call will come
        self.primary_whole = not workers.splits_examples  # `primary_gradient` covers the examples of all workers
        self.primary_measured: tuple[int, Tensor, Tensor] | None = None
        """The number of primary calls so far, with V g_prim and ‖g_prim‖² after them."""
        self.judges: Tensor | None = None  # the judges' mean gradient, over the judges of all workers
        self.tasks: dict[str, AuxiliaryGradient] = {}
        self.total: Tensor | None = None  # the common sum of neutral * weight * g_aux
        self.unsummed: list[Tensor] = []  # other gradients, which join the next sum over the workers

    def copied(self, weights: Weights | None) -> Self:
        """Return a copy that refers to the same vectors. Measuring with the copy does not change this object.

        `weights`: the weights of the task under eta="auto".
        """
        found = copy(self)
        found.tasks = {name: replace(task, eta=weights or task.eta) for name, task in self.tasks.items()}
        return found

    # ------------------------------------------------------------------------------------------------ several tasks

    @property
    def _folds(self) -> bool:
        """Whether only one task's gradient is kept as a vector, and all others as k-vectors and a common sum.

        With `include_mean` or with judges this is possible only after the last primary call.
        """
        waits = self.include_mean or self.judges is not None
        return isinstance(self.subspace, Directions) and (self.primary_complete or not waits)

    def _room(self, name: str) -> Tensor | None:
        """Memory into which the backward pass writes the gradient of a second or later task.

        Without it this gradient would be in memory twice, as autograd's tensors and as one vector, next to the common sum or
        the judges' gradient.
        """
        if self.layout is None or self._started(name) or not self._folds or self.workers.size > 1:
            return None
        # For a small gradient next to the judges', writing into one vector would be slower, and a refresh needs more memory.
        if (self.judges is None or is_small(self.layout)) and not self.tasks.keys() - {name}:
            return None
        self._fold_others(name)
        return self.layout.empty()

    def _started(self, name: str) -> bool:
        """Whether an earlier call has left a vector, to which the gradient of this task is added."""
        return name in self.tasks and self.tasks[name].flat is not None

    def _fold_others(self, name: str) -> None:
        for other, task in self.tasks.items():
            if other != name:
                self._measure(task)
                self._fold(task)

    def _fold(self, task: AuxiliaryGradient) -> None:
        """Add neutral * weight * g_aux to the common sum."""
        if task.flat is not None:
            scaled = task.flat.mul_(task.weight * task.eta.neutral)
            self.total = scaled if self.total is None else self.total.add_(scaled)
            task.flat = task.views = None

    def summed(self) -> tuple[Tensor, float | Tensor]:
        """Return the sum of neutral * weight * g_aux over all tasks, as a vector and a factor still to be applied."""
        if len(self.tasks) == 1 and self.total is None:
            # With a single task, its weight is applied in the same pass as the correction.
            (task,) = self.tasks.values()
            assert task.flat is not None
            return task.flat, task.weight * task.eta.neutral
        for task in self.tasks.values():
            self._fold(task)
        assert self.total is not None
        return self.total, 1.0

    # ------------------------------------------------------------------------------------------------ numbers

    def measure(self) -> tuple[Tensor, Tensor | None, Judges | None]:
        """Reduce all gradients to k-vectors and inner products: V g_prim, ‖g_prim‖², and the products with g_judge."""
        subspace = self.subspace
        assert isinstance(subspace, Directions)
        if self.norms or self.include_mean:
            self.sum_primary()
        if self.norms and len(self.tasks) == 1:
            self.sum_tasks()
        for task in self.tasks.values():
            self._measure(task)
        p: Tensor
        square: Tensor | None
        if self.primary_measured is not None and self.primary_measured[0] == self.primary_calls:
            _, p, square = self.primary_measured
        else:
            assert self.primary_gradient is not None
            p = subspace.project(self.primary_gradient)
            square = subspace.inner(self.primary_gradient, self.primary_gradient) if self.primary_whole else None
        judges = None
        if self.judges is not None:
            assert self.primary_gradient is not None and self.primary_whole
            judges = subspace.judges(self.judges, self.primary_gradient)
        if self.workers.size > 1:
            _exchange(self, p, square, judges)
        return p, square, judges

    def _measure(self, task: AuxiliaryGradient) -> None:
        """Reduce a task's gradient to its k-vector and inner products."""
        if task.flat is None:
            return
        if self.include_mean:
            self.sum_primary()
        subspace, primary = self.subspace, self.primary_gradient
        assert isinstance(subspace, Directions)
        square: Tensor | None
        inner: Tensor | None
        if primary is not None and self.primary_whole and task.whole:
            found = subspace.products(task.flat, primary)
            a, square, inner = found.rows_x, found.xx, found.xy
            self.primary_measured = self.primary_calls, found.rows_y, found.yy
        else:
            a = subspace.project(task.flat)
            square = subspace.inner(task.flat, task.flat) if task.whole else None
            inner = subspace.inner(task.flat, primary) if primary is not None and self.primary_whole else None
        if self.judges is not None:
            if square is None:
                # The squared norms of the workers' parts do not add up to ‖g_aux‖². So every worker computes the whole, and
                # divides it by the number of workers, over which the exchange sums.
                whole = self.workers.sum_examples_(task.flat.clone(), "auxiliary gradients")
                square = subspace.inner(whole, whole) / self.workers.size
            judged = subspace.inner(task.flat, self.judges)
            task.judged = judged if task.judged is None else task.judged + judged
        if task.a is None:
            task.a, task.square, task.inner = a, square, inner
        else:
            # ‖g_aux‖² needs the cross term with an earlier part, which is already in the common sum, so it is lost.
            task.a, task.square = task.a + a, None
            same_primary = task.primary_calls == self.primary_calls
            task.inner = task.inner + inner if same_primary and task.inner is not None and inner is not None else None
        task.primary_calls = self.primary_calls

    def sum_primary(self) -> None:
        """Sum the primary gradient over the examples of all workers."""
        if not self.primary_whole and self.primary_gradient is not None:
            self.workers.sum_examples_(self.primary_gradient, "primary gradients")
            self.primary_whole = True

    def sum_tasks(self) -> None:
        """Sum the gradient of each task, which must still be a vector, over the examples of all workers."""
        for task in self.tasks.values():
            if not task.whole and task.flat is not None:
                self.sum_examples_(task.flat, "auxiliary gradients")
                task.whole = True

    def sum_examples_(self, x: Tensor, what: str) -> None:
        """Sum a vector over the examples of all workers; the same exchange sums the gradients in `unsummed`."""
        self.workers.sum_examples_(x, what, *self.unsummed)
        self.unsummed = []


def _exchange(found: Gradients, p: Tensor, square: Tensor | None, judges: Judges | None) -> None:
    """Sum all k-vectors and inner products over the workers, in one small exchange."""
    columns = found.workers.splits_columns
    parts = [p, square] if columns or not found.primary_whole else []
    if judges is not None and columns:
        parts += [judges.rows, judges.square, judges.primary]
    for task in found.tasks.values():
        if columns or not task.whole:
            parts += [task.a, task.square, task.inner, task.judged]
    found.workers.sum_numbers_([part for part in parts if part is not None])


class Step(Gradients):
    """Accumulates over micro-batches: calls add, as `Tensor.backward` does."""

    def __init__(self, parts: GuideParts, refreshing: bool, may_wait: bool, include_mean: bool, norms: bool) -> None:
        super().__init__(parts.shared.workers, None if refreshing else parts.refresher.subspace, include_mean, norms)
        self.parts, self.shared, self.refresher = parts, parts.shared, parts.refresher
        self.replayed = CUDA_GRAPH_TREES in sys.modules and in_cuda_graphs()
        """Whether passes may run as CUDA graphs, which reuse the same memory every time."""
        self.refreshing, self.may_wait = refreshing, may_wait
        """Whether a refresh is due in this step. It may wait for a step with more examples."""
        self.refresh: Refresh | None = None
        """The new basis, from the first primary call of a step with a refresh until the basis is fixed."""
        self.basis_losses: Losses | None = None  # what builds the basis, if the primary losses do not
        self.judge: Losses | None = None  # the callable that returns the judges' losses, in a step that uses the judges
        self.rest_primary: dict[str, Tensor] = {}
        self.rest_auxiliary: dict[str, Tensor] = {}  # gradients of parameters that are not decomposed, by name
        self.reached: set[str] = set()  # parameters that the auxiliary losses reach
        self.reach_complete = False  # no further auxiliary loss will come
        self._undo: Callable[[], None] | None = None  # restores what forming the update has changed besides gradients
        kept = self.refresher
        self._before = kept.subspace, kept.age, parts.shared.auxiliary, list(parts.auto.scores)
        """The state that a discarded step restores."""

    def give_up(self) -> None:
        """Restore the state before this step. If the step has overwritten the basis, the next step computes it again."""
        refresher = self.refresher
        subspace, age, auxiliary, known = self._before
        refresher.restore(subspace, age, overwritten=self.refreshing and self.subspace is subspace)
        self.shared.restore(auxiliary)
        if self._undo is not None:
            self._undo()
        self.parts.auto.restore(known)
        self.parts.release()

    # ------------------------------------------------------------------------------------------------ losses

    def ask(self, judge: Losses | None) -> None:
        """Use the judges, whose losses `judge` returns, in this step if they are due."""
        if self.parts.auto.asks(judge):
            self.judge, self.norms = judge, True

    def run(
        self,
        primary: Tensor | Losses | None,
        tasks: dict[str, Given],
        basis_losses: Losses | None,
        *,
        skips: bool = False,
    ) -> None:
        """Take all losses of a step at once. So it is known which parameters are shared and when a graph may be freed.

        `skips`: the step needs no primary losses, and `primary` is None.
        """
        self.skips = skips
        given, replayed = {name: task.loss for name, task in tasks.items()}, self.replayed
        # `held` must be cleared before the tasks' backward passes, which free the memory of these tensors.
        waiting = given.values() if replayed and callable(primary) else ()
        held = [saved_by_compiled(walk(loss).nodes) for loss in waiting]
        with _computed(self, primary, basis_losses) as losses:
            graphs = _graphs(self, {PRIMARY: losses} | given)
            shares = (
                self.workers.shares([losses, *given.values()]) if self.workers.size > 1 else [EVERYTHING] * len(graphs)
            )
            self._expect([graphs[name] for name in given])
            self.reach_complete = True
            self._take_primary(losses, shares[0], basis_losses, graphs[PRIMARY])
        self.primary_complete = True
        held.clear()
        early = _early(self, tasks, shares[1:], graphs) if replayed else {}
        self.fix()
        try:
            for (name, task), share in zip(tasks.items(), shares[1:], strict=True):
                self._take_auxiliary(name, task, share, graphs[name], early.get(name))
        except RuntimeError as error:
            _check_recognised(self, {PRIMARY: losses} | given, graphs, error)
            raise

    def primary(
        self, primary: Tensor | Losses | None, basis_losses: Losses | None, *, retain_graph: bool, skips: bool = False
    ) -> None:
        """Take primary losses; others may follow. `skips`: as for `run`."""
        self.skips = skips and self.primary_calls == 0
        with _computed(self, primary, basis_losses) as losses:
            graph = _graphs(self, {PRIMARY: losses}, retain_graph=retain_graph)[PRIMARY]
            self._take_primary(losses, self.workers.shares([losses])[0], basis_losses, graph)

    def auxiliary(self, tasks: Mapping[str, Given], *, retain_graph: bool) -> None:
        """Take auxiliary losses; others may follow."""
        given = {name: task.loss for name, task in tasks.items()}
        shares = self.workers.shares(list(given.values()))
        graphs = _graphs(self, given, retain_graph=retain_graph)
        self._expect(graphs.values())
        early = _early(self, tasks, shares, graphs) if self.replayed else {}
        if self.subspace is not None or (self.primary_calls and self.shared.auxiliary is not None):
            self.fix()
        try:
            for (name, task), share in zip(tasks.items(), shares, strict=True):
                self._take_auxiliary(name, task, share, graphs[name], early.get(name))
        except RuntimeError as error:
            _check_recognised(self, given, graphs, error)
            raise

    def _expect(self, graphs: Iterable[KnownGraph]) -> None:
        """Note the parameters that auxiliary losses reach before their gradients show it, for a new basis needs them.

        Then the graphs have been walked. In other steps they are remembered, and may have changed.
        """
        if self.refreshing:
            self.reached = self.reached.union(*[graph.reached for graph in graphs])

    # ------------------------------------------------------------------------------------------------ gradients

    def _take_primary(self, losses: Tensor, share: Share, basis_losses: Losses | None, graph: KnownGraph) -> None:
        """Turn primary losses into gradients, and add them to the new basis in a refresh."""
        pending, basis = self.subspace is None, self.refresher.basis
        if self.refreshing and self.basis_losses is None and self.primary_calls:
            _check_order(fixed=not pending, basis_losses=basis_losses)
        if pending and self.refresh is None:
            self.layout = self.shared.begin(graph.reached, self.reached if self.reach_complete else None)
            self.refresh = self.refresher.start(self.layout)
        if pending and basis_losses is not None and self.primary_calls == 0:
            self.basis_losses = basis_losses
        contributes = self.refresh if pending and self.basis_losses is None else None
        found = None
        if contributes is not None:
            # The pass for J may give the gradients too, if nobody needs the graph after it.
            wanted = () if graph.retained else self.shared.listing.parameters
            found = self.refresher.take_in(
                contributes, losses, share, scaled=True, complete=self.reach_complete, parameters=wanted
            )
        assert self.layout is not None
        if found is None:
            into = self.layout if graph.converts and self.primary_gradient is None else None
            found = _gradients(self, losses, share, graph.retained, into=into)
        inside, rest = self.shared.split(self.layout, found)
        _add_to(self.rest_primary, rest, 1.0, copied=self.replayed)
        self.primary_calls += 1
        if self.primary_gradient is not None:
            self.layout.add_(self.primary_gradient, inside, fresh=False)
        elif self.layout.on_gpu:
            self.primary_gradient = self.parts.primary.filled(self.layout, inside)
        else:
            self.primary_gradient = self.layout.flatten(inside)
        if contributes is not None and basis.takes_mean:
            # This is the running sum, which includes the earlier calls.
            contributes.put(self.primary_gradient[None].clone())
        _check_reach(self, "primary", graph.confirm(losses, self.shared.reached(found)))

    def _take_auxiliary(self, name: str, task: Given, share: Share, graph: KnownGraph, found: Found | None) -> None:
        """Turn an auxiliary loss into its gradient. `found`: the gradient, if it has already been computed."""
        if found is not None:
            found = found.over(self.layout, self.shared)
        else:
            room = self._room(name)
            into = self.layout if graph.converts and not self._started(name) else None
            found = _written(self, task.loss, share, graph.retained, self.layout, room, into=into)
        reached = graph.confirm(task.loss, self.shared.reached(found.gradients))
        _check_reach(self, f"auxiliary {name!r}", reached)
        self.reached = self.reached | reached
        if self.subspace is None and self.primary_calls:
            self.fix()  # it had to wait for this loss, which shows the shared parameters
        auto = self.parts.auto
        eta = task.eta if isinstance(task.eta, Eta) else auto.weights(name, (self.layout or task.loss).device)
        self.tasks.setdefault(name, AuxiliaryGradient(eta, task.weight, whole=not self.workers.splits_examples))
        self._add_auxiliary(name, found)

    def _add_auxiliary(self, name: str, found: Found) -> None:
        task = self.tasks[name]
        if self.subspace is None or self.layout is None:
            task.waiting = task.waiting or {}
            named = zip(self.shared.listing.trainable, found.gradients, strict=True)
            _add_to(task.waiting, {key: g for (key, _), g in named if g is not None}, 1.0, copied=self.replayed)
            return
        if len(self.tasks) > 1 and self._folds:
            self._fold_others(name)
        inside, rest = self.shared.split(self.layout, found.gradients)
        _add_to(self.rest_auxiliary, rest, task.weight, copied=self.replayed)
        if found.flat is not None:
            task.flat = found.flat
        elif task.flat is None:
            task.flat, task.views = self.layout.flatten_and_view(inside)
        else:
            self.layout.add_(task.flat, inside, fresh=False)

    # ------------------------------------------------------------------------------------------------ the basis

    def fix(self) -> None:
        """Fix the basis; later gradients are projected onto it. Then use the judges, who also need the shared parameters."""
        if self.subspace is None:
            assert self.refresh is not None and self.layout is not None
            if self.shared.auxiliary is None:
                self._narrow(self.shared.narrowed(self.layout, self.reached_primary, self.reached))
            if self.basis_losses is not None:
                # Only now are the shared parameters known, and the primary graph is gone.
                self.refresher.take_in_from(self.refresh, self.basis_losses)
            self.subspace = self.refresher.fix(self.refresh, may_wait=self.may_wait)
            if self.subspace is None:
                self.subspace, self.refreshing = self.refresher.subspace, False
            self.refresh = None
        if self.judge is not None and self.judges is None:
            assert self.layout is not None
            self.judges = self.parts.auto.gradient(self.judge, self.layout, self.parts.judges)
        for name, task in list(self.tasks.items()):
            if task.waiting is not None:
                waiting, task.waiting = task.waiting, None
                self._add_auxiliary(name, Found([waiting.get(key) for key, _ in self.shared.listing.trainable]))

    def _narrow(self, kept: Layout) -> None:
        """Remove from the flat vectors the parameters that only the primary task uses."""
        assert self.layout is not None and self.refresh is not None
        if len(kept.parameters) == len(self.layout.parameters):
            return
        if self.primary_gradient is not None:
            stays = set(kept.names)
            for name, view in zip(self.layout.names, self.layout.views(self.primary_gradient), strict=True):
                if name not in stays:
                    self.rest_primary[name] = view.clone()
            self.primary_gradient = self.layout.narrow_(self.primary_gradient, kept)
        self.refresh.narrow_(kept)
        self.layout = kept

    @property
    def reached_primary(self) -> set[str]:
        """Parameters that take part, or that the primary losses of this worker reach."""
        assert self.layout is not None
        return self.rest_primary.keys() | self.layout.name_set

    # ------------------------------------------------------------------------------------------------ the update

    def finish(self, primary_weight: float) -> Report:
        """Compare the signs, form the update and add it to `.grad`."""
        self.fix()
        shared, layout, subspace = self.shared, self.layout, self.subspace
        assert layout is not None and subspace is not None
        # Earlier steps count too: if a task is missing in one step, its parameters do not become the primary task's own.
        primary, auxiliary = shared.settle(self.reached_primary, self.reached)
        rest = _rest_updates(self, primary_weight, auxiliary)
        if self.workers.size > 1:
            others = [(name, p) for name, p in shared.listing.trainable if name not in layout.name_set]
            # If the primary pass is left out, the primary task's own parameters get no gradient on any worker.
            reached = auxiliary if self.skips else primary | auxiliary
            others = [(name, p) for name, p in others if name in reached]
            rest, unsummed = self.workers.rest(rest, others)
            self.unsummed = [] if unsummed is None else [unsummed]
        done = self.parts.captured.finish(self, primary_weight) or subspace.finish(self, primary_weight)
        self._undo = done.undo
        known = [task.views for task in self.tasks.values() if task.flat is done.update and task.views is not None]
        shared.write(layout, known[0] if known else done.update, rest)
        self.parts.release()
        self.refresher.close(refreshed=self.refreshing)
        if self.parts.auto.wanted:
            _close_auto(self, done)
        return Report(
            done.captured_primary,
            done.effective_rank,
            skipped_refreshes=self.refresher.skipped.clone(),
            refreshed=self.refreshing,
            tasks=done.tasks,
            _warn=self.parts.warn,
        )


def _close_auto(step: Step, done: Finished) -> None:
    auto = step.parts.auto
    auto.close(done.cosines, asked=step.judges is not None)
    for name, task in step.tasks.items():
        if isinstance(task.eta, Weights):
            done.tasks[name] = replace(done.tasks[name], earned=auto.report(name, task.eta))


def _rest_updates(step: Step, primary_weight: float, auxiliary: set[str]) -> dict[str, Tensor]:
    """Updates of parameters that are not decomposed. `auxiliary`: parameters that the auxiliary losses of any worker reach."""
    updates = dict(step.rest_auxiliary)
    for name, gradient in step.rest_primary.items():
        # If only the primary loss reaches this parameter (its head), the weight is 1: primary_weight=0 would never train it.
        # (If an auxiliary loss starts to reach it too, the workers learn this at the next refresh.)
        weighted = primary_weight * gradient if name in auxiliary else gradient
        updates[name] = updates[name] + weighted if name in updates else weighted
    return updates


@contextmanager
def _computed(step: Step, primary: Tensor | Losses | None, basis_losses: Losses | None) -> Iterator[Tensor]:
    """Yield the per-example primary losses. If a callable computes them for a new basis, the engine observes the block."""
    refresher, empty = step.refresher, step.workers.size > 1
    scalar = refresher.basis.needs != "jacobian"
    if not callable(primary):
        given = _nothing(step) if primary is None else primary
        yield as_losses(given, "primary", may_be_empty=empty or step.skips, may_be_scalar=scalar)
        return
    due = step.subspace is None and basis_losses is None and step.basis_losses is None
    watched = due and refresher.basis.needs == "jacobian"
    with refresher.engine.watch(refresher.model) if watched else nullcontext():
        more = "return the losses of at least two examples, or put the BatchNorm layers into eval()"
        losses = losses_of(primary, "primary", more, step.workers, may_be_scalar=scalar)
        yield losses


def _nothing(step: Step) -> Tensor | None:
    """Stand-in losses for None, on a worker without examples or in a step that needs no primary losses."""
    if not step.skips:
        return step.workers.losses(None, "primary")
    # The product gives it a node, because a graph is recognised by the number of its node.
    return torch.zeros(0, device=step.shared.listing.parameters[0].device, requires_grad=True) * 1


def _graphs(step: Step, losses: Mapping[str, Tensor], *, retain_graph: bool = False) -> dict[str, KnownGraph]:
    """Describe the graphs of the losses. Graphs are walked only in a refresh, or if they differ from all earlier ones."""
    memory = step.parts.graphs
    found = None if step.refreshing or step.replayed else memory.recall(losses)
    if found is None:
        found = memory.learn(losses, _walked(step, losses))
    return {name: replace(graph, retained=True) for name, graph in found.items()} if retain_graph else found


def _walked(step: Step, losses: Mapping[str, Tensor]) -> list[KnownGraph]:
    walked = [walk(loss) for loss in losses.values()]
    nodes = [graph.nodes for graph in walked]
    needed = [any(not own.isdisjoint(later) for later in nodes[at + 1 :]) for at, own in enumerate(nodes)]
    reached = [step.workers.names(graph.leaves, step.shared.listing.named) for graph in walked]
    known = zip(reached, needed, [graph.converts for graph in walked], strict=True)
    return [KnownGraph(*properties) for properties in known]


def _check_recognised(
    step: Step, losses: Mapping[str, Tensor], graphs: Mapping[str, KnownGraph], error: RuntimeError
) -> None:
    """Raise a clear error if a pass has failed because a graph was freed too early: it was mistaken for an earlier graph."""
    now = _walked(step, losses)
    if any(graph.retained and not graphs[name].retained for name, graph in zip(losses, now, strict=True)):
        step.parts.graphs.distrust()
        raise RuntimeError(
            "two losses of this step share a part of their graphs, which the guide did not notice, because in earlier steps such "
            "losses shared nothing. From now on it looks at every graph: run the forward passes and this step once more"
        ) from error


def _gradients(
    step: Step,
    losses: Tensor,
    share: Share,
    retain_graph: bool,
    *,
    into: Layout | None = None,
) -> Sequence[Tensor | None]:
    """The gradients of the mean loss for all trainable parameters. `into`: as for `Workers.gradients`."""
    parameters = step.shared.listing.parameters
    return step.workers.gradients(losses, share.weights(losses), parameters, retain_graph=retain_graph, into=into)


def _written(
    step: Step,
    loss: Tensor,
    share: Share,
    retain: bool,
    layout: Layout | None,
    flat: Tensor | None,
    *,
    into: Layout | None = None,
) -> Found:
    """The gradients of all trainable parameters. If `flat` is given, the gradients of a layout are written into it.

    `into`: as for `_gradients`.
    """
    if flat is None or layout is None:
        return Found(_gradients(step, loss, share, retain, into=into), layout)
    with written_into(layout, flat, returned=True) as writing:
        found = _gradients(step, loss, share, retain)
        writing.keep(step.shared.split(layout, found)[0])
    return Found(found, layout, flat)


def _early(
    step: Step, tasks: Mapping[str, Given], shares: Sequence[Share], graphs: Mapping[str, KnownGraph]
) -> dict[str, Found]:
    """Compute the gradients of the tasks before a forward pass of the judges or of `basis_losses`.

    If forward passes are CUDA graphs, such a pass may overwrite the tensors that the tasks' own passes saved.
    """
    judges = step.judge is not None and step.judges is None
    if not judges and (step.basis_losses is None or step.subspace is not None):
        return {}
    early = {}
    for (name, task), share in zip(tasks.items(), shares, strict=True):
        found = _gradients(step, task.loss, share, graphs[name].retained)
        early[name] = Found([None if gradient is None else gradient.clone() for gradient in found])
    return early


def _check_reach(step: Step, what: str, reached: set[str]) -> None:
    # One of several workers may have no examples.
    if not reached and step.workers.size == 1 and not (step.skips and what == "primary"):
        raise ValueError(
            f"{what}: the loss reaches no trainable parameter of the model, so nothing can be learned from it; compute it "
            "from the model given to Guide, and check requires_grad"
        )


def _add_to(sums: dict[str, Tensor], found: Mapping[str, Tensor], weight: float, *, copied: bool) -> None:
    """Add weighted gradients to sums by name. `copied`: copy them, because another pass of the step may overwrite them."""
    for name, gradient in found.items():
        weighted = weight * gradient if weight != 1.0 else gradient.clone() if copied else gradient
        sums[name] = sums[name] + weighted if name in sums else weighted


def _check_order(*, fixed: bool, basis_losses: Losses | None) -> None:
    if fixed:
        raise RuntimeError(
            "primary() after auxiliary() in a step with a refresh: the basis is already fixed. Call primary() for "
            "all micro-batches first, or pass basis_losses= at the first primary() call of the step, so that the "
            "basis does not depend on the primary calls"
        )
    if basis_losses is not None:
        raise RuntimeError(
            "basis_losses= came too late: an earlier primary() call of this step has already contributed to the basis. Pass it "
            "at the first primary() call of the step"
        )
