"""The formulas of docs/appendix/traffic.md against the collectives that two workers dispatch."""

from pathlib import Path

import pytest
import torch

from attittud import Eta
from benchmarks import traffic
from tests.helpers.processes import run
from tests.helpers.scenarios import N, World
from tests.helpers.watch_traffic import Traffic

DOCS = Path(__file__).parents[2] / "docs" / "appendix" / "traffic.md"


SHARED, REST = 78, 6 * 7 + 7  # of the model "mlp": its body, and the two heads


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


def steps(kind, options):
    """The collectives of three steps: with a refresh that also agrees on shared parameters, without
    a refresh, and with one.
    """
    w = World(kind, torch.float32)
    guide = w.guide(**options)
    found = []
    for _ in range(3):
        primary = w.losses(w.even(0, 18))
        loss = w.auxiliary(w.even(0, N))
        tasks = {"a": loss, "b": loss.square()} if "eta" in options else loss
        with Traffic() as seen:
            guide.backward(primary=primary, auxiliary=tasks)
        found.append(seen.sizes)
        w.optimizer.step()
        w.optimizer.zero_grad()
    return found


def windows():
    """Accumulation: what each call exchanges."""
    w = World("ddp", torch.float32)
    guide = w.guide()
    found = []
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
        found.append((calls, seen.sizes))
        w.optimizer.zero_grad()
    return found


def judged(kind, tasks):
    """The large collectives of a step that asks the judges, and its backward passes."""
    w = World(kind, torch.float32)
    guide = w.guide(eta=dict.fromkeys("ab"[:tasks], "auto"), judge_every=1)
    for _ in range(2):
        primary, loss = w.losses(w.even(0, 18)), w.auxiliary(w.even(0, N))
        named = dict(zip("ab"[:tasks], (loss, loss.square()), strict=False))
        with Traffic() as seen:
            guide.backward(primary=primary, auxiliary=named, judge=lambda: w.losses(w.even(18, N)))
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


def setting(options):
    return traffic.Setting(
        SHARED,
        REST,
        workers=2,
        rank=options.get("rank", 3),
        tasks=2 if "eta" in options else 1,
        examples=18,
        tensors=8,
        basis=options.get("basis", "sketch"),
        include_mean=options.get("include_mean", False),
    )


def total(sizes, *names):
    return sum(size for name, size in sizes if name in names)


@pytest.mark.parametrize("name", GUIDES)
def test_bytes_of_replicas(counted, name):
    s = setting(GUIDES[name])
    _, plain, refreshing = counted["ddp"][name]
    assert {
        kind for kind, _ in plain + refreshing
    } <= SUMS  # nothing else, and no reduction by the wrapper
    want = traffic.replicas_step(s, norms=name == "always")
    assert total(plain, *SUMS) == want.large + want.small + CALLS
    # One exchange of the size of the model in a step, which what is not decomposed is part of; a
    # second only where needed.
    large = sorted(size for _, size in plain if size >= 4 * REST)
    seconds = {"canonical": 1, "include_mean": 1, "always": 1, "two tasks, include_mean": 1}.get(
        name, 0
    )
    assert large == [*[4 * SHARED] * seconds, 4 * (SHARED + REST)]
    step, refresh = traffic.replicas_step(s, norms=True), traffic.replicas_refresh(s)
    sums = step.large + step.small + refresh.large + refresh.small
    assert total(refreshing, *SUMS) == sums + CALLS


@pytest.mark.parametrize(("tasks", "vectors"), [(1, 3), (2, 5)])
def test_bytes_of_steps_that_use_judges(counted, tasks, vectors):
    sums, passes = counted["judged"]["ddp", tasks]
    assert sums == [*[4 * SHARED] * (vectors - 1), 4 * (SHARED + REST)] and passes == 0
    sums, passes = counted["judged"]["fsdp", tasks]
    assert not sums and passes == tasks + 2


@pytest.mark.parametrize("name", GUIDES)
def test_bytes_of_shards(counted, name):
    s = setting(GUIDES[name])
    _, plain, refreshing = counted["fsdp"][name]
    assert total(plain, "allreduce_") == traffic.shards_step(s).small + CALLS
    assert max(size for kind, size in plain if kind == "allreduce_") < 4 * SHARED / 2
    scatters = [size for kind, size in plain if "scatter" in kind]
    passes, more = traffic.shards_passes(s)
    # A reduce-scatter per backward pass and group of parameters (the body, and the rest).
    assert len(scatters) == 2 * passes
    # And an all-gather of the body, which was resharded after the forward pass.
    assert sum(size == 4 * SHARED for kind, size in plain if "gather" in kind) == passes
    if s.basis in ("sketch", "mean", "random", "canonical"):
        step, refresh = traffic.shards_step(s), traffic.shards_refresh(s)
        assert total(refreshing, "allreduce_") == step.small + refresh.small + CALLS
    if s.basis in ("sketch", "exact", "mean", "random", "canonical"):
        assert len([1 for kind, _ in refreshing if "scatter" in kind]) == 2 * (passes + more)


def test_micro_batches_exchange_gradients_only_in_combine(counted):
    counts = 8 * 2
    (_, _), (calls, combined) = counted["windows"]
    # The calls are compared, and how many examples each worker has.
    assert calls == [[("allreduce_", CALLS), ("allreduce_", counts)]] * 6
    want = traffic.replicas_step(setting({}))
    assert total(combined, *SUMS) == want.large + want.small - 2 * counts + CALLS
    first, _ = counted["windows"][0]
    large = [size for sizes in first[:3] for _, size in sizes if size >= 4 * REST]
    assert not large  # rows of the basis are summed once, when the basis is fixed
    assert [size for _, size in first[3]].count(4 * 3 * SHARED) == 1


def test_the_table_in_the_docs_follows_the_formulas():
    assert traffic.table() in DOCS.read_text(encoding="utf-8"), (
        "run python -m benchmarks.traffic and paste its table"
    )
