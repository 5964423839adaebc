"""The first two stages of a step: the gradients of its losses, and the few numbers that describe
them.

`Gradients` collects gradients over the shared parameters; calls add up, as `Tensor.backward` does.
`Gradients.measure` reduces them to k-vectors and inner products (`Numbers`), from which
`decompose.combine` computes the update in numbers. `Gradients.lift_` turns these into the update, a
vector over the shared parameters, and overwrites the gradients with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attittud._checks import AnyEta
from attittud.autograd.layout import Layout, LossGraph, walk
from attittud.basis.captured import is_small
from attittud.basis.subspace import Subspace, TaskVector
from attittud.decompose import Combination, Judges, Numbers, TaskNumbers, Weights
from attittud.eta import Eta
from attittud.kernels import add_rows_, dot, lift_, products, project
from attittud.workers.one import Workers

Losses = Callable[[], Tensor]  # a function that computes losses when they are needed


@dataclass(frozen=True)
class TaskLoss:
    """An auxiliary loss with the settings of its task."""

    loss: Tensor
    eta: AnyEta
    weight: float


@dataclass(frozen=True)
class LossGradients:
    """The gradients of one loss for all trainable parameters, in their order; None for a parameter
    that the loss does not reach.
    """

    gradients: Sequence[Tensor | None]
    flat: Tensor | None = None
    """A vector (D) that holds the gradients of the shared parameters already; `gradients` then has
    zeros without memory for most of them.
    """


@dataclass
class TaskGradient:
    """The gradient of one auxiliary task. Only `Gradients` changes it."""

    eta: Eta | Weights
    weight: float
    """The weight of the task's loss (`auxiliary_weight` of the guide)."""
    whole: bool
    """Whether `flat` covers the examples of all workers."""
    flat: Tensor | None = None
    """The gradient over the shared parameters (D), until it is added to the common sum."""
    views: list[Tensor] | None = None
    """The parts of `flat`, one for each shared parameter, if making `flat` needed them. They are
    parts of the update too, if it is written into this memory.
    """
    waiting: dict[str, Tensor] | None = None
    """Its gradients by name of the parameter, while the shared parameters are still unknown."""
    numbers: TaskNumbers | None = None
    primary_calls: int = 0
    """How many primary calls there were when `numbers` was measured."""


