"""Workers with a shard of every parameter each (FSDP2): what they do and refuse."""

import shutil
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from attittud import Eta, Guide, checkpoint
from attittud.workers.shards import _check_not_offloaded
from tests.helpers.oracle import error
from tests.helpers.processes import run
from tests.helpers.scenarios import ETA, M, N, World, message_of, sharded, twenty_steps, whole
from tests.helpers.zoo import problem


def mixed_precision(eta):
    """Gradients of a step under a bf16 policy, by the guide and by plain FSDP2."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    found, dtypes = [], set()
    for guided in (True, False):
        p = problem("mlp", m=8, n=8)
        model = sharded(p.model, mp_policy=policy)
        p.model.body[0].register_forward_hook(lambda _, __, output: dtypes.add(output.dtype))
        half = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
        guide = Guide(model, eta=eta, primary_weight=0.5, rank=2)
        for at in (half, half):
            primary = F.cross_entropy(
                model(p.xp[at], "primary").float(), p.yp[at], reduction="none"
            )
            auxiliary = F.cross_entropy(model(p.xa[at], "auxiliary").float(), p.ya[at])
            model.zero_grad()
            if guided:
                guide.backward(primary=primary, auxiliary=auxiliary)
            else:
                (auxiliary + 0.5 * primary.mean()).backward()
        # The head of the primary task has weight 1 whatever primary_weight is.
        found.append(
            {
                n: whole(q.grad) * (1 if guided or "primary" not in n else 2)
                for n, q in model.named_parameters()
            }
        )
    assert dtypes == {torch.bfloat16}
    return found


def refusals():
    """Messages of what sharded models do not allow."""
    w = World("fsdp")
    at = slice(0, 4)
    found = {}

    def attempt(name, call):
        found[name] = message_of(call)

    attempt("engine", lambda: w.guide(engine="hooks"))
    other = {"seed": w.number}
    attempt(
        "other",
        lambda: w.guide(**other).backward(primary=w.losses(at), auxiliary=w.problem.loss(at)),
    )
    attempt("none", lambda: w.guide().backward(primary=None, auxiliary=w.problem.loss(at)))
    stranger = nn.Parameter(torch.ones((), dtype=torch.float64))
    attempt(
        "stranger",
        lambda: w.guide().backward(primary=stranger * w.losses(at), auxiliary=w.problem.loss(at)),
    )
    w.model.set_requires_gradient_sync(False)
    attempt("sync", lambda: w.guide().backward(primary=w.losses(at), auxiliary=w.problem.loss(at)))
    w.model.set_requires_gradient_sync(True)
    w.model.set_gradient_divide_factor(1.0)
    attempt(
        "divide", lambda: w.guide().backward(primary=w.losses(at), auxiliary=w.problem.loss(at))
    )
    partly = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3))
    fully_shard(partly[0], mesh=init_device_mesh("cpu", (2,)))
    attempt("partly", lambda: Guide(partly, eta=ETA))
    late = problem("mlp", m=8, n=8)
    guide = Guide(late.model, eta=ETA)
    guide.backward(primary=late.losses(at), auxiliary=late.loss(at))
    # after a forward pass, parameters look whole
    late.model = sharded(late.model, reshard_after_forward=False)
    attempt("late", lambda: guide.backward(primary=late.losses(at), auxiliary=late.loss(at)))
    inner, x = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3)), torch.randn(4, 3)
    inner_guide, larger = Guide(inner, eta=ETA), nn.Sequential(inner)
    fully_shard(larger, mesh=init_device_mesh("cpu", (2,)), reshard_after_forward=False)
    attempt(
        "inside", lambda: inner_guide.backward(larger(x).square().mean(1), larger(-x).cos().mean())
    )
    return found


def leaves_no_trace():
    """`.grad` adds up as with `Tensor.backward`, and what lay there during a refresh is kept."""
    w = World("fsdp")
    guide = w.guide(refresh_every=1)
    at = w.share(0, 12)
    guide.backward(primary=w.losses(at), auxiliary=w.auxiliary(w.share(0, 12)))
    first = {name: whole(p.grad) for name, p in w.inner.named_parameters()}
    guide.backward(primary=w.losses(at), auxiliary=w.auxiliary(w.share(0, 12)))
    return first, {name: whole(p.grad) for name, p in w.inner.named_parameters()}


def made_between_passes():
    """A guide made after the forward pass, when FSDP2 may show whole parameters."""
    w = World("fsdp kept")
    primary, auxiliary = w.losses(w.share(0, M)), w.auxiliary(w.share(0, N))
    hidden = not any(hasattr(parameter, "to_local") for parameter in w.model.parameters())
    w.take(w.guide().backward(primary=primary, auxiliary=auxiliary))
    return hidden, w.grads


def train(kind, first, steps, folder=None, save=False, **options):
    """Some steps of a run; from a checkpoint if first > 0, into one if asked."""
    w = World(kind)
    guide = w.guide(refresh_every=5, **options)
    saved = {"model": dict(w.inner.named_parameters())}
    if first:
        dcp.load(saved, checkpoint_id=folder)
        checkpoint.load(guide, f"{folder}/files")
    for i in range(first, first + steps):
        at = w.share(i % 6, i % 6 + 18)
        w.take(
            guide.backward(primary=w.losses(at), auxiliary=w.auxiliary(w.share(i % 6, i % 6 + 18)))
        )
    if save:
        dcp.save(saved, checkpoint_id=folder)
        for _ in range(2):  # the second time over what is there already
            checkpoint.save(guide, f"{folder}/files")
            dist.barrier()
            (
                Path(folder) / "files" / "basis" / f"shard-0000{8 + dist.get_rank()}.safetensors"
            ).write_bytes(b"stale")
            dist.barrier()
        checkpoint.save(guide, f"{folder}/files")
    state = guide.state_dict()
    return {
        "grads": w.grads,
        "refreshed": [r["refreshed"] for r in w.reports],
        "state": state if kind == "one" else None,
    }


def in_a_hurry(kind, folder):
    """Two workers that save and load at different speeds; then one of them has a damaged file."""
    w = World(kind)
    guide = w.guide()
    w.take(guide.backward(primary=w.losses(w.share(0, M)), auxiliary=w.auxiliary(w.share(0, N))))
    before, read_json, messages = guide.subspace.rows.clone(), checkpoint.read_json, []

    def slowly(path):
        time.sleep(0.3 * w.number)
        return read_json(path)

    time.sleep(0.5 * (1 - w.number))  # the first worker, which writes, comes last
    for _ in range(2):
        checkpoint.save(guide, folder)
        checkpoint.read_json = (
            slowly  # the first worker saves again while the second one would still read
        )
        messages.append(message_of(partial(checkpoint.load, guide, folder)))
    checkpoint.read_json = read_json
    dist.barrier()
    own = shutil.copytree(folder, f"{folder} of worker {w.number}", dirs_exist_ok=True)
    if w.number == 1:
        (Path(own) / "guide.json").write_text("{")
    messages.append(message_of(partial(checkpoint.load, guide, own)))
    return messages, torch.equal(guide.subspace.rows, before)


pytestmark = pytest.mark.slow
BEFORE, AFTER = 7, 5  # a refresh at 0, 5 and 10

FEW = {"rank": 30}  # more than there are examples: the basis has fewer rows


def behaviour(folder):
    train("fsdp", 0, BEFORE, f"{folder}/few", save=True, **FEW)
    train("fsdp", 0, BEFORE, f"{folder}/fsdp", save=True)
    train("ddp", 0, BEFORE, f"{folder}/ddp", save=True)
    return {
        "mixed": mixed_precision(Eta(1, 1, 1)),
        "refusals": refusals(),
        "trace": leaves_no_trace(),
        "twenty": twenty_steps(World("fsdp", torch.float32)),
        "between": made_between_passes(),
        "in a hurry": in_a_hurry("fsdp", f"{folder}/hurry"),
        "resumed": {
            "fsdp": train("fsdp", BEFORE, AFTER, f"{folder}/fsdp"),
            "ddp": train("ddp", BEFORE, AFTER, f"{folder}/fsdp"),
            "fsdp from ddp": train("fsdp", BEFORE, AFTER, f"{folder}/ddp"),
        },
        "few": train("fsdp", BEFORE, AFTER, f"{folder}/few", **FEW),
    }


def on_four(folder):
    return {
        "twenty": [twenty_steps(World(kind, torch.float32)) for kind in ("ddp", "hsdp")],
        "resumed": {
            kind: train(kind, BEFORE, AFTER, f"{folder}/fsdp") for kind in ("fsdp", "hsdp")
        },
        "few": train("hsdp", BEFORE, AFTER, f"{folder}/few", **FEW),
    }


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as path:
        yield path


@pytest.fixture(scope="module")
def behaved(folder):
    return run(2, behaviour, folder, limit=120)


@pytest.fixture(scope="module")
def four(folder, behaved):
    """They continue from a checkpoint of two workers."""
    assert behaved
    return run(4, on_four, folder, limit=120)


def test_mixed_precision_policy_is_respected(behaved):
    for guided, plain in (found["mixed"] for found in behaved):
        assert error(guided, plain) < 5e-3  # products in bf16, rounded in another order
        assert all(g.dtype == torch.float32 for g in guided.values())


@pytest.mark.parametrize(
    ("name", "words"),
    {
        "engine": "engine",
        "other": "workers [1]",
        "none": "losses[:0]",
        "stranger": "outside",
        "sync": "set_requires_gradient_sync",
        "divide": "set_gradient_divide_factor",
        "partly": "fully_shard",
        "late": "fully_shard",
        "inside": "fully_shard",
    }.items(),
)
def test_unsupported_settings_are_refused_with_a_cure(behaved, name, words):
    for found in behaved:
        assert words in found["refusals"][name]


def test_shards_offloaded_to_another_device_are_refused():
    """Checked without a model: without a GPU all of it is on the CPU."""
    _check_not_offloaded("cpu", "cpu")
    with pytest.raises(ValueError, match="CPUOffloadPolicy"):
        _check_not_offloaded("cpu", "cuda")


def test_updates_add_to_an_existing_grad(behaved):
    for first, second in (found["trace"] for found in behaved):
        w = World("one")
        guide = w.guide(refresh_every=1)
        for want in (first, second):
            guide.backward(primary=w.losses(slice(0, 12)), auxiliary=w.auxiliary(slice(0, 12)))
            assert error(want, w.problem.grads()) < 1e-10


def test_parameters_equal_one_process_after_twenty_steps(behaved):
    want = twenty_steps(World("one", torch.float32))
    for found in behaved:
        assert all(torch.equal(found["twenty"][name], behaved[0]["twenty"][name]) for name in want)
        assert error(found["twenty"], want) < 1e-3


@pytest.mark.nightly
def test_parameters_of_four_workers_equal_one_process_after_twenty_steps(four):
    want = twenty_steps(World("one", torch.float32))
    for found in four:
        for mine, theirs in zip(found["twenty"], four[0]["twenty"], strict=True):
            assert all(torch.equal(mine[name], theirs[name]) for name in want)
            assert error(mine, want) < 1e-3


def test_a_guide_may_be_made_between_forward_and_backward_pass(behaved):
    w = World("one")
    w.take(w.guide().backward(primary=w.losses(slice(0, M)), auxiliary=w.auxiliary(slice(0, N))))
    for hidden, grads in (found["between"] for found in behaved):
        assert hidden and error(grads[0], w.grads[0]) < 1e-10


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # of dcp in one process
def test_a_checkpoint_can_be_loaded_by_another_number_and_kind_of_workers(behaved, folder):
    undisturbed = train("one", 0, BEFORE + AFTER)
    again = {
        f"one from {kind}": train("one", BEFORE, AFTER, f"{folder}/{kind}")
        for kind in ("fsdp", "ddp")
    }
    for resumed in [again, *(found["resumed"] for found in behaved)]:
        for name, run_ in resumed.items():
            assert_goes_on(name, run_, undisturbed)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # of dcp in one process
def test_a_checkpoint_of_two_workers_can_be_loaded_by_four(four):
    undisturbed = train("one", 0, BEFORE + AFTER)
    few = train("one", 0, BEFORE + AFTER, **FEW)
    for found in four:
        for name, run_ in found["resumed"].items():
            assert_goes_on(name, run_, undisturbed)
        assert_goes_on("few", found["few"], few)


def assert_goes_on(name, run_, undisturbed):
    assert run_["refreshed"] == [False] * 3 + [True, False], name
    for got, expected in zip(run_["grads"], undisturbed["grads"][BEFORE:], strict=True):
        assert error(got, expected) < 1e-10, name


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # of dcp in one process
def test_a_basis_of_fewer_rows_than_its_rank_continues_too(behaved, folder):
    undisturbed = train("one", 0, BEFORE + AFTER, **FEW)
    assert undisturbed["state"]["basis"].shape[0] < FEW["rank"]
    again = train("one", BEFORE, AFTER, f"{folder}/few", **FEW)
    for number, run_ in enumerate([again, *(found["few"] for found in behaved)]):
        assert_goes_on(f"run {number}", run_, undisturbed)


def test_workers_write_only_safetensors_and_json(behaved, folder):
    assert behaved
    files = sorted(
        path.relative_to(f"{folder}/fsdp/files").as_posix()
        for path in Path(folder).glob("fsdp/files/**/*.*")
    )
    shards = [f"basis/shard-0000{number}-model-00001-of-00001.safetensors" for number in (1, 2)]
    assert files == [*shards, "guide.json"]


def test_workers_wait_for_each_other_and_fail_together(behaved, folder):
    for messages, same in (found["in a hurry"] for found in behaved):
        assert messages[:2] == ["no error"] * 2 and same
        assert messages[2].startswith(f"{folder}/hurry of worker 1/guide.json: ")


class Narrow(nn.Module):
    """Layers with a single output."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.primary, self.auxiliary = nn.Linear(4, 1), nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, x: torch.Tensor, head: str) -> torch.Tensor:
        return getattr(self, head)(torch.tanh(self.body(x)))[:, 0].square()


