"""The formulas of docs/appendix/traffic.md against the collectives that two workers dispatch.

The size of a collective is the size of its tensor: the sum in an all-reduce, the whole tensor in an
all-gather or reduce-scatter.
"""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attittud import Eta
from tests.helpers.processes import run
from tests.helpers.scenarios import N, World


class Traffic(TorchDispatchMode):
    """Number and bytes of the collectives inside the block; sizes are those of the whole."""

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


W = 2  # workers
D, REST = 78, 6 * 7 + 7  # of the model "mlp": its body, and the two heads
K = 3  # rank
EXAMPLES = 18
TENSORS = 8
CALLS = 8
"""Workers on CPUs compare their calls in every step; the formulas are those of GPUs."""
SUMS = {"allreduce_", "allreduce_coalesced_"}
GUIDES = {
    **{basis: {"basis": basis} for basis in ("sketch", "exact", "canonical")},
    "include_mean": {"include_mean": True},
    "always": {"report_norms": "always"},
    "two tasks, include_mean": {
        "eta": {"a": Eta(1, 0, -1), "b": Eta(1, 0, 0)},
        "include_mean": True,
    },
}


def tasks_of(options):
    return 2 if "eta" in options else 1


def replicas_step(options, *, norms=False):
    """Bytes of a step: sums of D, k-vectors, inner products and counts."""
    tasks = tasks_of(options)
    mean = options.get("include_mean", False)
    numbers = W * (1 + tasks)
    if options.get("basis") == "canonical":
        vectors = 1 + tasks
    elif norms and tasks == 1:
        vectors = 2  # the task's gradient is summed separately, so no k-vector has to be summed
    elif mean or norms:
        vectors = 2
        numbers += tasks * K + (tasks if mean else 1)
    else:
        vectors = 1
        numbers += (1 + tasks) * K
    return 4 * (vectors * D + REST) + 8 * numbers


def replicas_refresh(options):
    """Bytes of a refresh, in addition to a step whose report states norms."""
    rows = {"sketch": K, "exact": EXAMPLES, "canonical": 0}[options.get("basis", "sketch")]
    roles = 4 * (W + 2 * TENSORS)
    return 4 * rows * D + roles + 2 * W * 8


def shards_step(options):
    tasks = tasks_of(options)
    if options.get("basis") == "canonical":
        numbers = 1 + 5 * tasks
    else:
        numbers = 1 + 2 * tasks + (1 + tasks) * K
    return 8 * (numbers + W * (1 + tasks))


def shards_refresh(options):
    if options.get("basis") == "canonical":
        return 4 * W
    return 2 * K * K * 8 + 4 * K + 4 * W


def steps(kind, options):
    """The collectives of three steps: with a refresh, without one, and with one."""
    w = World(kind, torch.float32)
    guide = w.guide(**options)
    sizes = []
    for _ in range(3):
        primary = w.losses(w.even(0, EXAMPLES))
        loss = w.auxiliary(w.even(0, N))
        tasks = {"a": loss, "b": loss.square()} if "eta" in options else loss
        with Traffic() as seen:
            guide.backward(primary=primary, auxiliary=tasks)
        sizes.append(seen.sizes)
        w.optimizer.step()
        w.optimizer.zero_grad()
    return sizes


def windows():
    """Accumulation: what each call exchanges."""
    w = World("ddp", torch.float32)
    guide = w.guide()
    sizes = []
    for _ in range(2):
        calls = []
        for verb in [lambda: guide.primary(w.losses(w.even(0, 12)))] * 3 + [
            lambda: guide.auxiliary(w.auxiliary(w.even(0, N)))
        ] * 3:
            with w.no_sync(), Traffic() as seen:
                verb()
            calls.append(seen.sizes)
        with Traffic() as seen:
            guide.combine()
        sizes.append((calls, seen.sizes))
        w.optimizer.zero_grad()
    return sizes


