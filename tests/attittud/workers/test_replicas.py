"""Workers with a replica of the model each: what they do and refuse."""

import functools
import warnings

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from attittud import Eta, Guide
from attittud.workers.replicas import Replicas
from tests.helpers.oracle import error
from tests.helpers.processes import run
from tests.helpers.scenarios import ETA, N, World, message_of, twenty_steps

OTHER_CALLS = ("refresh", "basis_losses", "a task", "micro-batches", "frozen", "parameters")

pytestmark = pytest.mark.slow  # processes of two and four workers


def differing():
    """Messages where workers do not fit together; each leaves no exchange half done."""
    w = World("ddp")
    at = w.share(0, 12)

    def backward(auxiliary=None, **options):
        tasks = w.problem.loss(w.even(0, 12)) if auxiliary is None else auxiliary
        return lambda: w.guide(**options).backward(primary=w.losses(at), auxiliary=tasks)

    def changed(change):
        """The message where worker 1 starts from a weight that `change` changed."""
        other = World("group")
        if other.number == 1:
            with torch.no_grad():
                change(other.inner.body[0].weight)
        return message_of(
            lambda: other.guide().backward(
                primary=other.losses(at), auxiliary=other.problem.loss(other.even(0, 12))
            )
        )

    loss = w.auxiliary(w.share(0, 12))
    return {
        "parameters": changed(lambda weight: weight[0, 0].add_(0.01)),
        "signs": changed(lambda weight: weight.neg_()),
        "rows in another order": changed(lambda weight: weight.copy_(weight.flip(0))),
        "columns turned": changed(
            lambda weight: weight.copy_(
                weight @ torch.linalg.qr(torch.randn_like(weight.T @ weight))[0]
            )
        ),
        "seed": message_of(backward(seed=w.number)),
        "a name less": message_of(backward({"a": loss, "b": loss} if w.number else {"a": loss})),
        "another name": message_of(backward({"b" if w.number else "a": loss})),
    }


def other_call(name):
    """The message where worker 1 makes another call than worker 0, and whether it left a `.grad`.

    Without a check, torch ends the process for sums of different sizes, and sums of the same size
    mix other things.
    """
    w = World("ddp")
    odd = w.number == 1
    only = list(w.inner.body.parameters()) if name == "parameters" and odd else None
    guide = w.guide(refresh_every=9, parameters=only)
    at, even = w.share(0, 12), w.even(0, 12)

    def backward(names="ab", **options):
        losses = {"a": w.problem.loss(even), "b": w.auxiliary(at)}
        guide.backward(w.losses(at), {task: losses[task] for task in names}, **options)

    def micro_batches(primaries, auxiliaries):
        for _ in range(primaries):
            guide.primary(w.losses(at) / primaries)
        for _ in range(auxiliaries):
            guide.auxiliary({"a": w.problem.loss(even) / auxiliaries})
        guide.combine()

    calls = {
        "refresh": lambda: backward(refresh=True if odd else None),
        "basis_losses": lambda: backward(
            refresh=True, basis_losses=(lambda: w.losses(at)) if odd else None
        ),
        "a task": lambda: backward("a" if odd else "ab"),
        "micro-batches": lambda: micro_batches(*((1, 2) if odd else (2, 1))),
    }
    if name != "parameters":
        backward("ab")
        backward("a")
        w.optimizer.zero_grad()
    w.inner.heads["primary"].bias.requires_grad_(name != "frozen" or not odd)
    message = message_of(calls.get(name, backward))
    return message, any(p.grad is not None for p in w.inner.parameters())


def alone():
    """A guide around the bare module of a DistributedDataParallel model."""
    w = World("ddp")
    guide = Guide(w.inner, eta=ETA, rank=3)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            guide.backward(primary=w.problem.losses(), auxiliary=w.problem.loss())
            w.optimizer.zero_grad()
    return [str(warning.message) for warning in told]


# between refreshes, no primary losses
UNNEEDED = {"eta": Eta(1, 0, 0), "primary_weight": 0.0, "refresh_every": 5}


def without_primary(kind, verbs):
    """Gradients of three steps: all workers have primary losses, only the first has, none has."""
    w = World(kind)
    guide = w.guide(**UNNEEDED)
    for i in range(3):
        at = [w.share(0, 12), w.share(0, 8, [1] + [0] * (w.size - 1)), slice(0, 0)][i]
        primary = w.losses(at) if at.start < at.stop else None
        auxiliary = w.auxiliary(w.even(0, N))
        assert guide.primary_due == (i == 0)
        if verbs:
            guide.primary(primary)
            guide.auxiliary(auxiliary)
            w.take(guide.combine())
        else:
            w.take(guide.backward(primary=primary, auxiliary=auxiliary))
    return w.grads


def missing_tasks(kind):
    """The gradients of five steps. The auxiliary head has a task of its own, which is missing in
    some of them, also in the one with a refresh.
    """
    w = World(kind)
    guide = w.guide(refresh_every=3)
    for tasks in ("ab", "a", "ab", "a", "ab"):
        at = w.even(0, N)
        losses = {
            "a": w.inner(w.problem.xa[at], "primary").square().mean(1),
            "b": w.auxiliary(at),
        }
        primary = w.losses(w.share(0, 12))
        w.take(guide.backward(primary, {name: losses[name] for name in tasks}))
    return w.grads


