"""Counts what crosses the wire: the collectives of torch.distributed, with their bytes, as they are
dispatched.
"""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Traffic(TorchDispatchMode):
    """Number and bytes of the collectives inside the block, by name; the size of a sharded tensor
    is the size of the whole.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.sizes: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if func.namespace == "c10d" and name != "barrier":
            # The first argument is what is written: the sum, the gathered whole, or the shard that
            # a scatter leaves; of a scatter the second argument is the whole.
            tensors = args[1] if "scatter" in name else args[0]
            tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
            size = sum(
                x.numel() * x.element_size() for x in torch.utils._pytree.tree_leaves(tensors)
            )
            self.calls[name] += 1
            self.bytes[name] += size
            self.sizes.append((name, size))
        return func(*args, **kwargs or {})
