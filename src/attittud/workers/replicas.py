"""Workers that each hold the whole model. They exchange a few sums, all of them by all-reduce.

Everything that the update needs is linear in the examples (gradients, the rows ΠJ, k-vectors). So
each worker computes its own part, and the parts are summed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from itertools import compress

import torch
import torch.distributed as dist
from torch import Tensor

from attittud._torch import foreach_norm
from attittud.autograd.layout import Layout, Named, Share
from attittud.engine.base import Engine, Jacobian
from attittud.workers.one import Workers


class Group(Workers):
    """Several processes that communicate through one process group, or through several groups in
    turn.
    """

    def __init__(
        self,
        groups: list[dist.ProcessGroup],
        device: torch.device,
        number: int,
        size: int,
        describe: Callable[[], str],
    ) -> None:
        """Join the `size` workers of some groups as worker `number`.

        A sum over all workers is a sum over each of the groups in turn. `describe` returns what must
        be equal on all workers.
        """
        self.describe = describe
        self.groups = groups
        self.device = device
        self.counts = device.type == "cpu"
        self.number = number
        self.size = size
        self._names: set[tuple[str, ...]] = set()
        """The names of auxiliary losses that were found equal on all workers."""

    def all_reduce_(
        self,
        x: Tensor,
        what: str,
        *others: Tensor,
        groups: Sequence[dist.ProcessGroup] | None = None,
    ) -> Tensor:
        """Sum over all workers, or over the workers of some `groups`.

        Tensors of the same type as `x` take one exchange.
        """
        if groups is None:
            groups = self.groups
        together = [x]
        alone = []
        for other in others:
            if other.dtype == x.dtype:
                together.append(other)
            else:
                alone.append(other)
        try:
            for group in groups:
                for other in alone:
                    dist.all_reduce(other, group=group)
                if len(together) > 1:
                    # (torch.distributed.all_reduce_coalesced does the same with a warning.)
                    group.allreduce_coalesced(together).wait()
                else:
                    dist.all_reduce(x, group=group)
        except RuntimeError as error:
            raise RuntimeError(
                f"worker {self.number} of {self.size}: the sum of {what} over the workers failed. "
                "Another worker has died (its own message says why), waits elsewhere or makes "
                "other calls: every worker must call the guide in the same way, with primary=None "
                "where it has no primary examples. To wait longer, set timeout= of "
                f"init_process_group. torch said: {error}"
            ) from error
        return x

    def check_call(self, described: str) -> None:
        """Refuse a call of the guide that is not the same on all workers: their sums would mix other
        things, or torch would end the process.

        On a GPU this would wait for the device in every step, so workers there are not compared.
        """
        if self.device.type == "cpu":
            self._check_same(
                self.all_reduce_(self._prints(described), "a comparison of calls"),
                f"make another call than worker 0; here it is {described:.300}. Every worker must "
                "call the guide in the same order, with refresh=, basis_losses= and judge= in "
                "the same steps, and with the same trainable parameters",
            )

    def shares(self, losses: Sequence[Tensor]) -> list[Share]:
        """Return this worker's share of the examples of each loss, from an exchange of their numbers:
        size x losses integers.
        """
        # A scalar counts as one example, so it is averaged over the workers as in
        # DistributedDataParallel.
        counts = torch.zeros(self.size, len(losses), dtype=torch.int64, device=self.device)
        for position, loss in enumerate(losses):
            counts[self.number, position].fill_(loss.numel())
        self.all_reduce_(counts, "the numbers of examples")
        return list(map(Share, counts[: self.number].sum(0), counts.sum(0)))

    def all_skip(self, skips: bool) -> bool:
        """Whether every worker leaves out its primary losses. This waits for the device."""
        counts = torch.full((1,), int(skips), dtype=torch.int32, device=self.device)
        count = int(self.all_reduce_(counts, "who has primary losses"))
        if 0 < count < self.size and self.splits_columns:
            raise ValueError(
                f"primary: {count} of {self.size} workers got None and the others got losses, but "
                "a pass through a sharded model (FSDP2) needs every worker. Pass None on all "
                "workers, or on a worker without examples an empty part of the losses of any "
                "batch, losses[:0]"
            )
        return count == self.size

    def in_order(self, tasks: dict[str, Tensor]) -> dict[str, Tensor]:
        """Sort named losses. Names that are new are compared with those of the other workers."""
        names = tuple(sorted(tasks))
        if names not in self._names:
            self._check_same(
                self.all_reduce_(self._prints(names), "the names of the auxiliary losses"),
                f"pass auxiliary losses with other names than worker 0; here the names are {', '.join(map(repr, names))}. Every "
                "worker must pass all names, with {'name': None} if it has no examples for a name",
            )
            self._names.add(names)
        return {name: tasks[name] for name in names}

    def _prints(self, described: object) -> Tensor:
        """Return a vector with this worker's fingerprint, a hash of 24 bits, at its own number and
        zeros elsewhere.
        """
        prints = torch.zeros(self.size, dtype=torch.int32, device=self.device)
        prints[self.number] = int.from_bytes(
            hashlib.sha256(repr(described).encode()).digest()[:3], "big"
        )
        return prints

    def _guide_prints(self, named: Named) -> Tensor:
        """Fingerprints of the guides' settings, and of the names and shapes of the parameters."""
        return self._prints(
            (self.describe(), [(name, tuple(parameter.shape)) for name, parameter in named])
        )

    def _check_same(
        self,
        prints: Tensor,
        message: str = "have another model or another guide than worker 0: the trainable parameters and every argument of "
        "Guide, including eta and seed, must be the same on all workers",
    ) -> None:
        """Refuse fingerprints (one for each worker) that are not all equal; names the workers that
        differ from worker 0.
        """
        rows = prints.tolist()
        if others := [worker for worker, print_ in enumerate(rows) if print_ != rows[0]]:
            raise ValueError(f"workers {others} {message}")

    def stack_rows(self, block: Tensor) -> tuple[Tensor, slice]:
        """Exchange blocks (r x l, with r at most l): size * l x l numbers."""
        # Workers may have fewer rows than columns, so each block is padded with zeros to a square.
        rows, columns = block.shape
        every = block.new_zeros(self.size, columns, columns)
        every[self.number, :rows] = block
        self.all_reduce_(every, "small factors")
        first = self.number * columns
        return every.view(-1, columns), slice(first, first + rows)


