"""`Guide`: the object that a training loop uses.

A guide checks arguments, decides whether a step has a refresh, and keeps from step to step what
`GuideParts` lists. Every step is a `Step` of its own, made by `backward` or by the first of the
three verbs `primary`, `auxiliary` and `combine`. A step that fails is discarded, and the guide is
then as if it had never begun.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attittud._checks import (
    VERSION,
    check_callable,
    check_choice,
    check_count,
    check_eta,
    check_seed,
    check_state,
    check_weights,
    of_each,
)
from attittud._torch import THREAD_SETTINGS, keep_saved_tensors, restore_thread
from attittud.autograd.forward import BatchNormMode
from attittud.autograd.layout import remove_hooks
from attittud.basis import Basis, make_basis
from attittud.basis.captured import CapturedUpdate
from attittud.basis.subspace import Subspace
from attittud.engine import find_engine, make_engine
from attittud.engine.base import logger
from attittud.eta import Eta, check_weight
from attittud.report import Report, SkipWarning
from attittud.step.auto import AutoWeights
from attittud.step.gradients import Losses, TaskLoss, check_auxiliary
from attittud.step.refresh import Refresher
from attittud.step.shared import GraphMemory, Predicate, Schedule, Shared
from attittud.step.step import GuideParts, Step
from attittud.workers import connect

DEFAULT_RANK = 10
EtaLike = Eta | str | tuple[float, float, float]
DTYPES = (None, torch.bfloat16, torch.float16, torch.float32, torch.float64)
SINGLE = "auxiliary"  # the name of an auxiliary loss that was passed without a name
SETTINGS = (
    "eta",
    "primary_weight",
    "auxiliary_weight",
    "rank",
    "refresh_every",
    "include_mean",
    "batch_norm",
    "basis_dtype",
    "seed",
    "judge_every",
    "report_norms",
)
"""Attributes of a guide, besides its basis and its engine, that results depend on."""


class AccumulationWarning(UserWarning):
    """`Guide.backward` seems to have been called once for every micro-batch."""


ACCUMULATED = (
    "backward() was called again although nothing has changed .grad since the previous call, so the two updates add up. If you "
    "forgot zero_grad(), call it. If you accumulate over micro-batches: backward() compares signs within each micro-batch, so "
    "the calls do not add up to the update of the whole batch. Call primary(losses / n) and auxiliary(loss / n) for each "
    "micro-batch, then combine() once"
)


class Guide:
    """Fills `.grad` from a primary and an auxiliary loss. It splits the auxiliary gradient and
    re-weights the parts.

    >>> model = nn.Linear(4, 3)
    >>> guide = Guide(model, eta=Eta(neutral=1, helpful=1, harmful=0), rank=2)
    >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
    >>> losses = nn.functional.cross_entropy(model(x), y, reduction="none")
    >>> report = guide.backward(primary=losses, auxiliary=model(x).square().mean())
    >>> model.weight.grad.shape
    torch.Size([3, 4])

    Args:
        model: the module whose parameters are trained. It is not wrapped. A
            `DistributedDataParallel` model provides its process group, and a model under
            `fully_shard` (FSDP2) its mesh.
        eta: weights of the neutral, helpful and harmful part, as an `Eta`, as three numbers, or by
            the name of a preset such as "flip"; for named auxiliary losses also a dict of these.
            "auto" sets every weight, between 0 and 1, from held-out primary examples (`judge=` of
            `backward`).
        primary_weight: weight of the mean primary gradient in the update of shared parameters. The
            primary task's own parameters (its head) always receive its gradient with weight 1.
        basis: the subspace in which gradients are compared: "sketch", "svd", "exact", "mean",
            "random" or "canonical".
        rank: the dimension k of the basis (ignored by "mean" and "canonical").
        refresh_every: recompute the basis in every n-th step.
        include_mean: append the current mean primary gradient as the last direction, so that the
            neutral part is orthogonal to it.
        engine: how products with the per-example Jacobian are computed: "auto", "loop" or
            "hooks".
        parameters: the parameters that may be decomposed (an iterable, or a predicate of name and
            parameter). All other parameters that both losses reach receive auxiliary_weight * g_aux
            + primary_weight * g_prim.
        batch_norm: what BatchNorm uses in the forward passes of `basis_losses` and `judge`:
            statistics of the "batch", or "frozen" ones.
        basis_dtype: storage type of the basis, for example torch.bfloat16. The basis is computed in
            float32 or float64.
        auxiliary_weight: weight of the auxiliary loss, or a dict of weights for named losses.
        process_group: the workers that train replicas of the model together. The update equals the
            update of one process that has the examples of all workers; the guide does all
            reductions itself.
        seed: seed of the bases' random numbers; the global random state is never touched.
        judge_every: with eta="auto", use the judges in every n-th step.
        report_norms: on several replicas, `neutral`, `captured_auxiliary`, `captured_primary` and
            `cosine` of a report cost a second all-reduce of the size of the model. "refresh"
            computes them only in steps with a refresh or with judges, "always" in every step; in
            other steps they are NaN.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        eta: EtaLike | Mapping[str, EtaLike],
        primary_weight: float = 1.0,
        basis: str = "sketch",
        rank: int = DEFAULT_RANK,
        refresh_every: int = 10,
        include_mean: bool = False,
        engine: str = "auto",
        parameters: Iterable[nn.Parameter] | Predicate | None = None,
        batch_norm: BatchNormMode = "batch",
        basis_dtype: torch.dtype | None = None,
        auxiliary_weight: float | Mapping[str, float] = 1.0,
        process_group: torch.distributed.ProcessGroup | None = None,
        seed: int = 0,
        judge_every: int = 4,
        report_norms: Literal["refresh", "always"] = "refresh",
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
        self.seed = check_seed(seed)
        check_choice("batch_norm", batch_norm, ("batch", "frozen"))
        check_choice("basis_dtype", basis_dtype, DTYPES)
        check_choice("report_norms", report_norms, ("refresh", "always"))
        self.model, self._workers = connect(model, process_group, self._describe)
        self.report_norms = report_norms
        self.judge_every = check_count("judge_every", judge_every)
        self.eta = check_eta(eta)
        self.primary_weight = check_weight("primary_weight", primary_weight)
        self.auxiliary_weight = check_weights("auxiliary_weight", auxiliary_weight)
        self.basis = make_basis(basis)
        self.engine = make_engine(self._workers.engine(find_engine(engine)))
        self.rank = _check_rank(check_count("rank", rank), self.basis, self.model)
        self.refresh_every = check_count("refresh_every", refresh_every)
        self.include_mean = bool(include_mean)
        self.batch_norm: BatchNormMode = batch_norm
        self.basis_dtype = basis_dtype
        keep_saved_tensors(model)
        self._shared = Shared(self.model, self._workers, parameters)
        self._refresher = Refresher(
            self._shared, self.basis, self.engine, self.rank, seed, basis_dtype, batch_norm
        )
        is_auto = self.eta == "auto"
        if isinstance(self.eta, dict):
            is_auto = "auto" in self.eta.values()
        self._auto = AutoWeights(self._shared, is_auto, self.judge_every, seed, batch_norm)
        self._schedule = Schedule()
        self._parts = GuideParts(
            self._shared,
            self._schedule,
            self._refresher,
            self._auto,
            SkipWarning(),
            graphs=GraphMemory(),
            captured=CapturedUpdate(),
        )
        self._step: Step | None = None
        self._told = False  # whether the warning about accumulation has been given

    def __repr__(self) -> str:
        """Return the settings that results depend on, for logs. `_describe` begins with it, so the
        workers compare all of these settings.
        """
        settings = [f"basis={self.basis.name!r}", f"engine={self.engine.name!r}"]
        for name in SETTINGS:
            settings.append(f"{name}={getattr(self, name)!r}")
        return f"{type(self).__name__}({', '.join(settings)})"

    def _describe(self) -> str:
        """Return everything that must be the same on all workers: the settings, and the names of
        the parameters that `parameters=` includes. The workers compare it in refreshes.
        """
        return f"{self!r} {sorted(self._shared.allowed or ())}"

    # ---------------------------------------------------------------------------------------- verbs

    def backward(
        self,
        primary: Tensor | Losses | None,
        auxiliary: Tensor | Mapping[str, Tensor | None] | None,
        *,
        basis_losses: Losses | None = None,
        judge: Losses | None = None,
        refresh: bool | None = None,
    ) -> Report:
        """Add the update to `.grad`, as `Tensor.backward` adds a gradient.

        Args:
            primary: per-example losses of the primary task (a vector); their mean is the objective.
                The basis "mean" also accepts the mean itself, a scalar. A callable that computes
                and returns the losses lets the engine `hooks` see the forward pass. Pass None on a
                worker that has no primary examples in this step while others have some, and on
                every worker in a step for which `primary_due` is False.
            auxiliary: the auxiliary loss (a scalar, or a vector whose mean is taken), or a dict of
                named losses. Vectors are averaged over the examples of all workers, scalars over
                the workers.
            basis_losses: a callable that returns per-example losses of other primary examples, from
                which the basis is then built. It is called only when a refresh is due. These losses
                need no loss scale.
            judge: with eta="auto", a callable that returns the losses (a vector) of the judges:
                primary examples that neither train the model nor build its basis. It is called
                every `judge_every` steps. Without it the weights stay as they are, so the judges
                may join the training set later.
            refresh: True or False overrides the schedule.

        Returns:
            What happened in this step; its values wait for the device only when they are read.
        """
        if self._step is not None:
            self._give_up(self._step)
            raise RuntimeError(
                "backward() was called between primary()/auxiliary() and combine(); use one form or the other. The "
                "unfinished step is discarded."
            )
        if basis_losses is not None:
            check_callable("basis_losses", basis_losses)
        step = None
        settings = [read() for read in THREAD_SETTINGS]
        try:
            tasks = self._task_losses(auxiliary)
            step = self._begin(refresh)
            if self._shared.untouched and not self._told:
                # Nothing has changed `.grad` since the last update, so the two would add up.
                self._told = True
                warnings.warn(ACCUMULATED, AccumulationWarning, stacklevel=2)
            if judge is not None or self._auto.is_auto:
                step.ask(judge)
                self._check_judged(step, tasks)
            self._check_call("backward", step, tasks, basis_losses)
            skips = self._skips(step, primary)
            step.run(primary, tasks, basis_losses, skips=skips)
            report = step.finish(self.primary_weight)
        except BaseException as error:
            restore_thread(settings)
            self._give_up(step)
            _check_donated(error)
            raise
        self._parts.graphs.begin()
        return report

    def primary(
        self,
        losses: Tensor | Losses | None,
        *,
        basis_losses: Losses | None = None,
        refresh: bool | None = None,
        retain_graph: bool = False,
    ) -> None:
        """Add per-example primary losses, or a callable that returns them, to this step. Their
        graph is freed.

        Calls add up until `combine`. For N micro-batches divide the losses by N, as in plain
        PyTorch. In a step with a refresh all `primary` calls contribute to the basis, which the
        first `auxiliary` call after them fixes.
        """
        check_callable("basis_losses", basis_losses)
        if self._step is not None and refresh is not None and refresh != self._step.refreshing:
            begun = "without" if refresh else "with"
            raise RuntimeError(
                f"refresh={refresh} came too late: this step has begun {begun} a refresh; pass refresh= at the first call of "
                "the step"
            )
        with self._discard_on_error():
            step = self._current_step(refresh)
            self._shared.update()
            self._check_call("primary", step, (), basis_losses)
            skips = self._skips(step, losses)
            step.primary(losses, basis_losses, retain_graph=retain_graph, skips=skips)

    def judge(self, judge: Losses) -> None:
        """With eta="auto": set the callable that returns the judges' losses. It is called only in
        steps that use the judges.

        Call this once in a step, before the first `auxiliary` call.
        """
        with self._discard_on_error():
            step = self._current_step(None)
            if step.gradients.tasks or step.judge is not None:
                raise RuntimeError(
                    "judge() was called twice, or after auxiliary(), in this step: auxiliary gradients are compared with the "
                    "judges' gradient. Call judge() once, before the first auxiliary(). The unfinished step is discarded."
                )
            step.ask(judge)

    def auxiliary(
        self, loss: Tensor | Mapping[str, Tensor | None] | None, *, retain_graph: bool = False
    ) -> None:
        """Add an auxiliary loss, or a dict of named losses, to this step. Calls add up until
        `combine`; graphs are freed.
        """
        with self._discard_on_error():
            tasks = self._task_losses(loss)
            step = self._current_step(None)
            self._check_judged(step, tasks)
            self._shared.update()
            self._check_call("auxiliary", step, tasks)
            step.auxiliary(tasks, retain_graph=retain_graph)

    def combine(self) -> Report:
        """Compare the signs, form the update and add it to `.grad`."""
        step = self._step
        if step is None or step.gradients.primary_calls == 0:
            raise RuntimeError(
                "combine() before primary(): call primary(losses), then auxiliary(loss), then combine()"
            )
        if not step.gradients.tasks:
            raise RuntimeError(
                "combine() before auxiliary(): call auxiliary(loss) first (a step without auxiliary data needs no Guide); "
                "the primary losses of this step are kept"
            )
        with self._discard_on_error():
            self._check_call("combine", step, ())
            report = step.finish(self.primary_weight)
            self._step = None
        return report

    # ------------------------------------------------------------------------------------- schedule

    @property
    def refresh_due(self) -> bool:
        """Whether the next step recomputes the basis, unless `refresh=` says otherwise."""
        return self._schedule.due(self.refresh_every)

    @property
    def primary_due(self) -> bool:
        """Whether the next step needs primary losses. If not, leave out their forward pass and pass
        None.

        A step between refreshes needs none if primary_weight is 0, include_mean is False, no eta is
        "auto", and helpful and harmful have the same weight, so that no sign matters.
        """
        return self.refresh_due or self._needs_primary()

    @property
    def judge_due(self) -> bool:
        """Whether the next step uses the judges, if it gets any."""
        return self._auto.due

    def replayed(self, *, refresh: bool, judge: bool = False) -> None:
        """Count a step that a CUDA graph of the user has replayed, so that the schedule and
        `state_dict` stay correct. `refresh` and `judge`: whether the captured step had a refresh
        and used the judges.
        """
        self._schedule.count_replay(refresh=refresh)
        self._auto.count_replay(judge=judge)

    @property
    def shared_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that are decomposed, in the order of V's columns; empty before the first
        refresh.
        """
        if self.subspace is None:
            return {}
        return dict(self.subspace.layout.named)

    @property
    def sharded(self) -> bool:
        """Whether each worker holds only a shard of the model and of the basis (FSDP2)."""
        return self._workers.splits_columns

    @property
    def subspace(self) -> Subspace | None:
        """The basis in use; None before the first refresh. It is not a copy, so a refresh
        overwrites it.
        """
        return self._schedule.subspace

    # --------------------------------------------------------------------------------------- a step

    def _current_step(self, refresh: bool | None) -> Step:
        """Return the step to which the three verbs add; the first of them begins it. `refresh`: as
        in `primary`.
        """
        if self._step is None:
            self._step = self._begin(refresh)
        return self._step

    def _begin(self, refresh: bool | None) -> Step:
        """Begin a step: notice changes of the model, and decide whether the basis is recomputed.

        A basis over parameters that the model no longer has is dropped, so the step refreshes.
        `refresh`: True or False overrides the schedule.
        """
        self._shared.update()
        if not self._shared.parameters:
            raise ValueError(
                "no parameter of the model requires a gradient; unfreeze some (requires_grad_(True))"
            )
        schedule = self._schedule
        if schedule.subspace is not None and not self._shared.holds(schedule.subspace.layout):
            # Parameters were replaced (load_state_dict(assign=True), a conversion): the basis
            # belongs to the old parameters.
            schedule.forget()
            self._parts.captured.forget()
        if refresh is False and schedule.age is None:
            raise ValueError(
                "refresh=False before the first refresh, or after a step with a refresh that failed: there is no basis to "
                "use; leave refresh=None in this step"
            )
        refreshing = refresh
        if refreshing is None:
            refreshing = schedule.due(self.refresh_every)
        return Step(
            self._parts,
            refreshing=refreshing,
            may_wait=refresh is None,
            include_mean=self.include_mean,
            norms=refreshing or self.report_norms == "always",
            needs_primary=refreshing or self._needs_primary(),
        )

    def _check_call(
        self, verb: str, step: Step, tasks: Collection[str], basis_losses: Losses | None = None
    ) -> None:
        """Refuse a call that differs from the calls of the other workers, before they exchange
        anything else. `tasks`: the names of the auxiliary losses of this call.
        """
        if self._workers.size > 1:
            settings = {
                "auxiliary losses": sorted(tasks),
                "refresh": step.refreshing,
                "basis_losses": step.refreshing and basis_losses is not None,
                "judge": step.judge is not None,
                "trainable parameters": [name for name, _ in self._shared.trainable],
            }
            self._workers.check_call(f"{verb}() with {settings}")

    def _needs_primary(self) -> bool:
        """Whether the update between two refreshes depends on the primary losses at all: through
        their gradient, or through signs that decide between different weights. `primary_due` tells
        users.
        """
        if isinstance(self.eta, dict):
            etas = list(self.eta.values())
        else:
            etas = [self.eta]
        signs_matter = any(eta == "auto" or eta.helpful != eta.harmful for eta in etas)
        return signs_matter or self.primary_weight != 0 or self.include_mean or self._auto.is_auto

    def _skips(self, step: Step, primary: Tensor | Losses | None) -> bool:
        """Whether a step leaves out the primary losses: it needs none, and no worker has any."""
        if step.refreshing or self._needs_primary():
            return False
        skips = primary is None
        if self._workers.size > 1:
            skips = self._workers.all_skip(skips)
        return skips

    def _check_judged(self, step: Step, tasks: Mapping[str, TaskLoss]) -> None:
        """Refuse tasks with eta="auto" if the judges have never been used, and are not used in this
        step either.
        """
        self._auto.check(
            [name for name, task in tasks.items() if task.eta == "auto"],
            asked=step.judge is not None,
        )

    @contextmanager
    def _discard_on_error(self) -> Iterator[None]:
        """Discard the step of the three verbs if the block fails, and restore torch's settings of
        this thread. Unless it fails after the update was written, `.grad` has not been changed.
        """
        settings = [read() for read in THREAD_SETTINGS]
        try:
            yield
        except BaseException as error:
            restore_thread(settings)
            self._give_up(self._step)
            _check_donated(error)
            raise
        else:
            self._parts.graphs.begin()

    def _give_up(self, step: Step | None) -> None:
        """Discard a step: restore the guide's parts, and remove the step's hooks from parameters."""
        self._step = None
        remove_hooks(self._shared.parameters)
        if step is not None:
            step.give_up()

    def _task_losses(
        self, auxiliary: Tensor | Mapping[str, Tensor | None] | None
    ) -> dict[str, TaskLoss]:
        """Check the auxiliary losses and return them by name, with the settings of their tasks.

        A loss without a name gets the name `SINGLE`. With several workers, losses that stand in
        replace None, and the tasks are in the order in which workers exchange them.
        """
        if isinstance(auxiliary, Mapping):
            named = auxiliary
        else:
            named = {SINGLE: auxiliary}
        workers = self._workers
        filled = {}
        for name, loss in named.items():
            filled[str(name)] = loss
            if loss is None:
                filled[str(name)] = workers.stand_in(f"auxiliary {name!r}")
        if len(filled) < len(named):
            raise ValueError(
                f"two auxiliary losses have the same name once str() is applied: {list(named)}; rename one"
            )
        losses = check_auxiliary(filled, may_be_empty=workers.size > 1)
        if workers.size > 1:
            losses = workers.in_order(losses)
        if isinstance(self.eta, dict):
            etas = of_each("eta", self.eta, losses)
        else:
            etas = dict.fromkeys(losses, self.eta)
        if isinstance(self.auxiliary_weight, dict):
            weights = of_each("auxiliary_weight", self.auxiliary_weight, losses)
        else:
            weights = dict.fromkeys(losses, self.auxiliary_weight)
        return {name: TaskLoss(loss, etas[name], weights[name]) for name, loss in losses.items()}

    # ---------------------------------------------------------------------------------------- state

    def state_dict(self, include_basis: bool = True) -> dict[str, Any]:
        """Return everything that a resumed run needs; with the basis, it continues bit for bit like
        a run that never stopped.

        The basis is copied, because a refresh overwrites the basis in use. Without a basis the
        first step refreshes.
        """
        if self._step is not None:
            raise RuntimeError(
                "state_dict() between primary()/auxiliary() and combine(): finish the step first"
            )
        self._shared.update()
        state = {"version": VERSION, **self._refresher.state(self._schedule, include_basis)}
        if self._auto.is_auto:
            state["judges"] = self._auto.state()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of a guide with the same model and settings. An unfinished
        step is discarded.
        """
        self._shared.update()
        # A state that does not fit is refused before anything changes.
        check_state(state, self._refresher.settings, dict(self._shared.named))
        judges = self._auto.read(state.get("judges"))
        self._give_up(self._step)
        self._refresher.load(state, self._schedule)
        self._auto.load(*judges)
        self._parts.warn.restore(state["skipped_refreshes"])


