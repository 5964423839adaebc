"""Live memory, operations that would wait for a GPU, and nodes that show how long a graph lives."""

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def storages(tree: Any) -> dict[int, torch.UntypedStorage]:
    found = [x.untyped_storage() for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]
    return {storage._cdata: storage for storage in found}


class LiveMemory(TorchDispatchMode):
    """Bytes of tensors born inside the block and still alive; ``peak`` is the most at once."""

    def __init__(self) -> None:
        super().__init__()
        self.born: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    @property
    def live(self) -> int:
        self.born = {key: entry for key, entry in self.born.items() if not entry[0].expired()}
        return sum(size for _, size in self.born.values())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = storages((args, kwargs))
        out = func(*args, **kwargs or {})
        for key, storage in storages(out).items():
            if key not in given and key not in self.born:
                self.born[key] = StorageWeakRef(storage), storage.nbytes()
        self.peak = max(self.peak, self.live)
        return out


class Waits(TorchDispatchMode):
    """Names of operations whose result the host must wait for."""

    SYNCHRONISING = (
        "_local_scalar_dense",
        "is_nonzero",
        "nonzero",
        "equal",
        "masked_select",
        "_linalg_eigh",
    )

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in self.SYNCHRONISING:
            self.seen.append(str(func))
        return func(*args, **kwargs or {})


class Holding(torch.autograd.Function):
    """A node that holds an object, as others hold activations."""

    @staticmethod
    def forward(ctx, x, held):
        ctx.held = held
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        return gradient, None
