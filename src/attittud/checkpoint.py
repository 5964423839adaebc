"""A guide in checkpoints of `torch.distributed.checkpoint`, to go on with another number or kind of workers.

    dcp.save({"model": ..., "optimizer": ..., "guide": checkpoint.entries(guide)}, checkpoint_id=folder)
    ...
    checkpoint.load(guide, folder)

The basis is saved by parameter, each worker writing its shards, so FSDP2 on 8 workers may go on as FSDP2 on 2, as replicas
or in one process.
"""

from __future__ import annotations

import json
import warnings
from os import PathLike
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from attittud.guide import Guide


def entries(guide: Guide) -> dict[str, Any]:
    """What to put under a key of one's own into the dict given to `torch.distributed.checkpoint.save`."""
    state = guide.state_dict()
    basis = state.pop("basis")
    del state["worker"]  # it is put together from all
    space = guide.subspace
    if isinstance(basis, Tensor) and space is not None:
        pieces = space.layout.views(basis)
        basis = {name: piece.contiguous() for name, piece in zip(space.layout.names, pieces, strict=True)}
    return {"state": json.dumps(state), "basis": basis or {}}


def load(guide: Guide, checkpoint_id: str | PathLike[str], *, key: str = "guide") -> None:
    """Let a guide go on from a checkpoint that has its `entries` under `key`; every worker must call this."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load as load_entries

    reader = FileSystemReader(checkpoint_id)
    found = reader.read_metadata().state_dict_metadata
    if f"{key}.state" not in found:
        there = sorted({name.split(".")[0] for name in found})
        raise ValueError(
            f"the checkpoint {str(checkpoint_id)!r} has no guide under {key!r}, only {there}; save one with "
            f"{{{key!r}: attittud.checkpoint.entries(guide)}}"
        )
    workers, prefix = guide._workers, f"{key}.basis."
    parameters = dict(workers.named(guide.model))
    room = {}
    for path, saved in found.items():
        if path.startswith(prefix) and isinstance(saved, TensorStorageMetadata):
            name = path.removeprefix(prefix)
            if name not in parameters:
                raise ValueError(f"the checkpoint belongs to another model: here is no parameter {name!r}")
            room[name] = workers.empty_rows(parameters[name], saved.size[0], saved.properties.dtype)
    taken: dict[str, Any] = {key: {"state": "", "basis": room}}
    with warnings.catch_warnings():
        # In one process torch warns that it is only one.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        load_entries(taken, storage_reader=reader)
    guide.load_state_dict(json.loads(taken[key]["state"]) | {"basis": room or None})