def judged(kind, tasks):
    """The large collectives of a step that asks the judges, and its backward passes."""
    w = World(kind, torch.float32)
    guide = w.guide(eta=dict.fromkeys("ab"[:tasks], "auto"), judge_every=1)
    for _ in range(2):
        primary, loss = w.losses(w.even(0, EXAMPLES)), w.auxiliary(w.even(0, N))
        named = dict(zip("ab"[:tasks], (loss, loss.square()), strict=False))
        with Traffic() as seen:
            guide.backward(
                primary=primary, auxiliary=named, judge=lambda: w.losses(w.even(EXAMPLES, N))
            )
    sums = sorted(size for name, size in seen.sizes if name in SUMS and size >= 4 * REST)
    return sums, sum("scatter" in name for name, _ in seen.sizes) // 2


def count():
    return {
        "judged": {
            (kind, tasks): judged(kind, tasks) for kind in ("ddp", "fsdp") for tasks in (1, 2)
        },
        "ddp": {name: steps("ddp", options) for name, options in GUIDES.items()},
        "fsdp": {name: steps("fsdp", options) for name, options in GUIDES.items()},
        "windows": windows(),
    }


@pytest.fixture(scope="module")
def counted():
    return run(2, count)[0]


def total(sizes, *names):
    return sum(size for name, size in sizes if name in names)


@pytest.mark.parametrize("name", GUIDES)
def test_bytes_of_replicas(counted, name):
    options = GUIDES[name]
    _, plain, refreshing = counted["ddp"][name]
    # Nothing else, and no reduction by the wrapper.
    assert {kind for kind, _ in plain + refreshing} <= SUMS
    assert total(plain, *SUMS) == replicas_step(options, norms=name == "always") + CALLS
    # One exchange of the size of the model in a step, which what is not decomposed is part of; a
    # second only where needed.
    large = sorted(size for _, size in plain if size >= 4 * REST)
    second = name in ("canonical", "include_mean", "always", "two tasks, include_mean")
    assert large == [*[4 * D] * second, 4 * (D + REST)]
    sums = replicas_step(options, norms=True) + replicas_refresh(options)
    assert total(refreshing, *SUMS) == sums + CALLS


@pytest.mark.parametrize(("tasks", "vectors"), [(1, 3), (2, 5)])
def test_bytes_of_steps_that_use_judges(counted, tasks, vectors):
    sums, passes = counted["judged"]["ddp", tasks]
    assert sums == [*[4 * D] * (vectors - 1), 4 * (D + REST)] and passes == 0
    sums, passes = counted["judged"]["fsdp", tasks]
    assert not sums and passes == tasks + 2


@pytest.mark.parametrize("name", GUIDES)
def test_bytes_of_shards(counted, name):
    options = GUIDES[name]
    _, plain, refreshing = counted["fsdp"][name]
    assert total(plain, "allreduce_") == shards_step(options) + CALLS
    assert max(size for kind, size in plain if kind == "allreduce_") < 4 * D / 2
    # A reduce-scatter per backward pass and group of parameters (the body, and the rest).
    passes = 1 + tasks_of(options)
    assert len([1 for kind, _ in plain if "scatter" in kind]) == 2 * passes
    # And an all-gather of the body, which was resharded after the forward pass.
    assert sum(size == 4 * D for kind, size in plain if "gather" in kind) == passes
    more = {"exact": EXAMPLES, "canonical": 0}.get(options.get("basis"), K)
    assert len([1 for kind, _ in refreshing if "scatter" in kind]) == 2 * (passes + more)
    if name != "exact":
        exchanged = shards_step(options) + shards_refresh(options) + CALLS
        assert total(refreshing, "allreduce_") == exchanged


def test_micro_batches_exchange_gradients_only_in_combine(counted):
    counts = 8 * W
    (_, _), (calls, combined) = counted["windows"]
    # The calls are compared, and how many examples each worker has.
    assert calls == [[("allreduce_", CALLS), ("allreduce_", counts)]] * 6
    assert total(combined, *SUMS) == replicas_step({}) - 2 * counts + CALLS
    first, _ = counted["windows"][0]
    large = [size for sizes in first[:3] for _, size in sizes if size >= 4 * REST]
    assert not large  # rows of the basis are summed once, when the basis is fixed
    assert [size for _, size in first[3]].count(4 * K * D) == 1
