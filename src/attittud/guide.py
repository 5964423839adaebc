"""`Guide`: the object that a training loop uses."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attittud._checks import (
    AnyEta,
    check_auxiliary,
    check_callable,
    check_choice,
    check_count,
    check_eta,
    check_seed,
    check_state,
    check_weight,
    check_weights,
    of_each,
)
from attittud._torch import keep_saved_tensors
from attittud.autograd.forward import BatchNormMode
from attittud.basis import Basis, make_basis, respelled
from attittud.basis.captured import CapturedUpdate
from attittud.basis.subspace import Directions, Subspace
from attittud.engine import find_engine, make_engine
from attittud.engine.base import logger
from attittud.eta import Eta
from attittud.report import Report, SkipWarning
from attittud.step.auto import AutoWeights
from attittud.step.refresh import Losses, Refresher
from attittud.step.shared import GraphMemory, Predicate, Shared
from attittud.step.step import Given, GuideParts, Step
from attittud.workers import Workers, connect

DEFAULT_RANK = 10
EtaLike = Eta | str | tuple[float, float, float]
DTYPES = (None, torch.bfloat16, torch.float16, torch.float32, torch.float64)
SINGLE = "auxiliary"  # the name of an auxiliary loss that was given without one


class AccumulationWarning(UserWarning):
    """`Guide.backward` seems to have been called once for every micro-batch."""


ACCUMULATED = (
    "backward() adds to a .grad that nothing has touched since its last call. If you forgot zero_grad(), call it. If you "
    "accumulate: every call of backward() takes the signs of its own micro-batch, which is not the update of the whole batch; "
    "call primary(losses / n) and auxiliary(loss / n) for each micro-batch, then combine() once"
)


class Guide:
    """Fills `.grad` from a primary and an auxiliary loss; the auxiliary gradient is split and re-weighted.

    >>> model = nn.Linear(4, 3)
    >>> guide = Guide(model, eta=Eta(neutral=1, helpful=1, harmful=0), rank=2)
    >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
    >>> losses = nn.functional.cross_entropy(model(x), y, reduction="none")
    >>> report = guide.backward(primary=losses, auxiliary=model(x).square().mean())
    >>> model.weight.grad.shape
    torch.Size([3, 4])

    Args:
        model: the module whose parameters are trained. It is not wrapped. A `DistributedDataParallel` model brings its
            process group along, one under `fully_shard` (FSDP2) its mesh.
        eta: weights of the neutral, helpful and harmful part, as an `Eta`, as three numbers, or by the name of a preset such
            as "flip"; for named auxiliary losses also a dict of them. "auto" lets every part earn its weight, between 0 and
            1, from held-out primary examples (`judge=` of `backward`).
        primary_weight: weight of the mean primary gradient in the update of shared parameters. The primary task's own
            parameters (its head) always receive its gradient with weight 1.
        basis: the subspace of comparison: "sketch", "svd", "exact", "mean", "random", "canonical" or "implicit" ("exact", fresh
            in every step and never stored). "running_mean" is a running mean of the mean primary gradients; "sets" takes one
            row for each entry of the primary losses, which then are the mean losses of several sets.
        rank: its dimension k (ignored by "mean", "running_mean" and "canonical").
        refresh_every: the basis is recomputed in every n-th step.
        include_mean: append the current mean primary gradient as last direction, so that the neutral part is
            orthogonal to it.
        engine: how products with the per-example Jacobian are computed: "auto", "loop", "batched" or "hooks".
        parameters: the parameters that may be decomposed (an iterable, or a predicate of name and parameter); what is
            left out receives g_aux + primary_weight * g_prim.
        batch_norm: BatchNorm in the forward pass of `basis_losses`: on "batch" statistics, or "frozen".
        basis_dtype: storage type of the basis, for example torch.bfloat16. It is never computed in that type.
        auxiliary_weight: weight of the auxiliary loss, or a dict of them.
        process_group: the workers that train replicas of the model together. The update equals the update of one process
            that has the examples of all workers; the guide does all reductions itself.
        seed: for the random numbers of the bases; the global random state is never touched.
        basis_options: keyword arguments of the basis: `rate` and `start` ("zero" or "first") of "running_mean".
        scope: compare gradients over the whole "model", or "tensor" by tensor, each with its own signs.
        metric: inner products of gradients: "euclidean", or "adam", ⟨x, y / (sqrt(v) + eps)⟩ with the bias-corrected second
            moments v of the optimizer at the last refresh. Parameters that Adam has not updated yet have weight 1.
        optimizer: with metric="adam", the Adam or AdamW that trains the model.
        judge_every: with eta="auto" the judges are asked in every n-th step.
        report_norms: on several replicas the norms of a report cost a second all-reduce of the size of the model. Make it
            in steps with a "refresh", or "always"; in steps without it the norms are NaN.
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
        basis_options: Mapping[str, Any] | None = None,
        scope: Literal["model", "tensor"] = "model",
        metric: Literal["euclidean", "adam"] = "euclidean",
        optimizer: torch.optim.Optimizer | None = None,
        judge_every: int = 4,
        report_norms: Literal["refresh", "always"] = "refresh",
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
        self.seed = check_seed(seed)
        check_choice("batch_norm", batch_norm, ("batch", "frozen"))
        check_choice("basis_dtype", basis_dtype, DTYPES)
        check_choice("report_norms", report_norms, ("refresh", "always"))
        self.model, self._workers = connect(model, process_group, self.__repr__)
        self.report_norms = report_norms
        self.judge_every = check_count("judge_every", judge_every)
        self.eta = check_eta(eta)
        self.primary_weight = check_weight("primary_weight", primary_weight)
        self.auxiliary_weight = check_weights("auxiliary_weight", auxiliary_weight)
        check_choice("scope", scope, ("model", "tensor"))
        check_choice("metric", metric, ("euclidean", "adam"))
        if scope == "tensor" and basis_dtype is not None:
            raise ValueError("scope='tensor' stores its basis in the type of the parameters; leave basis_dtype out")
        self.scope, self.metric = scope, metric
        options = {"options": basis_options, "scope": scope, "metric": metric, "optimizer": optimizer}
        self.basis, chosen = _chosen(basis, engine, self._workers, **options)
        self.engine = make_engine(chosen, keeps_graph=self.basis.keeps_graph)
        self.rank = _check_rank(check_count("rank", rank), self.basis, self.model)
        self.refresh_every = 1 if self.basis.keeps_graph else check_count("refresh_every", refresh_every)
        self.include_mean = bool(include_mean)
        self.batch_norm: BatchNormMode = batch_norm
        self.basis_dtype = basis_dtype
        keep_saved_tensors(model)
        self._shared = Shared(self.model, self._workers, parameters)
        self._refresher = Refresher(self._shared, self.basis, self.engine, self.rank, seed, basis_dtype, batch_norm)
        wanted = "auto" in (self.eta.values() if isinstance(self.eta, dict) else [self.eta])
        self._auto = AutoWeights(self._shared, wanted, self.judge_every, seed, batch_norm)
        self._warn = SkipWarning()
        self._parts = GuideParts(self._shared, self._refresher, self._auto, GraphMemory(), CapturedUpdate(), self._warn)
        self._step: Step | None = None
        self._told = False  # a warning about accumulation has been given

    def __repr__(self) -> str:
        """The settings that results depend on, for logs. They must be the same on all workers."""
        of_basis = ("rank", "refresh_every", "include_mean", "batch_norm", "basis_dtype", "seed")
        plain = (
            "eta",
            "primary_weight",
            "auxiliary_weight",
            *of_basis,
            "scope",
            "metric",
            "judge_every",
            "report_norms",
        )
        named = {"basis": self.basis.label or self.basis.name, "engine": self.engine.name} | {
            name: getattr(self, name) for name in plain
        }
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in named.items())})"

    # ------------------------------------------------------------------------------------------------ verbs

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
            primary: per-example losses of the primary task (a vector); their mean is the objective. The bases "mean" and
                "running_mean" also take this mean itself, a scalar. Or a callable that computes and returns them, which
                shows its forward pass to the engine `hooks`. A worker of several that has no primary examples in this step
                passes None, and so does every worker in a step for which `primary_due` is False.
            auxiliary: the auxiliary loss (a scalar, or a vector whose mean is taken), or a dict of named ones. Vectors
                are averaged over the examples of all workers, scalars over the workers.
            basis_losses: returns per-example primary losses of other examples, from which the basis is then built;
                called only when a refresh is due. They need no loss scale.
            judge: with eta="auto", returns the judges' losses (a vector): primary examples that neither train the model nor
                build its basis. Called every `judge_every` steps; without it the weights stay as they are, so that the judges
                may join the training set later.
            refresh: True or False overrides the schedule.
        """
        if self._step is not None:
            self._give_up()
            raise RuntimeError(
                "backward() was called between primary()/auxiliary() and combine(); use one form or the other. The "
                "unfinished step is discarded."
            )
        if basis_losses is not None:
            check_callable("basis_losses", basis_losses)
        with self._discard_on_error():
            tasks = self._given(auxiliary)
            step = self._begin(refresh)
            if self._shared.untouched and not self._told:
                self._told = True
                warnings.warn(ACCUMULATED, AccumulationWarning, stacklevel=2)
            if judge is not None or self._auto.wanted:
                step.ask(judge)
                self._check_judged(step, tasks)
            skips = primary is None and not (step.refreshing or self._needs_primary())
            step.run(primary, tasks, basis_losses, primary_weight=self.primary_weight, skips=skips)
            report = step.finish(self.primary_weight)
        self._step = None
        return report

    def primary(
        self,
        losses: Tensor | Losses | None,
        *,
        basis_losses: Losses | None = None,
        refresh: bool | None = None,
        retain_graph: bool = False,
    ) -> None:
        """Take in per-example primary losses, or a callable that returns them; calls add up until `combine`.

        Frees their graph.

        For N micro-batches divide the losses by N, as in plain PyTorch. In a step with a refresh all `primary` calls
        contribute to the basis, which is fixed at the first `auxiliary` call after them.
        """
        check_callable("basis_losses", basis_losses)
        if self._step is not None and refresh is not None and refresh != self._step.refreshing:
            raise RuntimeError(
                f"refresh={refresh} came too late: this step has begun {'with' if self._step.refreshing else 'without'} a "
                "refresh; pass it at the first call of the step"
            )
        step = self._step or self._begin(refresh)
        with self._discard_on_error():
            self._shared.update()
            skips = losses is None and not (step.refreshing or self._needs_primary())
            step.primary(losses, basis_losses, retain_graph=retain_graph, skips=skips)

    def judge(self, judge: Losses) -> None:
        """With eta="auto": take in a callable that returns the judges' losses; it is called in steps that ask the judges.

        Call this once in a step, before its first `auxiliary` call.
        """
        with self._discard_on_error():
            step = self._step or self._begin(None)
            if step.tasks or step.judge is not None:
                raise RuntimeError(
                    "judge() came twice or after auxiliary() in this step, whose gradients are compared with the judges'; "
                    "call it once, before the first auxiliary(). The unfinished step is discarded."
                )
            step.ask(judge)

    def auxiliary(self, loss: Tensor | Mapping[str, Tensor | None] | None, *, retain_graph: bool = False) -> None:
        """Take in an auxiliary loss or a dict of named ones; calls add up until `combine`. Frees its graph."""
        with self._discard_on_error():
            tasks = self._given(loss)
            step = self._step or self._begin(None)
            self._check_judged(step, tasks)
            self._shared.update()
            step.auxiliary(tasks, retain_graph=retain_graph)

    def combine(self) -> Report:
        """Take signs, form the update, add it to `.grad`."""
        step = self._step
        if step is None or step.primary_calls == 0:
            raise RuntimeError("combine() before primary(): call primary(losses), then auxiliary(loss), then combine()")
        if not step.tasks:
            raise RuntimeError(
                "combine() before auxiliary(): call auxiliary(loss) first (a step without auxiliary data needs no Guide); "
                "the primary losses taken in so far are kept"
            )
        with self._discard_on_error():
            report = step.finish(self.primary_weight)
        self._step = None
        return report

    # ------------------------------------------------------------------------------------------------ schedule

    @property
    def refresh_due(self) -> bool:
        """Whether the next step recomputes the basis, unless `refresh=` says otherwise."""
        return self._refresher.due(self.refresh_every)

    @property
    def primary_due(self) -> bool:
        """Whether the next step needs primary losses. Where it does not, their pass can be left out: pass None.

        So it is between refreshes if primary_weight is 0 and no sign depends on the current primary gradient: helpful and
        harmful have the same weight, or the basis is a running mean.
        """
        return self.refresh_due or self._needs_primary()

    @property
    def judge_due(self) -> bool:
        """Whether the next step asks the judges, if it is given any."""
        return self._auto.due

    def replayed(self, *, refresh: bool, judge: bool = False) -> None:
        """Count a step that a CUDA graph repeated on the device, so that the schedule and `state_dict` stay right."""
        self._refresher.count_replay(refresh=refresh)
        self._auto.count_replay(judge=judge)

    @property
    def shared_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that are decomposed, in the order of V's columns; empty before the first refresh."""
        return {} if self.subspace is None else dict(self.subspace.layout.named)

    @property
    def sharded(self) -> bool:
        """Whether each worker holds only a shard of the model and of the basis (FSDP2)."""
        return self._workers.splits_columns

    @property
    def subspace(self) -> Subspace | None:
        """The basis in use, not a copy: a refresh overwrites it. None before the first refresh."""
        return self._refresher.subspace

    # ------------------------------------------------------------------------------------------------ a step

    def _begin(self, refresh: bool | None) -> Step:
        self._shared.update()
        if not self._shared.listing.parameters:
            raise ValueError("no parameter of the model wants a gradient; unfreeze some (requires_grad_(True))")
        space = self._refresher.subspace
        held = space is None or self._shared.holds(space.layout)
        refreshing = self._refresher.decide(refresh, self.refresh_every, held=held)
        may_wait, norms = refresh is None and not self.basis.keeps_graph, refreshing or self.report_norms == "always"
        self._step = step = Step(self._parts, refreshing, may_wait, self.include_mean, norms)
        return step

    def _needs_primary(self) -> bool:
        etas = self.eta.values() if isinstance(self.eta, dict) else [self.eta]
        oriented = issubclass(self.basis.subspace, Directions) and self.basis.subspace.oriented
        signs = not oriented and any(eta == "auto" or eta.helpful != eta.harmful for eta in etas)
        return signs or self.primary_weight != 0 or self.include_mean or self._auto.wanted

    def _check_judged(self, step: Step, tasks: Mapping[str, Given]) -> None:
        self._auto.check([name for name, task in tasks.items() if task.eta == "auto"], asked=step.judge is not None)

    @contextmanager
    def _discard_on_error(self) -> Iterator[None]:
        """Forget a step that fails half-way; `.grad` has not been touched yet."""
        try:
            yield
        except BaseException as error:
            self._give_up()
            if isinstance(error, RuntimeError) and "donated" in str(error):
                # The guide could not see this code being compiled: it is a function, or a wrapper around the model.
                keep_saved_tensors()
                raise RuntimeError(
                    "a compiled backward pass overwrites what a refresh needs again (torch's donated buffers). That is "
                    "switched off now: run the forward pass and this step once more. To have it off from the start, give "
                    "Guide the compiled model"
                ) from error
            raise

    def _give_up(self) -> None:
        if self._step is not None:
            self._step.give_up()
            self._step = None

    def _given(self, auxiliary: Tensor | Mapping[str, Tensor | None] | None) -> dict[str, Given]:
        given = auxiliary if isinstance(auxiliary, Mapping) else {SINGLE: auxiliary}
        workers = self._workers
        filled = {
            str(name): workers.losses(None, f"auxiliary {name!r}") if loss is None else loss
            for name, loss in given.items()
        }
        if len(filled) < len(given):
            raise ValueError(f"two auxiliary losses have the same name, as text: {list(given)}; rename one")
        losses = check_auxiliary(filled, may_be_empty=workers.size > 1)
        losses = workers.in_order(losses) if workers.size > 1 else losses
        etas: dict[str, AnyEta] = of_each("eta", self.eta, losses)
        weights = of_each("auxiliary_weight", self.auxiliary_weight, losses)
        return {name: Given(loss, etas[name], weights[name]) for name, loss in losses.items()}

    # ------------------------------------------------------------------------------------------------ state

    def state_dict(self, include_basis: bool = True) -> dict[str, Any]:
        """All that a resumed run needs. With the basis it gives bitwise the same results as a run that never stopped.

        The basis is a copy, since a refresh overwrites the basis in use. Without a basis the next step refreshes.
        """
        if self._step is not None:
            raise RuntimeError("state_dict() between primary()/auxiliary() and combine(): finish the step first")
        judges = {"judges": self._auto.state()} if self._auto.wanted else {}
        return {"version": 1, **self._refresher.state(include_basis), **judges}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of a guide with the same model and settings."""
        self._shared.update()
        check_state(state, self._refresher.settings, dict(self._shared.listing.named))
        self._give_up()
        self._refresher.load(state)
        self._auto.load(state.get("judges"))
        self._warn.restore(state["skipped_refreshes"])


def _check_rank(asked: int, basis: Basis, model: nn.Module) -> int:
    rank, size = basis.rank(asked), sum(parameter.numel() for parameter in model.parameters())
    if rank > max(size, 10_000):
        raise ValueError(
            f"rank={rank} asks for more directions than the model has parameters, {size:,}; give at most as many, better "
            "about as many as a refresh has primary examples: a basis never has more directions than these"
        )
    if rank != asked and asked != DEFAULT_RANK:
        logger.warning("basis=%r has rank %d; rank=%d is not used", basis.name, rank, asked)
    return rank


def _chosen(basis_name: str, engine: str, workers: Workers, **options: Any) -> tuple[Basis, str]:
    """The basis that a user asks for, with the options of `make_basis`, and the engine that serves it on these workers."""
    basis_name, engine = respelled(basis_name, engine)
    basis, kind = make_basis(basis_name, **options), find_engine(engine)
    if basis.keeps_graph:
        if kind.with_graph is None:
            raise ValueError(
                f"basis={basis.name!r} asks for J again in every step, which engine={engine!r} cannot do; use engine='hooks', "
                f"or basis={basis.same_as!r}, which is stored"
            )
        if workers.size > 1:
            raise ValueError(
                f"basis={basis.name!r} needs all primary examples on one worker; use basis={basis.same_as!r} with "
                "engine='hooks' on several"
            )
        kind = find_engine(kind.with_graph)
    return basis, workers.engine(kind)