class Gradients:
    """The gradients of the primary task, the auxiliary tasks and the judges over the shared
    parameters.

    All D-vectors of a step are here, and no other object changes them. With one task there are two,
    g_prim and g_aux. With several tasks, where `_folds` allows it, only the latest task has a
    vector of its own: the others are kept as k-vectors, and as one common sum of neutral * weight *
    g_aux. So memory does not grow with the number of tasks.
    """

    def __init__(self, workers: Workers, include_mean: bool, *, copied: bool) -> None:
        """`copied`: later passes of the step may overwrite the gradients that autograd returns, so
        the gradients that this object keeps are copies.
        """
        self.workers = workers
        self.include_mean = include_mean
        self.copied = copied
        self.layout: Layout | None = None
        """The shared parameters, as far as they are known."""
        self.subspace: Subspace | None = None
        """The basis to project onto; None until it is fixed."""
        self.primary: Tensor | None = None
        """The mean primary gradient over the shared parameters (D), the sum over all calls."""
        self.primary_calls = 0
        self.primary_complete = False
        """Whether no further primary call will come."""
        self.primary_whole = not workers.splits_examples
        """Whether `primary` covers the examples of all workers."""
        self.primary_rest: dict[str, Tensor] = {}
        """Primary gradients of parameters that are not decomposed, by name."""
        self.judges: Tensor | None = None
        """The judges' mean gradient (D), over the judges of all workers."""
        self.tasks: dict[str, TaskGradient] = {}
        self.total: Tensor | None = None
        """The common sum of neutral * weight * g_aux (D)."""
        self.auxiliary_rest: dict[str, Tensor] = {}
        """Auxiliary gradients of parameters that are not decomposed, by name: weighted, and summed
        over the tasks.
        """
        self._primary_numbers: tuple[int, Tensor, Tensor] | None = None
        """The number of primary calls so far, with V g_prim and ‖g_prim‖² after them."""
        self._unsummed: list[Tensor] = []
        """Other gradients, which join the next sum over the workers."""

    # ----------------------------------------------------------------------------------- collecting

    def begin(self, layout: Layout, subspace: Subspace | None = None) -> None:
        """Set the shared parameters, and the basis if it is not computed in this step."""
        self.layout = layout
        self.subspace = subspace

    def fix(self, subspace: Subspace) -> None:
        """Set the basis. Later gradients are projected onto it."""
        self.subspace = subspace

    def use_judges(self, gradient: Tensor) -> None:
        """Set the judges' gradient."""
        self.judges = gradient

    def complete_primary(self) -> None:
        """Note that no further primary call will come."""
        self.primary_complete = True

    def add_primary(self, inside: Sequence[Tensor | None], rest: Mapping[str, Tensor]) -> None:
        """Add a primary gradient: `inside` for the shared parameters in their order, and `rest` for
        others by name.
        """
        layout = self._layout
        _add_to(self.primary_rest, rest, 1.0, copied=self.copied)
        self.primary_calls += 1
        if self.primary is not None:
            layout.add_(self.primary, inside, fresh=False)
        else:
            self.primary, _ = layout.flatten_and_view(inside)

    def start_task(self, name: str, eta: Eta | Weights, weight: float) -> None:
        """Note an auxiliary task, before its first gradient is added."""
        self.tasks[name] = TaskGradient(eta, weight, whole=not self.workers.splits_examples)

    def add_auxiliary(
        self,
        name: str,
        inside: Sequence[Tensor | None],
        rest: Mapping[str, Tensor],
        flat: Tensor | None = None,
    ) -> None:
        """Add an auxiliary gradient of task `name`: `inside` for the shared parameters in their
        order, and `rest` for others by name.

        `flat`: a vector (D) that holds the gradient over the shared parameters already; `inside` is
        not used then. It comes from `room`, so it is the task's first gradient.

        With a second task, the vectors of all other tasks are first added to the common sum if
        `_folds` allows it.
        """
        layout = self._layout
        task = self.tasks[name]
        if len(self.tasks) > 1 and self._folds:
            self._fold_others(name)
        _add_to(self.auxiliary_rest, rest, task.weight, copied=self.copied)
        if flat is not None:
            task.flat = flat
        elif task.flat is None:
            task.flat, task.views = layout.flatten_and_view(inside)
        else:
            layout.add_(task.flat, inside, fresh=False)

    def wait(self, name: str, named: Mapping[str, Tensor]) -> None:
        """Keep an auxiliary gradient by the names of its parameters, and add it to earlier ones of
        the task: in a step with a refresh, auxiliary() came before primary().
        """
        task = self.tasks[name]
        if task.waiting is None:
            task.waiting = {}
        _add_to(task.waiting, named, 1.0, copied=self.copied)

    def take_waiting(self) -> dict[str, dict[str, Tensor]]:
        """Return the auxiliary gradients that wait, by task and parameter; from now on none
        waits.
        """
        waiting = {}
        for name, task in self.tasks.items():
            if task.waiting is not None:
                waiting[name] = task.waiting
                task.waiting = None
        return waiting

    def narrow(self, remaining: Layout) -> None:
        """Take `remaining` as the shared parameters. The primary gradient of the others, which
        turned out not to be shared, moves to `primary_rest`.
        """
        layout = self._layout
        if self.primary is not None:
            for name, view in zip(layout.names, layout.views(self.primary), strict=True):
                if name not in remaining.name_set:
                    self.primary_rest[name] = view.clone()
            self.primary = layout.narrow_(self.primary, remaining)
        self.layout = remaining

    @property
    def _layout(self) -> Layout:
        assert self.layout is not None, "the shared parameters are not known yet"
        return self.layout

    @property
    def _rows(self) -> Tensor:
        assert self.subspace is not None and self.subspace.rows is not None, (
            "the basis is not fixed yet"
        )
        return self.subspace.rows

    # -------------------------------------------------------------------------------- several tasks

    @property
    def _folds(self) -> bool:
        """Whether only one task's gradient is kept as a vector, and all others as k-vectors and a
        common sum.

        With `include_mean` or with judges this is possible only after the last primary call.
        """
        # A folded task keeps only numbers, and these two settings compare it with all of g_prim.
        needs_all_of_primary = self.include_mean or self.judges is not None
        stored = self.subspace is not None and self.subspace.rows is not None
        return stored and (self.primary_complete or not needs_all_of_primary)

    def room(self, name: str) -> Tensor | None:
        """Return memory (D) into which the backward pass writes the gradient of a second or later
        task, or of any task next to judges. Returns None in all other cases: the gradient is then
        copied from autograd's tensors.

        Without this memory the gradient would be there twice, as autograd's tensors and as one
        vector, next to the common sum or the judges' gradient. The vectors of other tasks are first
        added to the common sum, which frees their memory.
        """
        if self.layout is None or self.started(name) or not self._folds or self.workers.size > 1:
            return None
        is_second = bool(self.tasks.keys() - {name})
        # (Next to a small gradient of the judges, writing into one vector would be slower, and a
        # refresh needs more memory.)
        next_to_judges = self.judges is not None and not is_small(self.layout)
        if not is_second and not next_to_judges:
            return None
        self._fold_others(name)
        return self.layout.empty()

    def started(self, name: str) -> bool:
        """Whether an earlier call has left a vector, to which the gradient of this task is
        added.
        """
        return name in self.tasks and self.tasks[name].flat is not None

    def _fold_others(self, name: str) -> None:
        """Measure the gradients of all other tasks and add them to the common sum, so that only the
        vector of task `name` is kept.
        """
        for other, task in self.tasks.items():
            if other != name:
                self._measure(task)
                self._fold(task)

    def _fold(self, task: TaskGradient) -> None:
        """Add neutral * weight * g_aux to the common sum, if the task still has a vector, and drop
        the vector.
        """
        if task.flat is not None:
            scaled = task.flat.mul_(task.weight * task.eta.neutral)
            if self.total is None:
                self.total = scaled
            else:
                self.total.add_(scaled)
            task.flat = None
            task.views = None

    # -------------------------------------------------------------------------------------- workers

    def sum_later(self, vector: Tensor) -> None:
        """Let a vector of other gradients join the next sum over the workers."""
        self._unsummed.append(vector)

    def sum_primary(self) -> None:
        """Sum the primary gradient over the examples of all workers."""
        if not self.primary_whole and self.primary is not None:
            self.workers.sum_examples_(self.primary, "primary gradients")
            self.primary_whole = True

    def sum_tasks(self) -> None:
        """Sum the gradient of each task, which must still be a vector, over the examples of all
        workers.
        """
        for task in self.tasks.values():
            if not task.whole and task.flat is not None:
                self._sum_examples_(task.flat, "auxiliary gradients")
                task.whole = True

    def _sum_examples_(self, x: Tensor, what: str) -> None:
        """Sum a vector over the examples of all workers; the same exchange sums the gradients of
        `sum_later`.
        """
        self.workers.sum_examples_(x, what, *self._unsummed)
        self._unsummed = []

    # -------------------------------------------------------------------------------------- numbers

    def measure(self, *, norms: bool, skips: bool) -> Numbers:
        """Reduce all gradients to k-vectors and inner products, summed over the workers in one
        small exchange.

        `norms`: whether ‖g_prim‖², ‖g_aux‖² and ⟨g_prim, g_aux⟩ are needed. Several workers must
        sum D-vectors for them; where that is not done, these numbers are None. `skips`: the step
        has no primary losses, so nothing is known of g_prim.
        """
        workers = self.workers
        if norms or self.include_mean:
            self.sum_primary()
        if norms and len(self.tasks) == 1:
            self.sum_tasks()
        for task in self.tasks.values():
            self._measure(task)
        p, square = self._measure_primary()
        judges = None
        if self.judges is not None:
            judges = self._measure_judges()
        tasks = {}
        for name, task in self.tasks.items():
            numbers = task.numbers
            assert numbers is not None
            if task.primary_calls != self.primary_calls and numbers.inner is not None:
                # The primary gradient has changed since this task was measured.
                numbers = replace(numbers, inner=None)
            tasks[name] = numbers
        if workers.size > 1:
            self._exchange(p, square, judges)
        if skips:
            square = None
        return Numbers(p, square, tasks, judges)

    def _measure_primary(self) -> tuple[Tensor, Tensor | None]:
        """Return V g_prim (k) and ‖g_prim‖², which is None if each worker has only a part of the
        sum g_prim.
        """
        if self._primary_numbers is not None:
            calls, p, square = self._primary_numbers
            if calls == self.primary_calls:  # g_prim has not changed since
                return p, square
        assert self.primary is not None
        p = project(self._rows, self.primary)
        if not self.primary_whole:
            return p, None
        return p, dot(self.primary, self.primary)

    def _measure_judges(self) -> Judges:
        """Reduce the judges' gradient to V g_judge, ‖g_judge‖² and ⟨g_judge, g_prim⟩."""
        assert self.judges is not None and self.primary is not None and self.primary_whole
        if self.judges.is_cuda:
            # More numbers than are needed, but in a single kernel.
            numbers = products(self._rows, self.judges, self.primary)
            return Judges(numbers.rows_x, numbers.xx, numbers.xy)
        inner = dot(self.judges, self.primary)
        return Judges(project(self._rows, self.judges), dot(self.judges, self.judges), inner)

    def _measure(self, task: TaskGradient) -> None:
        """Reduce a task's gradient to its k-vector and inner products, in `task.numbers`.

        If earlier micro-batches of the task are already folded, their numbers are added. A pass
        over V that gives the numbers of g_prim too leaves them in `_primary_numbers`.
        """
        if task.flat is None:
            return
        if self.include_mean:
            self.sum_primary()
        rows = self._rows
        primary = self.primary
        square: Tensor | None = None
        inner: Tensor | None = None
        if primary is not None and self.primary_whole and task.whole:
            both = products(rows, task.flat, primary)
            a = both.rows_x
            square = both.xx
            inner = both.xy
            self._primary_numbers = (self.primary_calls, both.rows_y, both.yy)
        else:
            a = project(rows, task.flat)
            if task.whole:
                square = dot(task.flat, task.flat)
            if primary is not None and self.primary_whole:
                inner = dot(task.flat, primary)
        judged: Tensor | None = None
        if self.judges is not None:
            if square is None:
                # The squared norms of the workers' parts do not add up to ‖g_aux‖². So every worker
                # computes the whole, and divides it by the number of workers, over which the
                # exchange sums.
                whole = self.workers.sum_examples_(task.flat.clone(), "auxiliary gradients")
                square = dot(whole, whole) / self.workers.size
            judged = dot(task.flat, self.judges)
        numbers = TaskNumbers(task.eta, task.weight, a, square, inner, judged)
        if task.numbers is not None:
            same_primary = task.primary_calls == self.primary_calls
            numbers = _joined(task.numbers, numbers, same_primary=same_primary)
        task.numbers = numbers
        task.primary_calls = self.primary_calls

    def _exchange(self, p: Tensor, square: Tensor | None, judges: Judges | None) -> None:
        """Sum k-vectors and inner products over the workers in place, in one small exchange.

        They are sums over D. Workers with different columns have parts of every sum. Workers with
        different examples have parts of V g too, as long as g itself has not been summed.
        """
        columns = self.workers.splits_columns
        parts: list[Tensor | None] = []
        if columns or not self.primary_whole:
            parts += [p, square]
        if judges is not None and columns:
            parts += [judges.rows, judges.square, judges.primary]
        for task in self.tasks.values():
            numbers = task.numbers
            if numbers is not None and (columns or not task.whole):
                parts += [numbers.a, numbers.square, numbers.inner, numbers.judged]
        self.workers.sum_numbers_([part for part in parts if part is not None])

    # ----------------------------------------------------------------------------------- the update

    def lift_(self, combination: Combination) -> Tensor:
        """Return the update Σ_t weight_t neutral_t g_aux_t + Vᵀ `rows` + `primary` g_prim (D), summed
        over the workers; the gradients are overwritten.
        """
        total, factor = self._summed()
        rows = self._rows
        assert self.primary is not None
        whole = all(task.whole for task in self.tasks.values())
        if self.primary_whole and whole:
            return lift_(rows, combination.rows, total, self.primary, factor, combination.primary)
        # Some of the gradients are still parts, one on each worker. They are summed together, and
        # what is the same on all workers is added after that.
        total.mul_(factor)
        scaled = self.primary.mul_(combination.primary)
        if not self.primary_whole:
            total.add_(scaled)
        if not whole:
            self._sum_examples_(total, "gradients")
        add_rows_(total, rows, combination.rows)
        if self.primary_whole:
            total.add_(scaled)
        return total

    def _summed(self) -> tuple[Tensor, float | Tensor]:
        """Return the sum of neutral * weight * g_aux over all tasks, as a vector and a factor still
        to be applied.
        """
        if len(self.tasks) == 1 and self.total is None:
            # With a single task, its weight is applied in the same pass as the correction.
            (task,) = self.tasks.values()
            assert task.flat is not None
            return task.flat, task.weight * task.eta.neutral
        for task in self.tasks.values():
            self._fold(task)
        assert self.total is not None
        return self.total, 1.0

    def task_vectors(self) -> dict[str, TaskVector]:
        """Return the whole gradient of each task, for a basis that is not stored. First sums the
        gradients over the workers, the primary gradient too.
        """
        self.sum_primary()
        self.sum_tasks()
        vectors = {}
        for name, task in self.tasks.items():
            assert task.flat is not None
            vectors[name] = TaskVector(task.flat, task.eta, task.weight)
        return vectors

    def of_vectors(self, vectors: Sequence[Tensor], weights: Weights | None) -> Gradients:
        """Return a copy of this object, which has a single task, with its gradients in other memory.

        Args:
            vectors: the primary gradient, the task's gradient and, if there are judges, theirs (D
                each).
            weights: the weights of the task under eta="auto".
        """
        ((name, task),) = self.tasks.items()
        primary, flat, *others = vectors
        copy = Gradients(self.workers, self.include_mean, copied=self.copied)
        copy.layout = self.layout
        copy.subspace = self.subspace
        copy.primary = primary
        copy.primary_calls = self.primary_calls
        if others:
            (copy.judges,) = others
        copy.tasks[name] = TaskGradient(weights or task.eta, task.weight, task.whole, flat)
        return copy

    def views_of(self, update: Tensor) -> list[Tensor] | None:
        """Return the parts of the update, one for each shared parameter. None: they are not known,
        because the update is not in the memory of a task's gradient.
        """
        for task in self.tasks.values():
            if task.flat is update and task.views is not None:
                return task.views
        return None