def without_any_primary(kind):
    """Messages of steps in which no worker has primary examples."""
    w = World(kind)
    guide = w.guide(refresh_every=9)
    first = message_of(lambda: guide.backward(None, w.auxiliary(w.even(0, N))))
    guide = w.guide(refresh_every=9)
    guide.backward(primary=w.losses(w.share(0, 12)), auxiliary=w.auxiliary(w.even(0, N)))
    w.optimizer.zero_grad()

    def verbs():
        guide.primary(None)
        guide.auxiliary(w.auxiliary(w.even(0, N)))
        guide.combine()

    return [
        first,
        message_of(lambda: guide.backward(None, w.auxiliary(w.even(0, N)))),
        message_of(verbs),
        any(p.grad is not None for p in w.inner.parameters()),
    ]


def drifting(kind):
    """Messages of four steps; after the first, a parameter of worker 1 changes."""
    w = World(kind)
    guide = w.guide(refresh_every=3)
    messages = []
    for i in range(4):
        step = functools.partial(
            guide.backward, w.losses(w.share(0, 12)), w.problem.loss(w.even(0, 12))
        )
        messages.append(message_of(step))
        w.optimizer.step()
        w.optimizer.zero_grad()
        if i == 0 and w.number == 1:
            with torch.no_grad():
                w.inner.body[0].bias[0] += 1e-4
    return messages


def behaviour():
    """Several checks that share one group of processes; each entry has its own test."""
    found = {"twenty": twenty_steps(World("ddp", torch.float32))}
    w = World("ddp")
    guide = w.guide()
    guide.backward(primary=w.losses(w.share(0, 12)), auxiliary=w.problem.loss(w.even(0, 12)))
    w.optimizer.zero_grad()
    found["state"] = guide.state_dict()
    found["differing"] = differing()
    found["other calls"] = {name: other_call(name) for name in OTHER_CALLS}
    found["alone"] = alone()
    found["drifting"] = [drifting(kind) for kind in ("ddp", "group")]
    found["without primary"] = {
        verbs: without_primary("ddp", verbs=verbs) for verbs in (False, True)
    }
    found["no primary"] = without_any_primary("ddp")
    found["missing tasks"] = missing_tasks("ddp")
    return found


@pytest.fixture(scope="module")
def behaved():
    return run(2, behaviour)


def test_parameters_are_bitwise_equal_after_twenty_steps(behaved):
    first, second = (found["twenty"] for found in behaved)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert error(first, twenty_steps(World("one", torch.float32))) < 1e-3


def test_workers_that_differ_are_noticed(behaved):
    for found in behaved:
        for name, message in found["differing"].items():
            assert "workers [1]" in message, name


def test_workers_that_make_other_calls_are_refused_on_all_of_them(behaved):
    for found in behaved:
        for name, (message, touched) in found["other calls"].items():
            assert "workers [1]" in message and not touched, name


def test_a_guide_that_trains_alone_among_workers_warns_once(behaved):
    for found in behaved:
        (message,) = found["alone"]
        assert "process_group=" in message


class Version1(nn.Module):
    """A stand-in: a real one needs a process group."""

    __class__ = FullyShardedDataParallel


@pytest.mark.parametrize("wrapper", [Version1, type("DeepSpeedEngine", (nn.Module,), {})])
def test_wrappers_that_hide_parameters_are_refused(wrapper):
    with pytest.raises(ValueError, match="fully_shard"):
        Guide(nn.Sequential(nn.Linear(2, 2), wrapper()), eta=ETA)


def test_state_equals_the_state_of_one_process(behaved):
    """Workers hold the same V, and one process can go on with it."""
    w = World("one")
    guide = w.guide()
    guide.backward(primary=w.losses(slice(0, 12)), auxiliary=w.problem.loss(slice(0, 12)))
    for found in behaved:
        assert torch.equal(found["state"]["basis"], behaved[0]["state"]["basis"])
        assert torch.allclose(found["state"]["basis"], guide.state_dict()["basis"], atol=1e-12)
    guide.load_state_dict(behaved[0]["state"])


@pytest.mark.parametrize("verbs", [False, True])
def test_workers_decide_together_whether_a_step_has_primary_losses(behaved, verbs):
    """Where no step needs primary losses, some workers may have them and others not."""
    alone = without_primary("one", verbs)
    assert ["heads.primary.weight" in grads for grads in alone] == [True, True, False]
    for found in behaved:
        for ours, expected in zip(found["without primary"][verbs], alone, strict=True):
            assert ours.keys() == expected.keys()
            assert error(ours, expected) < 1e-12


def test_parameters_of_a_missing_task_get_no_gradient(behaved):
    """As in one process: zeros would let weight decay and momentum move the parameters."""
    alone = missing_tasks("one")
    wanted = [True, False, True, False, True]
    assert ["heads.auxiliary.weight" in grads for grads in alone] == wanted
    for found in behaved:
        for ours, expected in zip(found["missing tasks"], alone, strict=True):
            assert ours.keys() == expected.keys()
            assert error(ours, expected) < 1e-12


def test_steps_in_which_no_worker_has_primary_examples_are_refused(behaved):
    """Every direction counted as helpful."""
    for found in behaved:
        *messages, touched = found["no primary"]
        assert all("no worker has primary examples" in text for text in messages) and not touched


def test_replicas_that_drift_are_refused_at_the_next_refresh(behaved):
    for found in behaved:
        for *before, last in found["drifting"]:
            assert before == ["no error"] * 3
            assert "workers [1]" in last and "drifted" in last


def test_checksums_tell_the_same_parameters_in_another_order_apart():
    """Each worker would find the parameters of the others under other names."""
    workers = Replicas.__new__(Replicas)  # without a process group
    workers.size, workers.number, workers.device = 1, 0, torch.device("cpu")
    first, second = (nn.Parameter(torch.full((3,), value)) for value in (1.0, 2.0))
    one = workers._checksums([("a", first), ("b", second)])
    assert torch.equal(one, workers._checksums([("a", first), ("b", second)]))
    assert not torch.equal(one, workers._checksums([("a", second), ("b", first)]))