def _check_donated(error: BaseException) -> None:
    """Raise a clear error if a step has failed because a compiled backward pass overwrote tensors
    that a refresh needs again; switch this off for later passes. Other errors are left to the
    caller.
    """
    if not isinstance(error, RuntimeError) or "donated" not in str(error):
        return
    # The guide did not see that this code is compiled, because it is a function or a wrapper around
    # the model.
    keep_saved_tensors()
    raise RuntimeError(
        "a compiled backward pass overwrites what a refresh needs again (torch's donated buffers). Donated buffers "
        "are switched off now: run the forward pass and this step once more. If you pass the compiled model to "
        "Guide, they are off from the start"
    ) from error


def _check_rank(asked: int, basis: Basis, model: nn.Module) -> int:
    """Return the rank that the basis really has, which may be fixed ("mean": 1). Then a rank that a
    user asked for is not used, and the log says so.

    A rank above 10,000 and above the number of parameters is refused: no basis has so many
    directions.
    """
    rank = basis.rank(asked)
    size = sum(parameter.numel() for parameter in model.parameters())
    if rank > max(size, 10_000):
        raise ValueError(
            f"rank={rank} asks for more directions than the model has parameters ({size:,}). Choose about as many as a refresh "
            "has primary examples: a basis that is built from examples never has more directions than that"
        )
    if rank != asked and asked != DEFAULT_RANK:  # (the default need not be a user's choice)
        logger.warning("basis=%r has rank %d; rank=%d is not used", basis.name, rank, asked)
    return rank
