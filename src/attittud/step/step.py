"""One step: gradients, numbers, combination, update, `.grad`. `Step.finish` is the paper's
Algorithm 1.

`Guide.backward` calls `run` with all losses and then `finish`; its three verbs call `primary`,
`auxiliary` and `finish`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attittud._torch import (
    CUDA_GRAPH_TREES,
    DisableTorchFunction,
    in_cuda_graphs,
    saved_by_compiled,
)
from attittud.autograd.layout import EVERYTHING, Layout, Share, converts, walk, written_into
from attittud.basis.base import Refresh
from attittud.basis.captured import CapturedUpdate, Work, is_small
from attittud.basis.subspace import Subspace, Update
from attittud.decompose import Combination, Weights, combine
from attittud.eta import Eta
from attittud.report import (
    Comparison,
    Gathered,
    Report,
    SkipWarning,
    TaskReport,
    captured_primary_of,
    effective_rank_of,
    products_of,
    split_of,
)
from attittud.step.auto import AutoWeights, TaskScores
from attittud.step.gradients import Gradients, Losses, LossGradients, TaskLoss, as_losses, losses_of
from attittud.step.refresh import Refresher
from attittud.step.shared import GraphMemory, KnownGraph, Schedule, Shared

Arithmetic = Callable[[Gradients], tuple[Tensor, Combination]]
PRIMARY = ""  # the name of the primary losses among named losses


@dataclass(frozen=True)
class GuideParts:
    """The parts of a guide that are kept from step to step."""

    shared: Shared
    schedule: Schedule
    refresher: Refresher
    auto: AutoWeights
    warn: SkipWarning
    # The following two only save time. A guide gives the same updates without them.
    graphs: GraphMemory
    captured: CapturedUpdate


class Step:
    """The losses of one step become gradients and, in a refresh, a basis. Calls add up, as
    `Tensor.backward` does.

    What a guide keeps from step to step changes only in `finish`, after the update is written. So a
    step that fails needs no repair, apart from `give_up`.
    """

    def __init__(
        self,
        parts: GuideParts,
        *,
        refreshing: bool,
        may_wait: bool,
        include_mean: bool,
        norms: bool,
        needs_primary: bool,
    ) -> None:
        """Begin a step that changes nothing of `parts` yet.

        Args:
            parts: what the guide keeps from step to step.
            refreshing: whether a refresh is due in this step.
            may_wait: whether the refresh may wait for a step with more examples.
            include_mean: whether g_prim itself is the last direction, as in `Guide`.
            norms: whether the report has norms even if they cost the workers an exchange.
            needs_primary: whether the update depends on primary losses.
        """
        self.parts = parts
        self.shared = parts.shared
        self.workers = parts.shared.workers
        self.refresher = parts.refresher
        self.replayed = CUDA_GRAPH_TREES in sys.modules and in_cuda_graphs()
        """Whether passes may run as CUDA graphs, which reuse the same memory every time."""
        self.refreshing = refreshing
        """Whether this step computes a new basis. It becomes False if the refresh waits."""
        self.may_wait = may_wait
        self.norms = norms
        self.skips = False
        """Whether this step needs no primary losses and got None for them."""
        self.needs_primary = needs_primary
        self.examples = 0
        """How many primary examples all workers have, where counting them waits for no device."""
        self.gradients = Gradients(self.workers, include_mean, copied=self.replayed)
        old = parts.schedule.subspace
        if not refreshing and old is not None:
            self.gradients.begin(old.layout, old)
        self.refresh: Refresh | None = None
        """The new basis, from the first primary call of a step with a refresh until the basis is
        fixed.
        """
        self.basis_losses: Losses | None = None
        """What builds the basis, if the primary losses do not."""
        self.judge: Losses | None = None
        """The callable that returns the judges' losses, in a step that uses the judges."""
        self.by_auxiliary: set[str] | None = parts.shared.auxiliary
        """Names of the parameters that auxiliary losses reach: those of earlier steps, in a refresh
        also those of this step; None: not known.
        """
        self.reached: set[str] = set()
        """Names of the parameters that the auxiliary losses of this step reach, as far as these
        losses have been taken.
        """
        self.names: Collection[str] | None = None
        """The names of all auxiliary losses of this step; None: more may come."""
        self._undo: Callable[[], None] | None = None
        """Restores what forming the update has changed besides gradients."""
        self._scored = list(parts.auto.scores)
        """The tasks that had scores before this step."""

    def give_up(self) -> None:
        """Restore what this step has changed of the guide's parts, after an error."""
        if self._undo is not None:
            self._undo()
        self.parts.auto.restore(self._scored)

    # -------------------------------------------------------------------------------- the algorithm

    def finish(self, primary_weight: float) -> Report:
        """Carry out the paper's Algorithm 1, from the gradients on: fix the basis, compare the
        signs, and add the update to `.grad`. Then the guide's schedule and scores count this step.

            g_p, g_a = the gradients of the mean primary and auxiliary loss
            V        = k orthonormal directions, from per-example primary gradients in every n-th step
            p        = V g_p
            a        = V g_a
            eta_j    = harmful if a_j p_j < 0 else helpful
            update   = neutral g_a + Vᵀ((eta_j - neutral) a_j) + primary_weight g_p

        With several auxiliary tasks, each has its own g_a, a and weights, and their parts of the
        update are added up.
        """
        gradients = self.gradients
        self._refuse_without_primary()
        basis = self.fix()
        layout = gradients.layout
        assert layout is not None
        rest, reached = self._rest(primary_weight)

        def arithmetic(gradients: Gradients) -> tuple[Tensor, Combination]:
            """Return the update, in the memory of these gradients, and the numbers behind it."""
            numbers = gradients.measure(norms=self.norms, skips=self.skips)
            combination = combine(
                numbers,
                primary_weight,
                include_mean=gradients.include_mean,
                dtype=basis.layout.dtype,
                rounding=basis.rounding,
            )
            return gradients.lift_(combination), combination

        # One of three ways: a CUDA graph of the arithmetic, a basis without rows, the arithmetic.
        update: Update | None = None
        if layout.on_gpu:
            update = self._by_graph(arithmetic, primary_weight)
        if update is None and basis.rows is None:
            # V is not stored, because k-vectors are as long as gradients.
            tasks = gradients.task_vectors()
            assert gradients.primary is not None
            update = basis.update_(gradients.primary, tasks, gradients.judges, primary_weight)
        if update is None:
            vector, combination = arithmetic(gradients)
            numbers = _comparison(combination, basis)
            update = _update_with_report(vector, gradients.tasks, numbers, combination.cosines)
        self._undo = update.undo

        views = gradients.views_of(update.vector)
        self.shared.write(layout, views or update.vector, rest)
        report = self._report(update, basis)
        self.shared.remember(reached)
        self.parts.schedule.close(basis, refreshed=self.refreshing)
        return report

    def _rest(self, primary_weight: float) -> tuple[dict[str, Tensor], set[str]]:
        """Compute the updates of parameters that are not decomposed, by name: auxiliary_weight *
        g_aux + primary_weight * g_prim, and g_prim alone for the primary task's own parameters.

        Also returns the names of all parameters that auxiliary losses reach, in this or earlier
        steps. With several workers, updates that are still parts of a sum join the next sum of
        gradients (`Gradients.sum_later`).
        """
        gradients = self.gradients
        layout = gradients.layout
        assert layout is not None
        # Earlier steps count too: if a task is missing in one step, its parameters do not become
        # the primary task's own. (The choice of decomposed parameters in a refresh looks at the
        # losses of its own step alone.)
        earlier = (self.by_auxiliary or set()) | (self.shared.auxiliary or set())
        primary, auxiliary = self.shared.settle(
            self._reached_primary, self.reached, gradients.tasks
        )
        rest = dict(gradients.auxiliary_rest)
        for name, gradient in gradients.primary_rest.items():
            # If only the primary loss reaches this parameter, which belongs to its head, the weight
            # is 1: primary_weight=0 would never train it. (If an auxiliary loss starts to reach it
            # too, the workers learn this at the next refresh.)
            weighted = gradient
            if name in auxiliary or name in earlier:
                weighted = primary_weight * gradient
            if name in rest:
                weighted = rest[name] + weighted
            rest[name] = weighted
        if self.workers.size > 1:
            # If the primary pass is left out, the primary task's own parameters get no gradient on
            # any worker.
            with_update = auxiliary
            if not self.skips:
                with_update = primary | auxiliary
            others = []
            for name, parameter in self.shared.trainable:
                if name in with_update and name not in layout.name_set:
                    others.append((name, parameter))
            rest, unsummed = self.workers.rest(rest, others)
            if unsummed is not None:
                gradients.sum_later(unsummed)
        return rest, auxiliary | earlier

    def _report(self, update: Update, basis: Subspace) -> Report:
        """Make the report. With eta="auto", first add the scores of this step. So this must come
        after `.grad` has been written.
        """
        schedule = self.parts.schedule
        auto = self.parts.auto
        tasks = dict(update.tasks)
        if auto.is_auto:
            auto.close(update.cosines, asked=self.gradients.judges is not None)
            for name, task in self.gradients.tasks.items():
                if isinstance(task.eta, Weights):
                    tasks[name] = replace(tasks[name], earned=auto.report(name, task.eta))
        # A copy, because later refreshes change the counter. The schedule counts this step's refresh
        # only after the report.
        skipped = schedule.skipped.clone()
        if self.refreshing:
            skipped = schedule.skipped + ~basis.finite
        return Report(
            update.captured_primary,
            update.effective_rank,
            skipped_refreshes=skipped,
            refreshed=self.refreshing,
            tasks=tasks,
            _warn=self.parts.warn,
        )

    def _by_graph(self, arithmetic: Arithmetic, primary_weight: float) -> Update | None:
        """Make the update by a CUDA graph that replays `arithmetic`, for a small model on a GPU.
        Returns None if this step has no graph; then nothing has been computed.
        """
        captured = self.parts.captured
        gradients = self.gradients
        basis = gradients.subspace
        layout = gradients.layout
        assert layout is not None and basis is not None
        # A graph has no exchange with other workers, and only the addresses of one task's gradients.
        # (Where forward passes are CUDA graphs themselves, these steps run without another one.)
        one_process = (
            self.workers.size == 1
            and not self.workers.splits_examples
            and not self.workers.splits_columns
        )
        one_task = len(gradients.tasks) == 1 and not self.skips
        supported = one_process and one_task and not self.replayed and is_small(layout)
        if basis.rows is None or not supported:
            captured.leave_out(basis)
            return None
        ((name, task),) = gradients.tasks.items()
        assert gradients.primary is not None and task.flat is not None
        vectors = [gradients.primary, task.flat]
        if gradients.judges is not None:
            vectors.append(gradients.judges)
        # The graph reads the tensors of the subspace, whose addresses stay the same while the
        # number of rows does. It also reads the scores of a task, whose addresses stay the same
        # until other scores are loaded.
        scores: TaskScores | None = None
        weight_source: Eta | TaskScores
        changes: list[Tensor] = []
        if isinstance(task.eta, Weights):
            scores = self.parts.auto.scores[name]
            weight_source = scores
            if gradients.judges is not None:
                changes = scores.tensors()
        else:
            weight_source = task.eta
        settings = (
            basis.rows.shape,
            name,
            weight_source,
            task.weight,
            primary_weight,
            gradients.include_mean,
        )

        def compute(vectors: Sequence[Tensor]) -> Gathered:
            """Write the update over the vectors, add the scores, and return the report's numbers."""
            # The graph reads the weights at the time it runs.
            weights: Weights | None = None
            if scores is not None:
                weights = Weights(*scores.weights.unbind())
            _, combination = arithmetic(gradients.of_vectors(vectors, weights))
            gathered = _comparison(combination, basis).gather()
            if scores is not None and name in combination.cosines:
                scores.add(combination.cosines[name])
            return gathered

        replayed = captured.run(Work(basis, settings, compute, changes), vectors)
        if replayed is None:
            return None
        numbers, undo = replayed
        return replace(_update_with_report(task.flat, [name], numbers, {}), undo=undo)

    # --------------------------------------------------------------------------------------- losses

    def ask(self, judge: Losses | None) -> None:
        """Use the judges, whose losses `judge` returns, in this step if they are due. The report
        then has norms.
        """
        if self.parts.auto.asks(judge):
            self.judge = judge
            self.norms = True

    def run(
        self,
        primary: Tensor | Losses | None,
        tasks: Mapping[str, TaskLoss],
        basis_losses: Losses | None,
        *,
        skips: bool = False,
    ) -> None:
        """Take all losses of a step at once, and fix the basis between the primary and the
        auxiliary losses. Because all losses are here, it is known which parameters are shared and
        when a graph may be freed.

        `skips`: the step needs no primary losses, and `primary` is None.
        """
        self.skips = skips
        losses_of_tasks = {name: task.loss for name, task in tasks.items()}
        # If forward passes are CUDA graphs, the forward pass of the primary losses might overwrite
        # what the tasks' passes have saved, unless `saved` refers to it. `saved` must be cleared
        # before the tasks' backward passes, which free the memory of these tensors.
        saved = []
        if self.replayed and callable(primary):
            saved = [saved_by_compiled(walk(loss).nodes) for loss in losses_of_tasks.values()]
        with _primary_losses(self, primary, basis_losses, may_be_empty=skips) as losses:
            graphs = _graphs(self, {PRIMARY: losses} | losses_of_tasks)
            shares = [EVERYTHING] * len(graphs)
            if self.workers.size > 1:
                shares = self.workers.shares([losses, *losses_of_tasks.values()])
            self._count(shares[0])
            self._refuse_without_primary()
            self._expect([graphs[name] for name in losses_of_tasks])
            self.names = tasks.keys()
            self._take_primary(losses, shares[0], basis_losses, graphs[PRIMARY])
        self.gradients.complete_primary()
        saved.clear()
        early: dict[str, LossGradients] = {}
        if self.replayed:
            # `fix` may run forward passes of the judges or of `basis_losses`, which may overwrite what
            # the passes of the tasks have saved.
            early = _gradients_ahead(self, tasks, shares[1:], graphs)
        self.fix()
        with _explain_freed_graph(self, {PRIMARY: losses} | losses_of_tasks, graphs):
            for (name, task), share in zip(tasks.items(), shares[1:], strict=True):
                self._take_auxiliary(name, task, share, graphs[name], early.get(name))

    def primary(
        self,
        primary: Tensor | Losses | None,
        basis_losses: Losses | None,
        *,
        retain_graph: bool,
        skips: bool = False,
    ) -> None:
        """Take primary losses; others may follow. `skips`: as for `run`."""
        first = self.gradients.primary_calls == 0
        self.skips = skips and (first or self.skips)  # all calls of the step must skip
        with _primary_losses(self, primary, basis_losses, may_be_empty=skips) as losses:
            graph = _graphs(self, {PRIMARY: losses}, retain_graph=retain_graph)[PRIMARY]
            share = self.workers.shares([losses])[0]
            self._count(share)
            self._take_primary(losses, share, basis_losses, graph)

    def _count(self, share: Share) -> None:
        """Count the primary examples of all workers, where the number is on the host already."""
        if self.workers.counts and share.total is not None:
            self.examples += int(share.total)

    def _refuse_without_primary(self) -> None:
        """Refuse a step that needs primary examples where all workers together have none."""
        counted = self.workers.size > 1 and self.workers.counts
        if self.needs_primary and counted and not self.examples:
            raise ValueError(
                "primary: no worker has primary examples in this step, so there are no signs to compare; None is allowed on some "
                "of the workers, and on all only in steps in which guide.primary_due is False"
            )

    def auxiliary(self, tasks: Mapping[str, TaskLoss], *, retain_graph: bool) -> None:
        """Take auxiliary losses; others may follow."""
        losses = {name: task.loss for name, task in tasks.items()}
        shares = self.workers.shares(list(losses.values()))
        graphs = _graphs(self, losses, retain_graph=retain_graph)
        self._expect(graphs.values())
        early: dict[str, LossGradients] = {}
        if self.replayed:
            # `fix` may run forward passes of the judges or of `basis_losses`, which may overwrite what
            # the passes of the tasks have saved.
            early = _gradients_ahead(self, tasks, shares, graphs)
        gradients = self.gradients
        # In a refresh, the basis waits for a primary call, and for the names of the parameters that
        # auxiliary losses reach. If no earlier step has shown them, `_take_auxiliary` fixes it.
        # (Where there is a basis already, `fix` lets the judges answer.)
        may_fix = gradients.primary_calls > 0 and self.by_auxiliary is not None
        if may_fix or gradients.subspace is not None:
            self.fix()
        with _explain_freed_graph(self, losses, graphs):
            for (name, task), share in zip(tasks.items(), shares, strict=True):
                self._take_auxiliary(name, task, share, graphs[name], early.get(name))

    def _expect(self, graphs: Iterable[KnownGraph]) -> None:
        """In a refresh: note the parameters that auxiliary losses reach before their gradients show
        it, because the new basis needs them.

        A refresh has walked these graphs. In other steps graphs are only remembered and may have
        changed, so there only the gradients decide.
        """
        if self.refreshing:
            self.reached = self.reached.union(*[graph.reached for graph in graphs])

    # ------------------------------------------------------------------------------------ gradients

    def _take_primary(
        self, losses: Tensor, share: Share, basis_losses: Losses | None, graph: KnownGraph
    ) -> None:
        """Turn primary losses (m) into gradients and add these to the step; in a refresh also add
        the examples to the new basis, if the primary losses build it.

        `share`: this worker's part of the examples of all workers. `graph`: what is known of the
        losses' graph.
        """
        gradients = self.gradients
        per_parameter: Sequence[Tensor | None] | None = None
        refresh: Refresh | None = None
        if self.refreshing:
            refresh = self._begin_basis(basis_losses, graph)
        layout = gradients.layout
        assert layout is not None
        if refresh is not None:
            # The pass for J may give the gradients too, if nobody needs the graph after it.
            parameters: Sequence[Tensor] = ()
            if not graph.retained:
                parameters = self.shared.parameters
            per_parameter = self.refresher.take_in(
                refresh,
                losses,
                share,
                scaled=True,
                complete=self.names is not None,
                first=self.parts.schedule.subspace is None,
                parameters=parameters,
            )
        if per_parameter is None:
            into: Layout | None = None
            if graph.converts and gradients.primary is None:
                into = layout
            per_parameter = _gradients(self, losses, share, graph.retained, into=into)
        # The engine may still be watching: it would be told of every look at a gradient.
        with DisableTorchFunction():
            gradients.add_primary(*self.shared.split(layout, per_parameter))
        if refresh is not None and self.refresher.basis.needs == "mean":
            # This is the running sum, which includes the earlier calls.
            assert gradients.primary is not None
            refresh.put(gradients.primary[None].clone())
        reached = self.shared.reached(per_parameter)
        if reached != graph.reached:
            graph.confirm(losses, reached)
        # One of several workers may have no examples, and some steps need none.
        if not reached and self.workers.size == 1 and losses.numel() > 0:
            raise _no_reach("primary")

    def _begin_basis(self, basis_losses: Losses | None, graph: KnownGraph) -> Refresh | None:
        """Begin the new basis at the first primary call of a refresh, which also chooses the
        parameters that are decomposed.

        Returns the new basis if the losses of this call contribute to it. Returns None if
        `basis_losses` build it instead, or if it is fixed already.
        """
        gradients = self.gradients
        fixed = gradients.subspace is not None
        if self.basis_losses is None and gradients.primary_calls:
            _check_order(fixed=fixed, basis_losses=basis_losses)
        if fixed:
            return None
        if self.refresh is None:
            by_auxiliary: set[str] | None = self.reached
            if (
                self.names is None
            ):  # auxiliary losses may follow: earlier steps show what they reach
                by_auxiliary = self.shared.auxiliary
            layout, self.by_auxiliary = self.shared.begin(graph.reached, by_auxiliary, self.names)
            gradients.begin(layout)
            self.refresh = self.refresher.start(layout, self.parts.schedule)
        if basis_losses is not None and gradients.primary_calls == 0:
            self.basis_losses = basis_losses
        if self.basis_losses is not None:
            return None
        return self.refresh

    def _take_auxiliary(
        self,
        name: str,
        task: TaskLoss,
        share: Share,
        graph: KnownGraph,
        early: LossGradients | None,
    ) -> None:
        """Turn an auxiliary loss into its gradient and add it to the step. `early`: the gradient, if
        it has already been computed.

        In a refresh without a primary call so far, the gradient waits for the basis. If only the
        basis is missing, because it had to be known which parameters this loss reaches, it is fixed
        here.
        """
        gradients = self.gradients
        loss_gradients = early
        if loss_gradients is None:
            room = gradients.room(name)
            into: Layout | None = None
            if graph.converts and not gradients.started(name):
                into = gradients.layout
            loss_gradients = _gradients_into(
                self, task.loss, share, graph.retained, room, into=into
            )
        reached = self.shared.reached(loss_gradients.gradients)
        if reached != graph.reached:
            graph.confirm(task.loss, reached)
        if not reached and self.workers.size == 1:
            raise _no_reach(f"auxiliary {name!r}")
        self.reached = self.reached | reached
        if gradients.subspace is None and gradients.primary_calls:
            self.fix()
        if name not in gradients.tasks:
            eta: Eta | Weights
            if isinstance(task.eta, Eta):
                eta = task.eta
            else:
                eta = self.parts.auto.weights(name, (gradients.layout or task.loss).device)
            gradients.start_task(name, eta, task.weight)
        if gradients.subspace is None or gradients.layout is None:
            named = zip(self.shared.trainable, loss_gradients.gradients, strict=True)
            gradients.wait(name, {key: g for (key, _), g in named if g is not None})
        else:
            inside, rest = self.shared.split(gradients.layout, loss_gradients.gradients)
            gradients.add_auxiliary(name, inside, rest, loss_gradients.flat)

    # ------------------------------------------------------------------------------------ the basis

    def fix(self) -> Subspace:
        """Fix the basis, if it is not fixed yet, and return it; later gradients are projected onto
        it. Then compute the judges' gradient, if this step uses judges, and add the auxiliary
        gradients that had to wait for the shared parameters.
        """
        gradients = self.gradients
        new = gradients.subspace is None
        if new:
            gradients.fix(self._new_basis())
            self.refresh = None
        assert gradients.subspace is not None and gradients.layout is not None
        if self.judge is not None and gradients.judges is None:
            gradients.use_judges(self.parts.auto.gradient(self.judge, gradients.layout))
        if new:
            for name, waiting in gradients.take_waiting().items():
                every = [waiting.get(key) for key, _ in self.shared.trainable]
                gradients.add_auxiliary(name, *self.shared.split(gradients.layout, every))
        return gradients.subspace

    def _new_basis(self) -> Subspace:
        """Finish the refresh and return its basis. If it has too few examples and may wait, return
        the old basis; the step then counts as one without a refresh.
        """
        schedule = self.parts.schedule
        layout = self.gradients.layout
        assert self.refresh is not None and layout is not None
        if self.by_auxiliary is None:
            # The refresh began before it was known what the auxiliary losses reach. It drops the
            # parameters that they do not reach.
            narrowed = self.shared.narrowed(layout, self._reached_primary, self.reached)
            if len(narrowed.parameters) < len(layout.parameters):
                self.gradients.narrow(narrowed)
                self.refresh.narrow_(narrowed)
        if self.basis_losses is not None:
            # Only now are the shared parameters known, and the primary graph is gone.
            first = schedule.subspace is None
            self.refresher.take_in_from(
                self.refresh, self.basis_losses, number=schedule.count, first=first
            )
        basis = self.refresher.fix(self.refresh, schedule, may_wait=self.may_wait)
        if basis is None:  # the refresh waits
            self.refreshing = False
            basis = schedule.subspace
        assert basis is not None
        return basis

    @property
    def _reached_primary(self) -> set[str]:
        """Names of the parameters that the primary losses of this worker reach, and of all that are
        decomposed.
        """
        assert self.gradients.layout is not None
        return self.gradients.primary_rest.keys() | self.gradients.layout.name_set


