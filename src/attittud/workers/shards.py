"""Workers that each hold a shard of every parameter: FSDP2 (`torch.distributed.fsdp.fully_shard`).

V is sharded like the parameters, so only k x k matrices and k-vectors are summed over the workers;
FSDP2 itself reduces and scatters the gradients. `torch.autograd.grad` returns None for its shards,
so every product with J is a backward pass whose result is taken from `.grad`.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from attittud._torch import fsdp_groups, undoing, unsharded
from attittud.autograd.layout import Layout, Named, Share, local, walk
from attittud.engine.base import Engine, Jacobian, logger
from attittud.kernels import project
from attittud.workers.replicas import Group


class Shards(Group):
    """Workers of one FSDP2 model. The first dimension of a two-dimensional mesh holds replicas
    (HSDP).
    """

    splits_columns = True
    named: Named

    def __init__(self, model: nn.Module, describe: Callable[[], str]) -> None:
        """Find this worker's place in the mesh; refuses shards that are placed in other ways.

        The sharded modules of the model show their shards afterwards.
        """
        self.modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
        for module in self.modules:
            # Between a forward and a backward pass the model may show its unsharded parameters.
            module.reshard()
        self.named = list(model.named_parameters())
        first = next(parameter for _, parameter in self.named if isinstance(parameter, DTensor))
        for name, parameter in self.named:
            _check_placement(name, parameter, first)
        self.mesh = mesh = first.device_mesh
        _check_not_offloaded(first.device.type, mesh.device_type)
        coordinate = mesh.get_coordinate()
        assert coordinate is not None
        number = 0  # of this worker, counted row by row through the mesh
        for length, position in zip(mesh.shape, coordinate, strict=True):
            number = number * length + position
        self.shard = coordinate[-1]
        self.shards = mesh.shape[-1]
        # First the workers of one copy of the model, then the workers that hold the same shard of
        # other copies.
        groups = [mesh.get_group(mesh.ndim - 1), *map(mesh.get_group, range(mesh.ndim - 1))]
        super().__init__(groups, first.device, number, mesh.size(), describe)
        if self.size > 1:
            self.state_owner = f"{number} of {self.size}"
        self._walked: tuple[weakref.ref[Tensor], list[Tensor]] | None = None

    def engine(self, asked: type[Engine]) -> str:
        """Only engines that work through FSDP2's own backward passes can be used."""
        if asked.on_shards is None:
            raise ValueError(
                f"engine={asked.name!r} needs whole parameters, but this model is sharded (FSDP2); "
                "use engine='loop' or 'auto'"
            )
        logger.info("engine: %r, because the parameters are sharded", asked.on_shards)
        return asked.on_shards

    def check_whole(self, model: nn.Module) -> None:
        """Nothing to refuse: these workers have shards."""

    def stand_in(self, where: str) -> Tensor | None:
        raise ValueError(
            f"{where}: got None, but the collectives of a sharded model (FSDP2) need every worker; "
            "run any batch on this worker and pass an empty part of its losses, losses[:0]"
        )

    def shares(self, losses: Sequence[Tensor]) -> list[Share]:
        # FSDP2 averages over the workers, but we need the sum.
        return [Share(share.first, share.total, self.size) for share in super().shares(losses)]

    def sum_columns(self, x: Tensor) -> Tensor:
        return self.all_reduce_(x, "k-vectors", groups=self.groups[:1])

    def columns(self, layout: Layout) -> Iterator[tuple[slice, int]]:
        """Yield this worker's columns of each parameter, with the number of the first one in V.

        FSDP2 gives each worker consecutive rows of a parameter, ⌈rows / shards⌉ of them as long as
        there are any.
        """
        at = 0  # this worker's columns of earlier parameters
        before = 0  # all workers' columns of earlier parameters
        for name, parameter in layout.named:
            assert isinstance(parameter, DTensor)
            dimension = _shard_dimension(parameter)
            if dimension != 0 and self.shards > 1:
                raise ValueError(
                    f"basis='random' needs shards that are contiguous columns of V, but {name!r} "
                    f"is sharded along dimension {dimension}; shard it along dimension 0"
                )
            length = local(parameter).numel()
            rows = 1
            if parameter.ndim:
                rows = parameter.shape[0]
            # The rows of this parameter that workers with lower numbers hold.
            skipped = min(rows, self.shard * math.ceil(rows / self.shards))
            columns_per_row = parameter.numel() // max(rows, 1)
            yield slice(at, at + length), before + skipped * columns_per_row
            at += length
            before += parameter.numel()

    def gradients(
        self,
        losses: Tensor,
        weights: Tensor,
        parameters: Sequence[Tensor],
        *,
        retain_graph: bool,
        into: Layout | None = None,
    ) -> Sequence[Tensor | None]:
        """Return this worker's shards of the gradient of Σ weights_i losses_i, averaged over the
        workers; None for a parameter that it does not reach.

        They come from `.grad` after a backward pass of all workers. The old `.grad` is restored.
        `into` is not used.
        """
        self._check_reduction()
        every = [*(parameter for _, parameter in self.named), *self._inputs(losses)]
        before = [tensor.grad for tensor in every]

        def restore() -> None:
            for tensor, gradient in zip(every, before, strict=True):
                tensor.grad = gradient

        with undoing(restore):
            for tensor in every:
                tensor.grad = None
            losses.backward(weights, retain_graph=retain_graph)
            shards: list[Tensor | None] = []
            for parameter in parameters:
                gradient = parameter.grad
                if gradient is not None:
                    gradient = local(gradient)
                shards.append(gradient)
            return shards

    def _inputs(self, loss: Tensor) -> list[Tensor]:
        """Leaves of a graph other than parameters that require a gradient, such as the embeddings of a frozen
        model with adapters.
        """
        if self._walked is None or self._walked[0]() is not loss:
            self._walked = (weakref.ref(loss), walk(loss).inputs)
        return self._walked[1]

    def jacobian(self, engine: Engine, losses: Tensor, layout: Layout, share: Share) -> Jacobian:
        return _Joint(self, engine, losses, layout, share)

    def agree(
        self,
        named: Named,
        primary: set[str],
        auxiliary: set[str],
        *,
        reset: bool = False,
        tasks: Collection[str] | None = None,
    ) -> tuple[set[str], set[str]]:
        """Return the two sets as they are: FSDP2 itself requires that the losses of all workers
        reach the same parameters. With `reset`, refuse workers whose guides differ.
        """
        if reset:
            self._check_same(self.all_reduce_(self._guide_prints(named), "a comparison of guides"))
        return primary, auxiliary

    def names(self, leaves: set[int], named: Named) -> set[str]:
        """Return the names of the parameters among the leaves of a graph (by id), which are shards
        or the whole parameters that FSDP2 has gathered; refuses leaves outside of the model.
        """
        name_of = {id(parameter): name for name, parameter in named}
        for whole, shard in unsharded(self.modules):
            if id(shard) in name_of:
                name_of[id(whole)] = name_of[id(shard)]
        if strangers := leaves - name_of.keys():
            raise ValueError(
                f"the losses reach {len(strangers)} parameters outside of the sharded model, and a "
                "backward pass would fill their .grad. Pass Guide the module that holds all "
                "parameters, and shard it as a whole"
            )
        return {name_of[key] for key in leaves}

    def pack(self, layout: Layout, rows: Tensor) -> dict[str, Tensor]:
        """V by parameter, as shards of tensors k x shape: torch.distributed.checkpoint saves these
        without gathering them.
        """
        packed = {}
        for (name, parameter), view in zip(layout.named, layout.views(rows), strict=True):
            packed[name] = _like(parameter, view.clone(), leading=rows.shape[0])
        return packed

    def empty_rows(self, parameter: nn.Parameter, rank: int, dtype: torch.dtype) -> Tensor:
        shard = local(parameter)
        rows = torch.empty(rank, *shard.shape, dtype=dtype, device=shard.device)
        return _like(parameter, rows, leading=rank)

    def part(self, parameter: nn.Parameter, rows: Tensor) -> Tensor:
        """This worker's shard of rows (k x shape) over a parameter."""
        if isinstance(rows, DTensor):
            # A mesh that was saved and loaded is not equal to the original mesh, so only the shapes
            # are compared. `state_owner` makes sure that the shards are this worker's own.
            same_mesh = rows.device_mesh.shape == self.mesh.shape
            same_dimension = _shard_dimension(rows) == _shard_dimension(parameter) + 1
            if same_mesh and same_dimension:
                return local(rows)
            rows = rows.full_tensor()
        chunks = rows.chunk(self.shards, dim=_shard_dimension(parameter) + 1)
        if self.shard >= len(chunks):  # a parameter with fewer rows than there are workers
            return chunks[0][:, :0]
        return chunks[self.shard]

    def _check_reduction(self) -> None:
        """Refuse settings under which `.grad` is not the mean over the workers after a backward
        pass.
        """
        for group in fsdp_groups(self.modules):
            if not group.reduce_grads or not group.all_reduce_grads:
                raise RuntimeError(
                    "set_requires_gradient_sync(False) is on, but a guide needs every gradient "
                    "reduced; leave it at True. (To accumulate, call primary() and auxiliary() "
                    "several times before combine().)"
                )
            if group.gradient_divide_factor not in (None, self.size):
                raise RuntimeError(
                    f"set_gradient_divide_factor({group.gradient_divide_factor}) is on, but a "
                    "guide averages over all examples itself; leave it out and scale the losses"
                )