def _joined(earlier: TaskNumbers, later: TaskNumbers, *, same_primary: bool) -> TaskNumbers:
    """Add the numbers of two parts of one task's gradient.

    ‖g_aux‖² needs the cross term with the earlier part, which is already in the common sum, so it
    is lost. So is ⟨g_prim, g_aux⟩ if the primary gradient has changed in between.
    """
    inner: Tensor | None = None
    if same_primary and earlier.inner is not None and later.inner is not None:
        inner = earlier.inner + later.inner
    judged = later.judged
    if judged is None:
        judged = earlier.judged
    elif earlier.judged is not None:
        judged = earlier.judged + judged
    return replace(later, a=earlier.a + later.a, square=None, inner=inner, judged=judged)


def _add_to(
    sums: dict[str, Tensor], gradients: Mapping[str, Tensor], weight: float, *, copied: bool
) -> None:
    """Add gradients times `weight` to `sums`, by name of the parameter. `copied`: copy a first
    gradient, because another pass of the step may overwrite it.
    """
    for name, gradient in gradients.items():
        if weight != 1.0:
            weighted = weight * gradient
        elif copied:
            weighted = gradient.clone()
        else:
            weighted = gradient
        if name in sums:
            weighted = sums[name] + weighted
        sums[name] = weighted


