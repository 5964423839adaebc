"""The workers that train a model: one process, replicas of the model, or shards of it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from attittud.workers.one import Workers, uses_shards
from attittud.workers.replicas import Replicas

__all__ = ["Workers", "connect"]


def connect(
    model: nn.Module, process_group: dist.ProcessGroup | None, describe: Callable[[], str]
) -> tuple[nn.Module, Workers]:
    """Return the module that holds the parameters, and its workers; refuses DeepSpeed and FSDP of
    version 1.

    `describe` returns what must be equal on all workers. Without a `process_group`, replicas use
    the group of the DistributedDataParallel that wraps the model or a part of it.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    for module in model.modules():
        if type(module).__name__ == "DeepSpeedEngine":
            raise ValueError(
                "a DeepSpeed engine keeps gradients in its own buffers and hides .grad, so "
                "nothing can be decomposed; shard the model with "
                "torch.distributed.fsdp.fully_shard (FSDP2), which saves what ZeRO-3 saves"
            )
        if fsdp is not None and isinstance(module, fsdp.FullyShardedDataParallel):
            raise ValueError(
                "the model is wrapped in FullyShardedDataParallel (FSDP of version 1), which keeps "
                "parameters in its own flat buffers; shard it with "
                "torch.distributed.fsdp.fully_shard (FSDP2) instead"
            )
        # DistributedDataParallel may be inside another wrapper, such as torch.compile's.
        if isinstance(module, DistributedDataParallel):
            process_group = process_group or module.process_group
    if isinstance(model, DistributedDataParallel):
        model = model.module
    if uses_shards(model):
        from attittud.workers.shards import Shards  # imports FSDP2

        return model, Shards(model, describe)
    if process_group is None:
        return model, Workers()
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return model, Replicas(process_group, device, describe)
