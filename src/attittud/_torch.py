"""All private names of torch that we use: check this file when a new release of torch comes out.

(Attributes that torch's own documentation mentions, such as `Tensor._version` or `Module._buffers`,
are not listed here.)
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward as engine_run_backward
from torch.nn.functional import _canonical_mask as canonical_mask
from torch.nn.functional import _in_projection as in_projection  # type: ignore[attr-defined]
from torch.nn.functional import _in_projection_packed as in_projection_packed  # type: ignore[attr-defined]
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

__all__ = [
    "BatchNorm",
    "DisableTorchFunction",
    "canonical_mask",
    "engine_run_backward",
    "in_projection",
    "in_projection_packed",
]

DisableTorchFunction = torch._C.DisableTorchFunction
foreach_add_ = torch._foreach_add_
foreach_copy_ = torch._foreach_copy_
foreach_mul = torch._foreach_mul
foreach_norm = torch._foreach_norm
foreach_zero_ = torch._foreach_zero_
concatenate = torch._C._nn.flatten_dense_tensors
"""Returns two or more tensors of one type as one new vector, in one call."""
as_parts = torch._C._nn.unflatten_dense_tensors
"""The reverse: returns a contiguous view for each tensor, in its shape."""
_NODES: Any = torch._C._functions
AccumulateGrad = _NODES.AccumulateGrad  # the node of a leaf
ToCopyBackward = _NODES.ToCopyBackward0  # the node of a tensor that was converted to another type
sequence_number = methodcaller("_sequence_nr")
"""The number of a node among all nodes that autograd has made in this thread."""
next_sequence_number = torch._C._autograd._get_sequence_nr
"""Returns the number that the next node of this thread will have."""
input_metadata = attrgetter("_input_metadata")
"""For each input of a node, the type and the device of the gradient that arrives there."""
CUDA_GRAPH_TREES = "torch._inductor.cudagraph_trees"
"""The module behind torch.compile(mode="reduce-overhead"). If it is not loaded, nothing was
compiled in that mode.
"""


def empty_queue() -> None:
    """Free the graph of a pass that has failed in this thread.

    The pass leaves its remaining tasks, and with them its graph, in a queue of this thread until
    the next pass. Out of memory, that pass might never come.
    """
    with suppress(Exception), torch.enable_grad():
        torch.zeros((), requires_grad=True).mul(1).backward()


def _autocast_nesting() -> int:
    """Return how many regions of autocast torch counts as open in this thread."""
    depth: int = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return depth - 1


_KINDS = ("cpu", "cuda")  # devices for which a step may switch autocast off
THREAD_SETTINGS: tuple[Callable[[], Any], ...] = (
    torch.is_grad_enabled,
    torch._C._is_multithreading_enabled,
    torch._C._len_torch_function_stack,
    torch.is_autocast_cache_enabled,
    *[partial(torch.is_autocast_enabled, kind) for kind in _KINDS],
    *[partial(torch.get_autocast_dtype, kind) for kind in _KINDS],
)
"""Functions that return the settings of torch, for this thread, that blocks of a step change."""


def restore_thread(before: Sequence[Any]) -> None:
    """Restore the values that `THREAD_SETTINGS` returned earlier (`before`, in their order).

    This is for Ctrl-C: Python does not run the end of a `with` block if it comes exactly there.
    """
    # `modes`: how many torch-function modes were active. The rest is about autocast: for each device
    # of `_KINDS` whether it is on, and then for each its type.
    grad, multithreading, modes, cache, *autocast = before
    autocast_enabled = autocast[: len(_KINDS)]
    autocast_types = autocast[len(_KINDS) :]
    torch.set_grad_enabled(grad)
    torch._C._set_multithreading_enabled(multithreading)
    while torch._C._len_torch_function_stack() > modes:
        torch._C._pop_torch_function_stack()
    torch.set_autocast_cache_enabled(cache)
    for kind, enabled, dtype in zip(_KINDS, autocast_enabled, autocast_types, strict=True):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
    if not any(autocast_enabled):
        # No region of autocast is open. Until the depth is 0, torch would keep the converted
        # parameters of this one.
        while _autocast_nesting() > 0:
            torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()


@contextmanager
def undoing(undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo` after the block, and after an error once more: Ctrl-C may come within the first
    call.
    """
    try:
        try:
            yield
        finally:
            undo()
    except BaseException:
        undo()
        raise


def add_hook(tensor: Tensor, hook: Callable[[Any], Tensor | None]) -> Callable[[], object]:
    """Do `tensor.register_hook(hook)`, in a fifth of its time for a tensor that is no leaf and has
    no hook yet; returns a function that removes the hook.
    """
    if tensor._backward_hooks is not None or tensor.grad_fn is None:
        remove: Callable[[], object] = tensor.register_hook(hook).remove
        return remove
    # Under a key that torch never takes: it counts its hooks from 0.
    hooks = tensor._backward_hooks = OrderedDict({-1: hook})
    tensor.grad_fn._register_hook_dict(tensor)
    return partial(hooks.pop, -1, None)


