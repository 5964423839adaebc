"""Training steps that run in one process on the joined batch, or on several workers."""

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from attittud import Eta, Guide, preset
from tests.helpers.zoo import problem

ETA = Eta(1, 0.5, -1)
M, N = 24, 24  # primary and auxiliary examples of all workers
SHARES = {
    1: (24,),
    2: (17, 7),
    4: (9, 0, 1, 14),
}  # primary examples of each worker: uneven, also none and one


def sharded(model: nn.Module, replicas: int = 1, **options: Any) -> nn.Module:
    """FSDP2 in two groups of parameters, the body and the rest; with replicas of shards: HSDP."""
    count = dist.get_world_size()
    shape = (count,) if replicas == 1 else (replicas, count // replicas)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    if hasattr(model, "body"):
        fully_shard(model.body, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


class Held(nn.Module):
    """A wrapper around the wrapper, as torch.compile makes one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inside = model

    def forward(self, *args: Any) -> Tensor:
        return self.inside(*args)


WRAP: dict[str, Callable[[nn.Module], nn.Module]] = {
    "one": lambda model: model,
    "group": lambda model: model,
    "ddp": DistributedDataParallel,
    "ddp static": lambda model: DistributedDataParallel(
        model, static_graph=True, gradient_as_bucket_view=True
    ),
    "ddp held": lambda model: Held(DistributedDataParallel(model)),
    "fsdp": sharded,
    "fsdp kept": lambda model: sharded(model, reshard_after_forward=False),
    "hsdp": lambda model: sharded(model, replicas=2),
}


@dataclass
class World:
    """One worker's view: its model and its part of the data."""

    kind: str
    dtype: torch.dtype = torch.float64
    model_name: str = "mlp"
    number: int = 0
    size: int = 1
    grads: list[dict[str, Tensor]] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.kind != "one":
            self.number, self.size = dist.get_rank(), dist.get_world_size()
        self.problem = problem(self.model_name, self.dtype, m=M, n=N)
        self.inner = self.problem.model
        self.model = self.problem.model = WRAP[self.kind](self.inner)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def guide(self, **options: Any) -> Guide:
        if self.kind == "group":
            options["process_group"] = dist.group.WORLD
        self.made = Guide(
            self.model,
            **{"eta": ETA, "primary_weight": 0.1, "rank": 3, "refresh_every": 2} | options,
        )
        return self.made

    def share(self, start: int, stop: int, shares: Sequence[int] | None = None) -> slice:
        """This worker's part of the examples from start to stop."""
        shares = shares or SHARES[self.size]
        length = stop - start
        bounds = [start + length * sum(shares[:i]) // sum(shares) for i in range(len(shares) + 1)]
        return slice(bounds[self.number], bounds[self.number + 1])

    def even(self, start: int, stop: int) -> slice:
        return self.share(start, stop, [1] * self.size)

    def losses(self, at: slice | None = None) -> Tensor | None:
        """Per-example primary losses, by default of all its examples; a worker without examples
        says so.
        """
        at = at or self.share(0, M)
        if at.start < at.stop:
            return self.problem.losses(at)
        # Sharded workers must take part in every collective: they run a batch and weight it with
        # nothing.
        return self.problem.losses(slice(0, 2))[:0] if "sdp" in self.kind else None

    def auxiliary(self, at: slice | None = None) -> Tensor | None:
        """Per-example auxiliary losses, by default of all its examples."""
        p = self.problem
        at = at or self.share(0, N)
        if at.start == at.stop:
            return self.auxiliary(slice(0, 2))[:0] if "sdp" in self.kind else None
        return F.cross_entropy(p.model(p.xa[at], "auxiliary"), p.ya[at], reduction="none")

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        return self.model.no_sync() if self.kind == "ddp" else contextlib.nullcontext()

    def take(self, report: Any) -> None:
        """Keep the gradients of a step, and make it."""
        self.grads.append(
            {name: whole(p.grad) for name, p in self.inner.named_parameters() if p.grad is not None}
        )
        self.reports.append(report.to_dict())
        self.optimizer.step()
        self.optimizer.zero_grad()


def whole(x: Tensor) -> Tensor:
    x = x.full_tensor() if hasattr(x, "full_tensor") else x
    return x.detach().clone()


def plain(w: World, m: int = M, **options: Any) -> None:
    guide = w.guide(**options)
    for i in range(3):
        at = w.share(4 * i % 12, m - 4 * i % 8)
        w.take(guide.backward(primary=w.losses(at), auxiliary=w.auxiliary(w.share(0, N - 3 * i))))


def scalar(w: World) -> None:
    """Averaged over workers with equal parts, scalar losses are the mean of the joined batch."""
    guide = w.guide()
    for i in range(3):
        loss = w.problem.loss(w.even(4 * i, N))
        w.take(guide.backward(primary=w.losses(w.share(i, M)), auxiliary=loss))


def accumulation(w: World, interleaved: bool = False, **options: Any) -> None:
    guide = w.guide(**options)
    for _ in range(3):
        with w.no_sync():
            # The first step has a refresh: its basis needs all primary examples before the first
            # auxiliary one.
            late = not interleaved or not guide.shared_parameters
            for start in (0, 12):
                guide.primary(half(w.losses(w.share(start, start + 12))))
                if not late:
                    guide.auxiliary(half(w.auxiliary(w.share(start, start + 12))))
            for start in (0, 12) if late else ():
                guide.auxiliary(half(w.auxiliary(w.share(start, start + 12))))
        w.take(guide.combine())


def half(losses: Tensor | None) -> Tensor | None:
    return None if losses is None else losses / 2


def named(w: World, **options: Any) -> None:
    """Two tasks; under a replicated model a worker may miss one of them."""
    eta = {"a": Eta(1, 0, -1), "b": Eta(0.5, 1, 1)}
    guide = w.guide(eta=eta, auxiliary_weight={"a": 1.0, "b": 0.3}, **options)
    for i in range(3):
        shares = [0, *[1] * (w.size - 1)] if w.size > 1 else [1]
        second = w.share(0, N - i, shares)
        b = w.auxiliary(second)
        tasks = {"b": None if b is None else b.square(), "a": w.auxiliary(w.share(0, N - i))}
        if w.number % 2:  # the order in a dict does not matter
            tasks = dict(reversed(tasks.items()))
        w.take(guide.backward(primary=w.losses(), auxiliary=tasks))


def basis_losses(w: World, **options: Any) -> None:
    guide = w.guide(**options)
    for i in range(3):
        losses = {
            "primary": w.losses(w.share(0, 12)),
            "auxiliary": w.auxiliary(w.even(0, N - 4 * i)),
        }
        w.take(guide.backward(**losses, basis_losses=lambda: w.losses(w.share(2, M))))


def seen(w: World, **options: Any) -> None:
    """Losses given as a callable, so that the engine `hooks` sees the forward pass."""
    guide = w.guide(basis="exact", **options)
    for i in range(3):
        at = w.share(i, M)
        w.take(guide.backward(primary=lambda at=at: w.losses(at), auxiliary=w.auxiliary()))


def three_verbs_first_refresh(w: World) -> None:
    """Which parameters the auxiliary loss reaches is only known after the primary call."""
    guide = w.guide(refresh_every=1)
    for _ in range(2):
        guide.primary(w.losses())
        guide.auxiliary(w.auxiliary())
        w.take(guide.combine())


def auxiliary_first(w: World) -> None:
    guide = w.guide(refresh_every=1)
    for _ in range(2):
        guide.auxiliary(w.auxiliary())
        guide.primary(w.losses())
        w.take(guide.combine())


def frozen(w: World, steps: range) -> None:
    """A layer is frozen in some of six steps."""
    guide = w.guide(refresh_every=4)
    for i in range(6):
        w.inner.body[0].requires_grad_(i not in steps)
        w.take(guide.backward(primary=w.losses(), auxiliary=w.auxiliary()))


def one_forward(w: World) -> None:
    """Both losses from one forward pass."""
    guide = w.guide()
    p = w.problem
    for _ in range(3):
        at = w.share(0, M)
        empty = at.start == at.stop
        if empty and "sdp" not in w.kind:
            w.take(guide.backward(primary=None, auxiliary=None))
            continue
        rows = slice(0, 2) if empty else at
        logits = p.model(p.xp[rows], "primary")
        losses = F.cross_entropy(logits, p.yp[rows], reduction="none")
        others = logits.square().mean(1)
        w.take(
            guide.backward(
                primary=losses[:0] if empty else losses, auxiliary=others[:0] if empty else others
            )
        )


def other_heads(w: World) -> None:
    """From the 17th on, examples go through another head, so workers differ in what they reach."""
    guide = w.guide()
    p = w.problem
    for _ in range(3):
        at, parts = w.share(0, N), []
        for head, rows in (("auxiliary", range(17)), ("primary", range(17, N))):
            mine = [i for i in rows if at.start <= i < at.stop]
            if mine:
                parts.append(p.model(p.xa[mine], head).square().mean(1))
        joined = torch.cat(parts) if parts else None
        w.take(guide.backward(primary=w.losses(), auxiliary=joined))


def late_task(w: World) -> None:
    """A second task comes in later and reaches the primary task's own head."""
    guide = w.guide(eta={"a": ETA, "b": Eta(0.5, 1, 1)}, auxiliary_weight={"a": 1.0, "b": 0.3})
    p = w.problem
    for i in range(6):
        at = w.share(0, N)
        tasks = {"a": w.auxiliary(at)}
        if i >= 4:
            empty = at.start == at.stop
            some = p.model(p.xa[slice(0, 2) if empty else at], "primary").square().mean(1)
            tasks["b"] = some if not empty else some[:0] if "sdp" in w.kind else None
        w.take(guide.backward(primary=w.losses(), auxiliary=tasks))


def interleaved_with_basis_losses(w: World) -> None:
    """A primary call after an auxiliary one, in a window with a refresh."""
    guide = w.guide()
    for _ in range(3):
        for start in (0, 12):
            basis = None if start else lambda: w.losses(w.share(2, M))
            guide.primary(half(w.losses(w.share(start, start + 12))), basis_losses=basis)
            guide.auxiliary(half(w.auxiliary(w.share(start, start + 12))))
        w.take(guide.combine())


def not_finite(w: World, **options: Any) -> None:
    """One example of one worker is NaN in a refresh: all of them keep the old basis."""
    guide = w.guide(refresh_every=1, **options)
    for i in range(3):
        at = w.share(0, M)
        losses = w.losses(at)
        if i == 1 and w.number == 0:
            losses = losses * torch.tensor(
                [torch.nan] + [1.0] * (len(losses) - 1), dtype=losses.dtype
            )
        report = guide.backward(primary=losses, auxiliary=w.auxiliary())
        if i == 1:
            w.optimizer.zero_grad()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the warning comes when the report is read
                assert report.to_dict()["skipped_refreshes"] == 1
        else:
            w.take(report)


def narrowed(w: World) -> None:
    """Parameters outside of the decomposition that both losses reach."""
    plain(w, parameters=lambda name, _: name.startswith("body.0"))


def twenty_steps(w: World, **options: Any) -> dict[str, Tensor]:
    """Train with Adam on batches that differ by worker and step; the parameters at the end."""
    guide = w.guide(refresh_every=5, **options)
    optimizer = torch.optim.Adam(w.model.parameters(), lr=0.01)
    for i in range(20):
        some = i % 6, i % 6 + 18
        guide.backward(primary=w.losses(w.share(*some)), auxiliary=w.auxiliary(w.even(*some)))
        optimizer.step()
        optimizer.zero_grad()
    return {name: whole(p) for name, p in w.inner.named_parameters()}


def message_of(call: Callable[[], Any]) -> str:
    """The message of a step that fails, as it should."""
    try:
        call()
    except (TypeError, ValueError, RuntimeError) as error:
        return str(error)
    return "no error"


def auto(w: World, tasks: int = 1, verbs: bool = False, **options: Any) -> None:
    """Judges on all workers, or on some; each part's weight is the same on all.

    They judge by the auxiliary loss of some examples, so that something is earned within a few
    scores.
    """
    eta = "auto" if tasks == 1 else {"a": "auto", "b": ETA, "c": "auto"}
    guide = w.guide(eta=eta, judge_every=2, **options)
    for i in range(5):
        own = w.auxiliary(w.share(0, N - 3 * i))
        at = w.share(i, 18)
        given = (
            own
            if tasks == 1
            else {"a": own, "b": half(own), "c": None if own is None else own.square()}
        )
        judge_share = w.share(0, 9, [*[0] * (w.size - 1), 1] if "sdp" not in w.kind else None)
        judge = partial(w.auxiliary, judge_share)
        if not verbs:
            w.take(guide.backward(primary=w.losses(at), auxiliary=given, judge=judge))
            continue
        with w.no_sync():
            guide.primary(w.losses(at))
            guide.judge(judge)
            guide.auxiliary(given)
        w.take(guide.combine())


def a_gem(w: World) -> None:
    """A-GEM takes the mean of the protected losses, a scalar."""
    guide = w.guide(**preset("pcgrad") | {"primary_weight": 0.0})
    for i in range(4):
        losses = w.problem.losses(w.even(0, M)).mean()
        w.take(guide.backward(primary=losses, auxiliary=w.auxiliary(w.share(0, N - 3 * i))))


def left_out(w: World) -> None:
    """Between refreshes no worker passes primary losses, because no sign matters."""
    guide = w.guide(eta=(1, 0, 0), primary_weight=0.0, refresh_every=2)
    for i in range(4):
        losses = w.losses(w.share(4 * i % 12, M)) if guide.primary_due else None
        w.take(guide.backward(primary=losses, auxiliary=w.auxiliary(w.share(0, N - 3 * i))))


SCENARIOS: dict[str, Callable[[World], None]] = {
    "sketch": plain,
    # Its first refresh has just more examples than the sketch has rows, the second one has fewer.
    "svd": lambda w: plain(w, basis="svd", m=12),
    "exact": lambda w: plain(w, basis="exact"),
    "mean": lambda w: plain(w, basis="mean"),
    "random": lambda w: plain(w, basis="random"),
    "canonical": lambda w: plain(w, basis="canonical"),
    "sketch include_mean": lambda w: plain(w, include_mean=True),
    "A-GEM": a_gem,
    "primary losses left out": left_out,
    "stored in bf16": lambda w: plain(w, basis_dtype=torch.bfloat16),
    "norms in every step": lambda w: plain(w, report_norms="always"),
    "scalar auxiliary": scalar,
    "accumulation": accumulation,
    "accumulation, interleaved": lambda w: accumulation(w, interleaved=True, refresh_every=5),
    "named": named,
    "named, include_mean": lambda w: named(w, include_mean=True),
    "basis_losses": basis_losses,
    "basis_losses, mean": lambda w: basis_losses(w, basis="mean"),
    "engine hooks": lambda w: seen(w, engine="hooks"),
    "three verbs": three_verbs_first_refresh,
    "auxiliary first": auxiliary_first,
    "narrowed": narrowed,
    "auto, sketch": auto,
    "auto, canonical": lambda w: auto(w, basis="canonical"),
    "auto, named, three verbs": lambda w: auto(w, tasks=3, verbs=True),
    "frozen for a while": lambda w: frozen(w, range(1, 3)),
    "one forward": one_forward,
    "other heads": other_heads,
    "late task": late_task,
    "interleaved with basis_losses": interleaved_with_basis_losses,
    "not finite": not_finite,
}
# Other architectures than "mlp". The table of "transformer" has more rows on one shard than on
# another.
MODELS = {"transformer": "transformer", "unused": "unused", "random": "transformer"}


def play(
    kind: str, scenario: str, dtype: torch.dtype
) -> tuple[list[dict[str, Tensor]], list[dict[str, Any]]]:
    """The gradients and reports of every step of a scenario."""
    world = World(kind, dtype, MODELS.get(scenario, "mlp"))
    SCENARIOS.get(scenario, plain)(world)
    return world.grads, world.reports


def play_all(cases: Sequence[tuple[str, str, torch.dtype]]) -> dict[Any, Any]:
    """All of them in one worker process."""
    return {case: play(*case) for case in cases}
