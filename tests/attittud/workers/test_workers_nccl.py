"""One worker with NCCL on a GPU, in bf16: the same gradients as without any process group."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from attittud import Guide
from tests.helpers.oracle import error
from tests.helpers.scenarios import ETA, whole
from tests.helpers.zoo import problem

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def _group(tmp_path_factory):
    torch.cuda.set_device(0)
    meeting = tmp_path_factory.mktemp("nccl") / "meeting"
    dist.init_process_group("nccl", init_method=f"file://{meeting}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def shard(model: nn.Module, **options) -> nn.Module:
    mesh = init_device_mesh("cuda", (1,))
    fully_shard(model.body, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


WRAP = {"plain": lambda model: model, "ddp": DistributedDataParallel, "fsdp": shard}


def gradients(kind, steps=3, name="transformer", **options):
    """Gradients of some training steps under bf16 autocast, and the reports."""
    p = problem(name, m=12, n=12)
    x = [t.cuda() for t in (p.xp, p.yp, p.xa, p.ya)]
    inner = p.model.cuda()
    model = WRAP[kind](inner)
    guide = Guide(
        model, **{"eta": ETA, "primary_weight": 0.1, "rank": 3, "refresh_every": 2} | options
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found, reports = [], []
    for _ in range(steps):
        with torch.autocast("cuda", torch.bfloat16):
            losses = F.cross_entropy(model(x[0], "primary").float(), x[1], reduction="none")
            loss = F.cross_entropy(model(x[2], "auxiliary").float(), x[3])
        reports.append(guide.backward(primary=losses, auxiliary=loss).to_dict())
        found.append({n: whole(q.grad) for n, q in inner.named_parameters()})
        optimizer.step()
        optimizer.zero_grad()
    return found, reports


@pytest.mark.parametrize(
    ("basis", "include_mean"), [("sketch", True), ("exact", False), ("canonical", False)]
)
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_gradients_equal_those_without_a_process_group(kind, basis, include_mean):
    # `loop` on both sides: FSDP2 has no other engine, and in bf16 another order of products is
    # another rounding.
    options = {"basis": basis, "include_mean": include_mean, "engine": "loop"}
    want, stated = gradients("plain", **options)
    got, reports = gradients(kind, **options)
    # The first step starts from the same parameters; later ones carry roundings along.
    for mine, theirs, tolerance in zip(got, want, (1e-5, 1e-3, 1e-2), strict=True):
        assert error(mine, theirs) < tolerance
    assert reports[0]["effective_rank"] == stated[0]["effective_rank"]


def test_ddp_works_with_the_engine_auto_chooses():
    assert error(gradients("ddp", steps=1)[0][0], gradients("plain", steps=1)[0][0]) < 1e-5


def test_the_mixed_precision_policy_is_respected():
    """Parameters in bf16 for the passes, gradients in fp32: as plain FSDP2 has them."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    found = []
    for guided in (True, False):
        p = problem("transformer", m=12, n=12)
        x = [t.cuda() for t in (p.xp, p.yp, p.xa, p.ya)]
        model = shard(p.model.cuda(), mp_policy=policy)
        losses = F.cross_entropy(model(x[0], "primary").float(), x[1], reduction="none")
        loss = F.cross_entropy(model(x[2], "auxiliary").float(), x[3])
        if guided:
            equal = type(ETA)(1, 1, 1)
            Guide(model, eta=equal, rank=2).backward(primary=losses, auxiliary=loss)
        else:
            losses.mean().backward(retain_graph=True)
            loss.backward()
        found.append({n: whole(q.grad) for n, q in model.named_parameters()})
    assert error(*found) < 1e-5
    assert all(g.dtype == torch.float32 for g in found[0].values())


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # that it is a prototype
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_step_does_not_wait_for_the_device(kind):
    """Between refreshes nothing is read back, with workers too."""
    p = problem("mlp", m=12, n=12)
    x = [t.cuda() for t in (p.xp, p.yp, p.xa, p.ya)]
    model = WRAP[kind](p.model.cuda())
    guide = Guide(model, eta=ETA, rank=3, refresh_every=100)
    for i in range(4):
        losses = F.cross_entropy(model(x[0], "primary"), x[1], reduction="none")
        loss = F.cross_entropy(model(x[2], "auxiliary"), x[3])
        torch.cuda.set_sync_debug_mode("error" if i >= 2 else "default")
        try:
            guide.backward(primary=losses, auxiliary=loss)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_cpu_offload_is_refused():
    model = shard(problem("mlp").model, offload_policy=CPUOffloadPolicy())
    with pytest.raises(ValueError, match="fsdp_offload_params"):
        Guide(model, eta=ETA)