class _Joint(Jacobian):
    """J over the examples of all workers. Each worker keeps its columns, and every product is a
    joint backward pass.
    """

    def __init__(
        self, workers: Shards, engine: Engine, losses: Tensor, layout: Layout, share: Share
    ) -> None:
        super().__init__(engine, losses, layout)
        self.workers = workers
        self.share = share

    def _one_hot(self, example: int) -> Tensor:
        """Return weights (m) that select one example, by its number over all workers; all are zero
        on a worker that does not have it.
        """
        local = example - int(self.share.first)
        weights = torch.zeros_like(self.losses)
        if 0 <= local < self.examples:
            weights[local] = 1
        return weights

    def left(self, weights: Tensor, out: Tensor | None = None) -> Tensor:
        """Each row is one backward pass of all workers; each worker keeps its columns (r x its part
        of D).
        """
        fresh = out is None
        if out is None:
            out = self.layout.empty(weights.shape[0])
        for row, target in zip(weights, out, strict=True):
            # FSDP2 averages over the workers, but we need the sum.
            scaled = (row * self.workers.size).to(self.losses.dtype)
            gradients = self.workers.gradients(
                self.losses, scaled, self.layout.parameters, retain_graph=True
            )
            self.layout.add_(target, gradients, fresh=fresh)
        return out

    def rows(self) -> Tensor:
        """J, m x its part of D, with the examples of all workers in order."""
        return self.left(torch.stack(list(map(self._one_hot, range(self.total())))))

    def right(self, vectors: Tensor) -> Tensor:
        """J times vectors, by one backward pass for each example of any worker: FSDP2 has no second
        derivatives.
        """
        first = int(self.share.first)
        size = (self.examples, vectors.shape[0])
        result = torch.empty(*size, dtype=torch.float64, device=self.layout.device)
        for example in range(self.total()):
            (row,) = self.left(self._one_hot(example)[None])
            product = self.workers.sum_columns(project(vectors, row))
            if 0 <= example - first < self.examples:
                result[example - first] = product
        return result


