"""The methods that are measured: every way to make one training step, with and without a refresh of
its basis.

All share a workload's model, data and optimizer. `step(refresh)` is a whole training step: forward
passes, backward passes, the update of the weights. What a refresh costs is the difference between
the two kinds of step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor

import attittud
from attittud import Eta
from attittud.basis.base import orthonormalise_
from attittud.engine.auto import Auto
from benchmarks.workloads import Workload

ETA = Eta(neutral=1, helpful=1, harmful=-1)


class Method(ABC):
    """A way to make a training step on a workload, with a basis of `k` directions."""

    name: str
    has_refresh = True
    in_graph = False
    """Whether its steps are also tried as CUDA graphs."""

    def __init__(self, work: Workload, k: int) -> None:
        self.work = work
        self.k = k

    @property
    def same_as(self) -> str | None:
        """The name of another method whose code this one runs after its first refresh. Then only
        the other is measured.
        """
        return None

    @property
    def kinds(self) -> tuple[bool, ...]:
        """The values of `refresh` that `step` takes."""
        if self.has_refresh:
            return (True, False)
        return (False,)

    @abstractmethod
    def backward(self, refresh: bool) -> None:
        """Fill `.grad`."""

    def step(self, refresh: bool) -> None:
        self.work.optimizer.zero_grad(set_to_none=True)
        self.backward(refresh)
        self.work.optimizer.step()


class Multitask(Method):
    """One backward pass of the sum of both losses: what all others are compared with."""

    name = "multitask"
    has_refresh = False
    in_graph = True

    def backward(self, refresh: bool) -> None:
        (self.work.losses("primary").mean() + self.work.losses("auxiliary").mean()).backward()


class TwoPasses(Method):
    """A backward pass for each task, without a guide: the least that a guided step can cost."""

    name = "two passes"
    has_refresh = False

    def backward(self, refresh: bool) -> None:
        primary = self.work.losses("primary").mean()
        auxiliary = self.work.losses("auxiliary").mean()
        primary.backward()
        auxiliary.backward()


class Guided(Method):
    """ATTITTUD with one engine; `library` may be another revision of the package."""

    in_graph = True

    def __init__(
        self,
        work: Workload,
        k: int,
        engine: str,
        *,
        frozen: bool = False,
        library: ModuleType = attittud,
    ) -> None:
        super().__init__(work, k)
        self.name = f"attittud {engine}"
        self.frozen = frozen
        batch_norm = "batch"
        if frozen:
            self.name += ", frozen BatchNorm"
            batch_norm = "frozen"
        self.guide = library.Guide(
            work.model,
            eta=library.Eta(neutral=ETA.neutral, helpful=ETA.helpful, harmful=ETA.harmful),
            rank=k,
            engine=engine,
            parameters=work.spec.parameters,
            batch_norm=batch_norm,
        )
        # `hooks` and `auto` see the forward pass; the others need only its graph.
        self.watches = engine in ("hooks", "auto") and not frozen

    @property
    def same_as(self) -> str | None:
        """The engine that `auto` has chosen."""
        engine = self.guide.engine
        if isinstance(engine, Auto) and engine.chosen is not None:
            return f"attittud {engine.chosen}"
        return None

    def backward(self, refresh: bool) -> None:
        def losses() -> Tensor:
            return self.work.losses("primary")

        primary = losses if self.watches else losses()
        options: dict[str, Any] = {"refresh": refresh}
        if self.frozen:
            options["basis_losses"] = losses
        self.guide.backward(primary, self.work.losses("auxiliary").mean(), **options)


class Plain(Method):
    """The decomposition in plain torch, as papers write it: J's span, then the three parts as
    vectors of length D.
    """

    def __init__(self, work: Workload, k: int) -> None:
        super().__init__(work, k)
        self.shared = list(work.shared().values())
        shared = set(map(id, self.shared))
        self.others = []
        for parameter in work.model.parameters():
            if parameter.requires_grad and id(parameter) not in shared:
                self.others.append(parameter)
        self.basis: Tensor | None = None

    @abstractmethod
    def build(self, losses: Tensor) -> Tensor:
        """An orthonormal basis (k x D) from the primary losses."""

    def gaussian(self, m: int) -> Tensor:
        """Π, k x m: its rows weight the m examples of a sketch ΠJ."""
        return torch.randn(self.k, m, device=self.work.device)

    def backward(self, refresh: bool) -> None:
        """With V the basis, a = V g_a and p = V g_p: the helpful part is Vᵀ of those a whose sign
        agrees with p, the harmful part Vᵀ of the others, the neutral part the rest of g_a.
        """
        losses = self.work.losses("primary")
        loss = self.work.losses("auxiliary").mean()
        if refresh:
            self.basis = None
            self.basis = self.build(losses)
        everything = self.shared + self.others
        of_primary = torch.autograd.grad(losses.mean(), everything, allow_unused=True)
        of_auxiliary = torch.autograd.grad(loss, everything, allow_unused=True)
        count = len(self.shared)
        g_p = flat(of_primary[:count])
        g_a = flat(of_auxiliary[:count])
        a = self.basis @ g_a
        p = self.basis @ g_p
        agree = a * p >= 0
        helpful = self.basis.T @ torch.where(agree, a, 0.0)
        harmful = self.basis.T @ torch.where(agree, 0.0, a)
        neutral = g_a - helpful - harmful
        update = ETA.neutral * neutral + ETA.helpful * helpful + ETA.harmful * harmful + g_p
        start = 0
        for parameter in self.shared:
            part = update[start : start + parameter.numel()]
            parameter.grad = torch.empty_like(parameter).copy_(part.view(parameter.shape))
            start += parameter.numel()
        for parameter, x, y in zip(
            self.others, of_primary[count:], of_auxiliary[count:], strict=True
        ):
            if x is None or y is None:  # a head belongs to one of the tasks
                parameter.grad = y if x is None else x
            else:
                parameter.grad = x + y


def flat(gradients: tuple[Tensor, ...]) -> Tensor:
    """One float32 vector of length D from the gradients of the shared parameters."""
    return torch.cat([gradient.reshape(-1).float() for gradient in gradients])


class Authors(Plain):
    """The released algorithm: for each row a forward pass, a weighted backward pass, one-pass
    Gram-Schmidt.
    """

    name = "authors' algorithm"
    in_graph = True

    def build(self, losses: Tensor) -> Tensor:
        rows: list[Tensor] = []
        for weights in self.gaussian(losses.shape[0]):
            again = self.work.losses("primary")
            row = flat(torch.autograd.grad((again * weights).sum(), self.shared))
            for earlier in rows:
                row = row - (row @ earlier) * earlier
            rows.append(row / (row.norm() + 1e-10))
        return torch.stack(rows)


class TorchJD(Plain):
    """TorchJD's `jac` with Π as `jac_outputs` on the graph of the primary losses, orthonormalised
    as ours is.
    """

    chunk: ClassVar[int | None] = None
    name = "TorchJD sketch, vmapped"

    def build(self, losses: Tensor) -> Tensor:
        from torchjd.autojac import jac

        weights = self.gaussian(losses.shape[0])
        blocks = jac(
            losses,
            self.shared,
            jac_outputs=weights,
            retain_graph=True,
            parallel_chunk_size=self.chunk,
        )
        rows = torch.cat([block.reshape(self.k, -1).float() for block in blocks], dim=1)
        del blocks
        orthonormalise_(rows)
        return rows


class TorchJDLoop(TorchJD):
    chunk = 1
    name = "TorchJD sketch, one by one"


ENGINES = ("loop", "hooks", "auto")


def methods_for(work: Workload, k: int) -> dict[str, Callable[[], Method]]:
    """Makers of all methods for a workload, by name; a maker raises where a method is not
    available.
    """
    makers: dict[str, Callable[[], Method]] = {
        "multitask": partial(Multitask, work, k),
        "two passes": partial(TwoPasses, work, k),
    }
    for engine in ENGINES:
        makers[f"attittud {engine}"] = partial(Guided, work, k, engine)
    if any(isinstance(module, torch.nn.BatchNorm2d) for module in work.model.modules()):
        makers["attittud hooks, frozen BatchNorm"] = partial(Guided, work, k, "hooks", frozen=True)
    for peer in (Authors, TorchJDLoop, TorchJD):
        makers[peer.name] = partial(peer, work, k)
    return makers