# ------------------------------------------------------------------------------------------- losses


def as_losses(losses: object, where: str, *, may_be_empty: bool, may_be_scalar: bool) -> Tensor:
    """Check that losses are a vector (m) with one entry for each example, and return them; the
    errors name the cure.

    Args:
        losses: what a user passed or returned.
        where: the name of the argument, for the errors.
        may_be_empty: whether m may be 0.
        may_be_scalar: whether a scalar is accepted too (returned with m = 1), because only the mean
            of the losses is used.
    """
    if losses is None:
        raise TypeError(
            f"{where}: got None. None is allowed on a worker without primary examples if there are other workers, and in "
            "steps in which guide.primary_due is False; otherwise pass a vector of losses"
        )
    if not isinstance(losses, Tensor):
        raise TypeError(
            f"{where}: expected a tensor of per-example losses, got {type(losses).__name__}"
        )
    if losses.ndim == 0 and may_be_scalar:
        losses = losses[None]
    if losses.ndim != 1:
        if losses.ndim == 0:
            got = "a scalar; compute the loss with reduction='none'"
        else:
            got = (
                f"shape {tuple(losses.shape)}; average over all dimensions but the first, for example "
                "losses.flatten(1).mean(1)"
            )
        raise ValueError(
            f"{where}: expected per-example primary losses (a vector, reduction='none'), got {got}"
        )
    if losses.shape[0] == 0 and not may_be_empty:
        raise ValueError(
            f"{where}: got an empty vector of losses; a step needs at least one primary example"
        )
    check_graph(losses, where)
    return losses