def _shard_dimension(tensor: Tensor) -> int:
    """The dimension along which a tensor is sharded."""
    assert isinstance(tensor, DTensor)
    placement = tensor.placements[-1]
    if isinstance(placement, Shard):
        return placement.dim
    return 0


def _like(parameter: nn.Parameter, rows: Tensor, leading: int) -> Tensor:
    """Wrap this worker's rows (k x shape) as a shard of the whole tensor, for checkpoints."""
    assert isinstance(parameter, DTensor)
    shape = torch.Size((leading, *parameter.shape))
    return DTensor.from_local(
        rows.contiguous(),
        parameter.device_mesh,
        [*parameter.placements[:-1], Shard(_shard_dimension(parameter) + 1)],
        run_check=False,
        shape=shape,
        stride=torch.empty(shape, device="meta").stride(),
    )


def _check_not_offloaded(lies: str, runs: str) -> None:
    """Refuse shards that lie on another device than the one that computes."""
    if lies != runs:
        raise ValueError(
            f"the shards are on {lies} while the model runs on {runs} (CPUOffloadPolicy), which a "
            "guide does not support; leave offload_policy= out (Accelerate: fsdp_offload_params: "
            "false). To save memory, store the basis in bf16 (basis_dtype=torch.bfloat16) or use "
            "more workers"
        )


def _check_placement(name: str, parameter: nn.Parameter, first: DTensor) -> None:
    """Refuse a parameter that is not sharded along one dimension of the mesh of the `first` one.

    A whole parameter is refused only if it is trained.
    """
    if not isinstance(parameter, DTensor):
        if parameter.requires_grad:
            raise ValueError(
                f"parameter {name!r} is not sharded while others are (FSDP2), so its gradient "
                "would not be reduced; call fully_shard on the whole model too, not only on its "
                "parts"
            )
        return
    *replicas, last = parameter.placements
    if (
        type(last) is not Shard
        or any(not placement.is_replicate() for placement in replicas)
        or parameter.device_mesh != first.device_mesh
    ):
        raise ValueError(
            f"parameter {name!r} has the placements {parameter.placements} on "
            f"{parameter.device_mesh}, which are not supported; use one mesh with shards "
            "(fully_shard) or with replicas of shards (HSDP), without tensor parallelism"
        )