# ------------------------------------------------------------------------------------------ reports


def _comparison(combination: Combination, basis: Subspace) -> Comparison:
    """Return the numbers of the report."""
    # A report may be read after the next refresh, which overwrites `basis.active`.
    active = basis.active.clone()
    return Comparison(
        combination.p, combination.square, combination.residual, active, combination.tasks
    )


def _update_with_report(
    vector: Tensor,
    tasks: Iterable[str],
    numbers: Comparison | Gathered,
    cosines: Mapping[str, Tensor],
) -> Update:
    """Return an update, `vector`, with the reports of these tasks, which are computed from the
    numbers when they are read.
    """
    reports = {}
    for name in tasks:
        split = partial(split_of, numbers, name)
        reports[name] = TaskReport(split, partial(products_of, numbers, name))
    return Update(
        vector,
        reports,
        partial(captured_primary_of, numbers),
        partial(effective_rank_of, numbers),
        cosines,
    )


# -------------------------------------------------------------------------------- losses and passes


@contextmanager
def _primary_losses(
    step: Step, primary: Tensor | Losses | None, basis_losses: Losses | None, *, may_be_empty: bool
) -> Iterator[Tensor]:
    """Yield the checked per-example primary losses (m), which may be given as a callable.

    If a callable computes them for a new basis, the engine observes the whole block: the forward
    pass of the callable, and what the caller does with the losses.

    `may_be_empty`: the step needs no primary losses, so they may be None.
    """
    refresher = step.refresher
    scalar = refresher.basis.needs != "jacobian"  # then only the mean of the losses is used
    if not callable(primary):
        losses: object = primary
        if primary is None:
            losses = _without_examples(step, needed=not may_be_empty)
        may_be_empty = may_be_empty or step.workers.size > 1
        yield as_losses(losses, "primary", may_be_empty=may_be_empty, may_be_scalar=scalar)
        return
    no_basis_yet = step.gradients.subspace is None
    builds_basis = no_basis_yet and basis_losses is None and step.basis_losses is None
    watching: AbstractContextManager[Any] = nullcontext()
    if builds_basis and refresher.basis.needs == "jacobian":
        watching = refresher.engine.watch(refresher.model)
    with watching:
        advice = (
            "return the losses of at least two examples, or put the BatchNorm layers into eval()"
        )
        yield losses_of(primary, "primary", advice, step.workers, may_be_scalar=scalar)


