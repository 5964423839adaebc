"""Sums over the workers that train a model. A single process needs no sums, so the methods here
return their arguments.

`Replicas` are workers that each hold the whole model (DistributedDataParallel), and `Shards` are
workers that each hold a shard of it (FSDP2).
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from attittud._torch import fsdp_modules, unsharded
from attittud.autograd.layout import EVERYTHING, Layout, Named, Share, gradients_of, is_sharded
from attittud.engine.base import Engine, Jacobian


def uses_shards(model: nn.Module) -> bool:
    """Whether FSDP2 has sharded the model, a part of it, or a larger model that it belongs to."""
    sharded_modules = fsdp_modules(model)  # those of larger models too
    if not set(sharded_modules).isdisjoint(model.modules()):
        return True
    # The model may be an unsharded part of a larger model. Looking for shards is not enough:
    # between a forward and a backward pass FSDP2 may show whole parameters.
    whole = {id(parameter) for parameter, _ in unsharded(sharded_modules)}
    return any(is_sharded(parameter) or id(parameter) in whole for parameter in model.parameters())


class Workers:
    """One process. It has all examples and all parameters, so every sum is already complete."""

    size = 1
    splits_examples = False
    """Whether gradients cover only this worker's examples until they are summed."""
    splits_columns = False
    """Whether vectors over the parameters hold this worker's columns only."""
    counts = False
    """Whether the examples of all workers are counted without waiting for a device."""
    state_owner: str | None = None
    """Names this worker's part of the state, if each worker has another part."""
    named: Named | None = None
    """The parameters that an optimizer sees, if these are not the ones that the model lists."""
    _looked_for_others = False

    def engine(self, asked: type[Engine]) -> str:
        """Return the name of the engine to use if a user asks for `asked`."""
        return asked.name

    def check_whole(self, model: nn.Module) -> None:
        """Refuse new parameters of a model that these workers cannot have: shards."""
        if uses_shards(model):
            raise ValueError(
                "the model was sharded (fully_shard) after this guide had been made, so the guide "
                "does not know the shards; call fully_shard first, and then make the guide"
            )

    def names(self, leaves: set[int], named: Named) -> set[str]:
        """Return the names of the parameters among the leaves of a graph; `leaves` are ids."""
        return {name for name, parameter in named if id(parameter) in leaves}

    def columns(self, layout: Layout) -> Iterable[tuple[slice, int]]:
        """Ranges of this worker's columns, each with the number of its first column in V."""
        return [(slice(0, layout.size), 0)]

    def check_call(self, described: str) -> None:
        """Refuse a call of the guide that is not the same on all workers."""

    def stand_in(self, where: str) -> Tensor | None:
        """Return losses for a worker without examples; None: there are no other workers."""
        return None

    def all_skip(self, skips: bool) -> bool:
        """Whether every worker leaves out its primary losses, in a step that needs none. `skips`:
        whether this one does.
        """
        return skips

    def in_order(self, tasks: dict[str, Tensor]) -> dict[str, Tensor]:
        """Sort named losses into the order in which all workers exchange their values."""
        return tasks

    def shares(self, losses: Sequence[Tensor]) -> list[Share]:
        """This worker's share of the examples of each loss."""
        return [EVERYTHING] * len(losses)

    gradients = staticmethod(gradients_of)

    def jacobian(self, engine: Engine, losses: Tensor, layout: Layout, share: Share) -> Jacobian:
        return engine.jacobian(losses, layout)

    def agree(
        self,
        named: Named,
        primary: set[str],
        auxiliary: set[str],
        *,
        reset: bool = False,
        tasks: Collection[str] | None = None,
    ) -> tuple[set[str], set[str]]:
        """Return the parameters that the primary losses of any worker reach, and likewise for the
        auxiliary losses.

        `reset`: a refresh begins, so the workers exchange these sets again. `tasks`: the names of
        the auxiliary losses, once all losses of the step are known. A single process returns its
        own sets; it warns once if torch.distributed has other workers, which it does not use.
        """
        if not self._looked_for_others and dist.is_available() and dist.is_initialized():
            size = dist.get_world_size()
            if size > 1:
                warnings.warn(
                    f"this guide trains alone although torch.distributed has {size} workers, so "
                    "the replicas of its model would become different. Pass Guide the "
                    "DistributedDataParallel model, or "
                    "process_group=torch.distributed.group.WORLD",
                    stacklevel=2,
                )
        self._looked_for_others = True
        return primary, auxiliary

    def sum_examples_(self, x: Tensor, what: str, *others: Tensor) -> Tensor:
        """Sum over all workers a tensor that each computed from its own examples; `others` join the
        same exchange.
        """
        return x

    def sum_columns(self, x: Tensor) -> Tensor:
        """Sum over all workers a tensor that each computed from its own columns."""
        return x

    def sum_numbers_(self, parts: Sequence[Tensor]) -> None:
        """Sum k-vectors and inner products over all workers, in place and in one exchange."""
        if not parts or self.size == 1:
            return
        flat = torch.cat([part.reshape(-1) for part in parts])
        summed = self.sum_columns(self.sum_examples_(flat, "k-vectors"))
        first = 0
        for part in parts:
            part.copy_(summed[first : first + part.numel()].view_as(part))
            first += part.numel()

    def stack_rows(self, block: Tensor) -> tuple[Tensor, slice]:
        """Stack the small matrices (r x l) of all workers; also returns the position of this
        worker's matrix.
        """
        return block, slice(0, block.shape[0])

    def rest(
        self, updates: dict[str, Tensor], named: Named
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Return the updates of the parameters `named`, which are not decomposed.

        If they still have to be summed over the workers, they are views of one tensor, which is
        also returned; else None.
        """
        return updates, None

    def pack(self, layout: Layout, rows: Tensor) -> Tensor | dict[str, Tensor]:
        """Copy V so that it can be saved, each parameter's columns in the order of a contiguous
        tensor.
        """
        if not layout.reordered:
            return rows.clone()
        packed = torch.empty_like(rows)
        for to, view in zip(packed.split(layout.numels, dim=1), layout.views(rows), strict=True):
            to.view(view.shape).copy_(view)
        return packed

    def empty_rows(self, parameter: nn.Parameter, rank: int, dtype: torch.dtype) -> Tensor:
        """Allocate memory for the rows of V over one parameter, in the form that `pack` and
        checkpoints use.
        """
        return torch.empty(rank, *parameter.shape, dtype=dtype, device=parameter.device)

    def part(self, parameter: nn.Parameter, rows: Tensor) -> Tensor:
        """Return the part that this worker keeps of rows (k x shape) over a parameter."""
        if is_sharded(rows):
            rows = cast(Any, rows).full_tensor()
        return rows

    def unpack(self, layout: Layout, saved: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Return this worker's part of V from saved rows, whatever kind and number of workers saved
        them: a matrix k x D, or rows by parameter.
        """
        if not isinstance(saved, Mapping):
            if saved.ndim != 2 or saved.shape[1] != layout.total:
                raise ValueError(
                    f"the saved basis has shape {tuple(saved.shape)}, but this model needs k x "
                    f"{layout.total}"
                )
            if not self.splits_columns and not layout.reordered:
                return saved  # the columns are those of V
            by_name = {}
            columns = saved.split(layout.numels, dim=1)
            for name, part, shape in zip(layout.names, columns, layout.shapes, strict=True):
                by_name[name] = part.view(len(part), *shape)
            saved = by_name
        first = saved[layout.names[0]]
        rows = torch.empty(first.shape[0], layout.size, dtype=first.dtype, device=layout.device)
        for view, (name, parameter) in zip(layout.views(rows), layout.named, strict=True):
            view.copy_(self.part(parameter, saved[name]))
        return rows