class Replicas(Group):
    """Workers that each hold the whole model and see different examples."""

    splits_examples = True

    def __init__(
        self, group: dist.ProcessGroup, device: torch.device, describe: Callable[[], str]
    ) -> None:
        super().__init__(
            [group], device, dist.get_rank(group), dist.get_world_size(group), describe
        )
        # What the losses reach, by the trainable parameters and the names of the auxiliary losses.
        self._agreed: tuple[tuple[list[str], list[str]], set[str], set[str]] | None = None
        self._compared = False  # whether the replicas were equal at their first refresh

    def stand_in(self, where: str) -> Tensor | None:
        """No losses. The worker takes part in all exchanges, with sums that are zero."""
        return torch.zeros(0, device=self.device, requires_grad=True)

    def jacobian(self, engine: Engine, losses: Tensor, layout: Layout, share: Share) -> Jacobian:
        return engine.jacobian(losses, layout).of_share(share)

    def agree(
        self,
        named: Named,
        primary: set[str],
        auxiliary: set[str],
        *,
        reset: bool = False,
        tasks: Collection[str] | None = None,
    ) -> tuple[set[str], set[str]]:
        """Find out which parameters the losses of any worker reach; this waits for the device.

        If they reach every trainable parameter, the answer is reused until the next refresh, in
        steps with the same auxiliary losses. Otherwise every step needs an exchange, as in
        DistributedDataParallel.
        """
        every = [name for name, _ in named]
        if reset:
            self._agreed = None
        asked = None
        if tasks is not None:
            asked = (every, sorted(tasks))
        if self._agreed is not None and self._agreed[0] == asked:
            return self._agreed[1:]
        reached_here = torch.tensor(
            [list(map(primary.__contains__, every)), list(map(auxiliary.__contains__, every))]
        )
        # One exchange of integers: a fingerprint from each worker, how many workers' losses reach
        # each parameter, and sometimes the checksums of the parameters.
        message = torch.cat(
            [self._guide_prints(named), reached_here.view(-1).int().to(self.device)]
        )
        compares = reset or not self._compared
        if compares:
            message = torch.cat([message, self._checksums(named)])
        summed = self.all_reduce_(message, "what the losses reach").cpu()
        lengths = [self.size, 2 * len(every), len(summed) - self.size - 2 * len(every)]
        prints, reaching_workers, checksums = summed.split(lengths)
        self._check_same(prints)
        reached = reaching_workers.view(2, -1) > 0
        if compares:
            self._compare(checksums)
        primary = set(compress(every, reached[0].tolist()))
        auxiliary = set(compress(every, reached[1].tolist()))
        reach_all = bool(reached.any(0).all())
        if asked is not None and reach_all:
            self._agreed = (asked, primary, auxiliary)
        return primary, auxiliary

    def _checksums(self, named: Named) -> Tensor:
        """Return two checksums of the parameters at this worker's position and zeros elsewhere:
        the bits of size x 2 float64 numbers, as int32.

        The first is Σ ‖p‖². The second sums the rows of all parameters, each with a weight of its
        own. It tells parameters with equal norms apart: with other signs, in another order, or
        turned (orthogonal matrices of another seed).
        """
        checksums = torch.zeros(self.size, 2, dtype=torch.float64, device=self.device)
        parameters = [parameter.detach() for _, parameter in named if parameter.numel()]
        if parameters:
            norms = torch.stack(foreach_norm(parameters, dtype=torch.float64)).to(self.device)
            rows = torch.cat([_row_sums(parameter).to(self.device) for parameter in parameters])
            weights = torch.arange(len(rows), dtype=torch.float64, device=self.device).cos_()
            checksums[self.number] = torch.stack([norms.square().sum(), rows.double().dot(weights)])
        return checksums.view(-1).view(torch.int32)

    def _compare(self, checksums: Tensor) -> None:
        """Refuse replicas with different parameters: they would get equal updates and stay
        different.

        `checksums`: those of `_checksums`, summed over the workers. The first success is noted, for
        the message of a later refusal.
        """
        every = checksums.clone().view(torch.float64).view(self.size, 2)
        squares, weighted = every.unbind(1)
        # The tolerances: sums of the same numbers may round differently on different kinds of
        # devices. NaN is equal to NaN here.
        same = torch.isclose(squares, squares[:1], rtol=1e-9, atol=0.0, equal_nan=True)
        same &= ~((weighted - weighted[:1]).abs() > 1e-5 * squares[:1].sqrt())
        others = (~same).nonzero()[:, 0].tolist()
        if others and self._compared:
            raise ValueError(
                f"workers {others} have other parameters than worker 0, although all started from "
                "the same: the replicas have drifted apart since an earlier refresh. Every worker "
                "must make the same optimizer steps with the same settings, and nothing else may "
                "change the parameters of one worker alone. Continue from a checkpoint that all "
                "workers load, or copy the parameters: for p in model.parameters(): "
                "torch.distributed.broadcast(p.data, 0)"
            )
        if others:
            raise ValueError(
                f"workers {others} start from other parameters than worker 0, and their replicas "
                "would stay different. Wrap the model in DistributedDataParallel, which copies "
                "the parameters of worker 0, load the same weights on all workers, or copy them: "
                "for p in model.parameters(): torch.distributed.broadcast(p.data, 0)"
            )
        self._compared = True

    def sum_examples_(self, x: Tensor, what: str, *others: Tensor) -> Tensor:
        return self.all_reduce_(x, what, *others)

    def rest(
        self, updates: dict[str, Tensor], named: Named
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Return views of one flat vector, which is summed in the same exchange as the update."""
        layout = Layout(named)
        if not layout.parameters:
            return {}, None
        flat = layout.flatten(list(map(updates.get, layout.names)))
        return dict(zip(layout.names, layout.views(flat), strict=True)), flat


def _row_sums(parameter: Tensor) -> Tensor:
    """The sum of each row of a parameter. Not in float64, because torch would then copy all of
    it.
    """
    wide = torch.promote_types(parameter.dtype, torch.float32)
    if parameter.ndim < 2:
        return parameter.reshape(-1).to(wide)
    return parameter.sum(tuple(range(1, parameter.ndim)), dtype=wide)