def _without_examples(step: Step, *, needed: bool) -> Tensor | None:
    """Return losses that stand in for None. Where primary losses are `needed`, other workers must
    have some; if there are no other workers, the result is None. Otherwise it is a vector of no
    losses.
    """
    if needed:
        return step.workers.stand_in("primary")
    # The product gives it a node, because a graph is recognised by the number of its node.
    return torch.zeros(0, device=step.shared.parameters[0].device, requires_grad=True) * 1


def _graphs(
    step: Step, losses: Mapping[str, Tensor], *, retain_graph: bool = False
) -> dict[str, KnownGraph]:
    """Describe the graphs of the losses, by name. Graphs are walked only in a refresh, where forward
    passes are CUDA graphs, or if they differ from all earlier ones. `retain_graph`: the user wants
    to keep all these graphs.
    """
    memory = step.parts.graphs
    graphs = None
    if not step.refreshing and not step.replayed:
        graphs = memory.recall(losses)
    if graphs is None:
        graphs = memory.learn(losses, _describe_graphs(step, losses))
    if retain_graph:
        return {name: replace(graph, retained=True) for name, graph in graphs.items()}
    return graphs


def _describe_graphs(step: Step, losses: Mapping[str, Tensor]) -> list[KnownGraph]:
    """Walk through the graphs of the losses and describe them, in their order. A graph is retained
    if a later loss shares a part of it.
    """
    walked = [walk(loss) for loss in losses.values()]
    named = step.shared.named
    graphs = []
    for at, graph in enumerate(walked):
        retained = any(not graph.nodes.isdisjoint(later.nodes) for later in walked[at + 1 :])
        graphs.append(
            KnownGraph(step.workers.names(graph.leaves, named), retained, converts(graph))
        )
    return graphs


