"""Workers that stop taking part, or that disagree: the others get an error, and none of them hangs.

A worker is lost in front of an exchange of the guide; where FSDP2 exchanges parameters in a forward
pass, the error is torch's own.
"""

import time
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from attittud import Eta, Guide, checkpoint
from tests.helpers.processes import outcomes, run
from tests.helpers.scenarios import message_of

pytestmark = pytest.mark.slow  # processes of two and three workers
PATIENCE = 2  # seconds, the time-out of the process group


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x, head):
        return getattr(self, head)(torch.tanh(self.body(x))).square().mean(1)


class Loop:
    """The training loop of a worker."""

    def __init__(self, kind, group=None, **options):
        torch.manual_seed(0)
        self.model = Small().double()
        if kind == "ddp":
            self.model = DistributedDataParallel(self.model)
        if kind == "fsdp":
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))  # also where a GPU is
            fully_shard(self.model, mesh=mesh)
        if kind == "group":
            options["process_group"] = group or dist.group.WORLD
        settings = {"eta": Eta(1, 1, 0), "rank": 2, "refresh_every": 2} | options
        self.guide = Guide(self.model, **settings)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.x = torch.randn(6, 4, dtype=torch.float64)

    def step(self, primary=True):
        losses, tasks = self.model(self.x, "a"), self.model(self.x, "b")
        self.guide.backward(losses if primary else None, tasks)
        self.optimizer.step()
        self.optimizer.zero_grad()


def one_is_lost(kind, how, where, folder):
    """Seconds and message of the call that fails, as the last worker is lost on the way."""
    loop = Loop(kind)
    began = 0.0

    def at(place):
        nonlocal began
        if place == where and dist.get_rank() == dist.get_world_size() - 1:
            if how == "raises":
                raise SystemExit("this worker is lost")
            time.sleep(1.5 * PATIENCE)
            if how == "leaves":
                raise SystemExit("this worker did other things, and is done")
        began = time.monotonic()

    def basis_losses():
        at("refresh")
        return loop.model(loop.x, "a")

    def work():
        loop.step()
        loop.step()
        at("save")
        checkpoint.save(loop.guide, folder)
        at("load")
        checkpoint.load(loop.guide, folder)
        at("step")
        losses, tasks = loop.model(loop.x, "a"), loop.model(loop.x, "b")
        loop.guide.primary(losses, basis_losses=basis_losses)
        at("window")
        loop.guide.auxiliary(tasks)
        at("combine")
        loop.guide.combine()

    message = message_of(work)
    return time.monotonic() - began, message


@pytest.mark.parametrize(
    ("count", "kind", "how", "where"),
    [
        (3, "ddp", "sleeps", "step"),
        (2, "ddp", "raises", "refresh"),
        (3, "ddp", "raises", "window"),
        (3, "group", "leaves", "combine"),
        (2, "fsdp", "sleeps", "window"),
        (3, "group", "sleeps", "load"),
        (2, "ddp", "raises", "load"),
        (3, "fsdp", "raises", "load"),
    ],
)
def test_no_worker_hangs_when_one_stops_taking_part(count, kind, how, where, tmp_path):
    found = outcomes(
        count, one_is_lost, kind, how, where, f"{tmp_path}/guide", patience=PATIENCE, limit=30
    )
    for number, outcome in enumerate(found[:-1]):
        seconds, message = outcome["result"]
        assert seconds < PATIENCE + 3
        assert f"worker {number} of {count}" in message and "Another worker" in message
        assert "init_process_group" in message  # where the time-out is set


def disagree():
    """The messages where the last of three workers differs from the others."""
    odd = dist.get_rank() == 2
    found = {}
    for name, options in {
        "eta": {"eta": Eta(1, 0, 0) if odd else Eta(1, 1, 0)},
        "rank": {"rank": 3 if odd else 2},
        "basis": {"basis": "random" if odd else "sketch"},
        "refresh_every": {"refresh_every": 3 if odd else 2},
        "primary_weight": {"primary_weight": 0.5 if odd else 1.0},
    }.items():
        found[name] = message_of(Loop("group", **options).step)
    loop = Loop("fsdp", eta=Eta(1, 0, 0), primary_weight=0.0)
    loop.step()
    found["primary"] = message_of(lambda: loop.step(primary=not odd))
    found["afterwards"] = message_of(Loop("group").step)
    return found


def test_three_workers_that_disagree_are_all_refused():
    for found in run(3, disagree, limit=60):
        assert found.pop("afterwards") == "no error"
        primary = found.pop("primary")
        assert "1 of 3 workers" in primary and "losses[:0]" in primary
        for name, message in found.items():
            assert "workers [2]" in message, name


def saved_by_a_part(folder):
    """Workers 1 and 2 train a model of their own, which worker 0 knows nothing of."""
    group = dist.new_group([1, 2])
    if dist.get_rank() == 0:
        return "elsewhere"
    loop = Loop("group", group)
    loop.step()
    checkpoint.save(loop.guide, folder)
    other = Loop("group", group)
    checkpoint.load(other.guide, folder)
    return other.guide.state_dict()["refreshes"]


def test_a_part_of_the_workers_saves_and_loads_its_guide_alone(tmp_path):
    found = outcomes(3, saved_by_a_part, f"{tmp_path}/guide", patience=5, limit=30)
    assert [outcome.get("result", outcome.get("error")) for outcome in found] == ["elsewhere", 1, 1]


def saved_alone(folder):
    """Each worker trains a model of its own: the warnings of two ways to save it, and the files."""
    own = Path(folder, str(dist.get_rank()))
    loop = Loop("alone")
    loop.step()
    told = []
    for options in ({}, {"writes": True}):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            checkpoint.save(loop.guide, own, **options)
        told.append((own.exists(), [str(warning.message) for warning in caught]))
    return told


def test_a_guide_that_is_not_saved_says_so(tmp_path):
    first, second = run(2, saved_alone, str(tmp_path))
    assert first == [(True, []), (True, [])]
    (there, (message,)), saved = second
    assert not there and "writes=True" in message and saved == (True, [])