def empty_shards():
    """Gradients of two refreshes, in three verbs. The second worker has no element of any layer."""
    torch.manual_seed(0)
    model = Narrow().double()
    if dist.get_world_size() > 1:  # the processor also where there is a GPU: the workers use gloo
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    guide = Guide(model, eta=ETA, rank=5, refresh_every=1)
    number, count = dist.get_rank(), dist.get_world_size()
    found = []
    for m in (8, 4):  # the second time fewer examples than rows are stored
        x = torch.randn(m, 4, dtype=torch.float64)
        at = slice(number * m // count, (number + 1) * m // count)
        model.zero_grad()
        guide.primary(model(x[at], "primary"))
        guide.auxiliary(model(x[at] + 1, "auxiliary"))
        guide.combine()
        found.append(
            (
                {name: whole(p.grad) for name, p in model.named_parameters()},
                list(guide.shared_parameters),
            )
        )
    return found


def test_workers_without_elements_of_some_parameters_work():
    """They too learn which parameters are the primary task's own; else sums differ in size."""
    (alone,) = run(1, empty_shards)
    for worker in run(2, empty_shards, limit=60):
        for (grads, shared), (expected, expected_shared) in zip(worker, alone, strict=True):
            assert shared == expected_shared == ["body.weight", "body.bias"]
            assert error(grads, expected) < 1e-12