@contextmanager
def _explain_freed_graph(
    step: Step, losses: Mapping[str, Tensor], graphs: Mapping[str, KnownGraph]
) -> Iterator[None]:
    """Raise a clear error if a pass in the block has failed because a graph was freed too early: it
    was mistaken for an earlier graph. All graphs are walked from then on.
    """
    try:
        yield
    except RuntimeError as error:
        now = _describe_graphs(step, losses)
        for name, graph in zip(losses, now, strict=True):
            if graph.retained and not graphs[name].retained:
                step.parts.graphs.distrust()
                raise RuntimeError(
                    "two losses of this step share a part of their graphs, which the guide did not notice, because in earlier "
                    "steps such losses shared nothing. From now on it looks at every graph: run the forward passes and this step "
                    "once more"
                ) from error
        raise


def _gradients(
    step: Step, losses: Tensor, share: Share, retain_graph: bool, *, into: Layout | None = None
) -> Sequence[Tensor | None]:
    """Return the gradient of the mean loss for each trainable parameter, None where it is not
    reached. `into`: as for `gradients_of`.
    """
    parameters = step.shared.parameters
    return step.workers.gradients(
        losses, share.weights(losses), parameters, retain_graph=retain_graph, into=into
    )


def _gradients_into(
    step: Step,
    loss: Tensor,
    share: Share,
    retain: bool,
    flat: Tensor | None,
    *,
    into: Layout | None = None,
) -> LossGradients:
    """Return the gradients of the mean loss for all trainable parameters. For the shared parameters
    they are written into `flat` (D) if it is given.

    `retain`: keep the graph. `into`: as for `_gradients`.
    """
    layout = step.gradients.layout
    if flat is None or layout is None:
        return LossGradients(_gradients(step, loss, share, retain, into=into))
    with written_into(layout, flat, returned=True) as writing:
        gradients = _gradients(step, loss, share, retain)
        writing.keep(step.shared.split(layout, gradients)[0])
    return LossGradients(gradients, flat)