def packs_saved_tensors() -> bool:
    """Whether hooks for saved tensors are active, as under activation checkpointing."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


# ------------------------------------------------------------------------------------ torch.compile


def keep_saved_tensors(model: nn.Module | None = None) -> None:
    """Allow several backward passes through the graph of a compiled model; without a model, through
    all compiled code.

    By default a compiled backward pass may overwrite tensors that the forward pass saved ("donated
    buffers"), and torch refuses retain_graph=True.
    """
    if model is None or is_compiled(model):
        from torch._functorch import config

        if config.donated_buffer:
            config.donated_buffer = False
            torch.compiler.reset()  # code that is already compiled relies on the old value


def is_compiled(model: nn.Module) -> bool:
    """Whether a model, or a module of it, was compiled."""
    return any(
        type(m).__name__ == "OptimizedModule" or m._compiled_call_impl is not None
        for m in model.modules()
    )


def in_cuda_graphs() -> bool:
    """Whether passes may run as CUDA graphs (mode="reduce-overhead"), which reuse the same memory
    every time. True where it is not known.
    """
    trees = sys.modules.get(CUDA_GRAPH_TREES)
    if trees is None:
        return False
    try:
        managers = trees.get_obj(trees.local, "tree_manager_containers")
        return any(container.tree_manager is not None for container in managers.values())
    except AssertionError:  # torch before 2.13, in a thread that has never used a CUDA graph
        return False
    except AttributeError:  # these private names may disappear; copying is always safe
        return True


@contextmanager
def kept_graph() -> Iterator[None]:
    """Run code compiled with mode="reduce-overhead" kernel by kernel, for a backward pass that
    keeps its graph.

    The CUDA graphs of that mode assume that saved tensors are freed in the backward pass. If the
    tensors are kept, torch frees memory that it does not own ("invalid device pointer"). Torch
    itself runs kernel by kernel when it skips a CUDA graph.
    """
    trees = sys.modules.get(CUDA_GRAPH_TREES)
    if trees is None:  # nothing was compiled in that mode
        yield
        return
    manager = trees.CUDAGraphTreeManager
    run = trees.CUDAGraphTreeManager._run
    with undoing(partial(setattr, manager, "_run", run)):
        manager._run = lambda self, inputs, number: self.ids_to_funcs[number].model(inputs)
        yield


def saved_by_compiled(nodes: set[Any]) -> list[Tensor]:
    """Return the tensors that compiled code among these nodes of a graph saved for its backward
    pass. Hold them as long as other forward passes may run before that backward pass.

    The CUDA graphs of mode="reduce-overhead" do not see tensors that only autograd holds. When they
    record another function they treat such tensors as freed and reuse their memory
    (https://github.com/pytorch/pytorch/pull/194124).

    Tensors that hooks have packed away are left out, because unpacking each of them would run
    activation checkpointing again.
    """
    if not in_cuda_graphs():
        return []
    compiled = [node for node in nodes if type(node).__name__ == "CompiledFunctionBackward"]
    return [tensor for node in compiled if not _packed(node) for tensor in node.saved_tensors]


def _packed(node: Any) -> bool:
    """Whether hooks have packed away the tensors that a node saved; False if torch lacks these
    private names.
    """
    return any(
        getattr(saved, "unpack_hook", None) is not None
        for saved in getattr(node, "_raw_saved_tensors", ())
    )


# -------------------------------------------------------------------------------------------- FSDP2


def fsdp_modules(model: nn.Module) -> list[Any]:
    """The modules that FSDP2 has sharded, of this model and of all other models in this process."""
    # Importing this module would take as long as importing torch. Without it nothing is sharded.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    states = sys.modules.get("torch.distributed._composable_state")
    modules = {*model.modules(), *getattr(states, "_module_state_mapping", ())}
    if fsdp is None:
        return []
    return [module for module in modules if isinstance(module, fsdp.FSDPModule)]


def fsdp_groups(modules: Sequence[Any]) -> Iterator[Any]:
    """Yield the groups of parameters that FSDP2 gathers and reduces together."""
    for module in modules:
        state = module._get_fsdp_state()
        # A state has one group of parameters up to torch 2.11, and several later.
        several = getattr(state, "_fsdp_param_groups", None)
        if several is None:
            several = filter(None, [state._fsdp_param_group])
        yield from several


def unsharded(modules: Sequence[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each parameter as a forward pass sees it, together with the shard that is trained."""
    for group in fsdp_groups(modules):
        for parameter in group.fsdp_params:
            if hasattr(parameter, "_unsharded_param"):
                yield parameter._unsharded_param, parameter.sharded_param