def losses_of(
    call: Losses,
    where: str,
    advice: str,
    workers: Workers,
    layout: Layout | None = None,
    *,
    may_be_scalar: bool = False,
) -> Tensor:
    """Call a function of the user for per-example losses, and check them (m).

    Where it returns None, the losses of a worker without examples stand in, if there are other
    workers.

    Args:
        call: the function.
        where: the name of the argument, for the errors.
        advice: added to the error for a single example under BatchNorm, because torch's message
            does not name the batch.
        workers: the workers that train the model.
        layout: the losses must reach a parameter of this layout. (This is not checked for a sharded
            model, whose graph ends in other tensors.)
        may_be_scalar: as in `as_losses`.
    """
    try:
        with torch.enable_grad():
            losses: object = call()
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ValueError(
            f"{where}: one example is too few for BatchNorm, which needs statistics of the batch; {advice}"
        ) from error
    if losses is None:
        losses = workers.stand_in(where)
    may_be_empty = workers.size > 1
    checked = as_losses(losses, where, may_be_empty=may_be_empty, may_be_scalar=may_be_scalar)
    if layout is not None and checked.numel() > 0 and not workers.splits_columns:
        check_reaches(checked, where, layout)
    return checked


def check_reaches(losses: Tensor, where: str, layout: Layout) -> LossGraph:
    """Refuse losses that reach no parameter of a layout, and return their graph.

    The caller leaves out sharded models, because their graphs end in other tensors than the
    parameters, and losses of no example, which reach nothing.
    """
    graph = walk(losses)
    if layout.parameters and graph.leaves.isdisjoint(map(id, layout.parameters)):
        raise ValueError(
            f"{where}: the losses reach none of the shared parameters; compute them from the model given to Guide"
        )
    return graph