def _gradients_ahead(
    step: Step,
    tasks: Mapping[str, TaskLoss],
    shares: Sequence[Share],
    graphs: Mapping[str, KnownGraph],
) -> dict[str, LossGradients]:
    """Compute the gradients of the tasks, by name, before a forward pass of the judges or of
    `basis_losses`. Returns {} if no such pass is to come in this step.

    If forward passes are CUDA graphs, such a pass may overwrite the tensors that the tasks' own
    passes saved. It may overwrite their gradients too, so these are copies.
    """
    judges_to_come = step.judge is not None and step.gradients.judges is None
    basis_to_come = step.basis_losses is not None and step.gradients.subspace is None
    if not judges_to_come and not basis_to_come:
        return {}
    early = {}
    for (name, task), share in zip(tasks.items(), shares, strict=True):
        copies = list(_gradients(step, task.loss, share, graphs[name].retained))
        for at, gradient in enumerate(copies):
            if gradient is not None:
                copies[at] = gradient.clone()
        early[name] = LossGradients(copies)
    return early


def _no_reach(what: str) -> ValueError:
    """Make the error for a loss of another model, or of frozen parameters only."""
    return ValueError(
        f"{what}: the loss reaches no trainable parameter of the model, so nothing can be learned from it; compute it "
        "from the model given to Guide, and check requires_grad"
    )


def _check_order(*, fixed: bool, basis_losses: Losses | None) -> None:
    """Refuse a later primary call of a step that could no longer contribute to the basis, or that
    would replace what has contributed. `fixed`: an auxiliary call has already fixed the basis.
    """
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