def check_graph(loss: Tensor, where: str) -> None:
    """Refuse a loss that autograd cannot differentiate: without a graph, or not of real numbers."""
    if not loss.requires_grad:
        raise ValueError(
            f"{where}: the loss has no graph (requires_grad is False), so nothing can be learned from it; compute it from "
            "the model's output outside of torch.no_grad() and without detach() or item()"
        )
    if not loss.is_floating_point():
        raise TypeError(f"{where}: the loss must be a real floating-point tensor, got {loss.dtype}")


def check_auxiliary(tasks: Mapping[str, object], *, may_be_empty: bool) -> dict[str, Tensor]:
    """Check that auxiliary losses are scalars or vectors with a graph, and return them by name.

    `may_be_empty`: whether a vector may have no entry, as on a worker without examples.
    """
    if not tasks:
        raise ValueError("auxiliary: got an empty dict; pass at least one named loss")
    checked = {}
    for name, loss in tasks.items():
        where = f"auxiliary {name!r}"
        if not isinstance(loss, Tensor):
            raise TypeError(f"{where}: expected a loss tensor, got {type(loss).__name__}")
        if loss.ndim > 1 or (loss.numel() == 0 and not may_be_empty):
            raise ValueError(
                f"{where}: expected a scalar loss or a vector of per-example losses, got {tuple(loss.shape)}"
            )
        check_graph(loss, where)
        checked[name] = loss
    return checked
