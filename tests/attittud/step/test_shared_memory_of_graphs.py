"""A guide remembers facts from step to step: whatever changes, its updates equal the updates of a
guide without memory.

Under autocast the other guide also lets torch convert gradients back.
"""

import gc
import pickle
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from attittud import Eta, Guide
from attittud.autograd import layout
from attittud.engine import base
from attittud.step.shared import GraphMemory
from tests.helpers.watch import Holding

STEPS = 8


class Network(nn.Module):
    """A body of blocks that can be left out, two heads, and whatever a test adds."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()) for _ in range(3)
        )
        self.heads = nn.ModuleDict({name: nn.Linear(4, 3) for name in ("primary", "a")})
        self.skipped = set[int]()
        self.reentrant: bool | None = None

    def features(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for number, block in enumerate(self.blocks):
            if number not in self.skipped:
                plain = self.reentrant is None
                x = x + (block(x) if plain else checkpoint(block, x, use_reentrant=self.reentrant))
        return x.mean((2, 3))


class Run:
    """A model, its guide, and the losses of a step."""

    def __init__(self, **options: object) -> None:
        torch.manual_seed(0)
        self.model = Network()
        self.x, self.y = torch.randn(6, 2, 5, 5), torch.randint(3, (6,))
        self.guide = Guide(
            self.model,
            eta=Eta(1, 0.5, -1),
            primary_weight=0.3,
            rank=3,
            refresh_every=5,
            engine="loop",
            **options,
        )
        self.together = self.ahead = self.always = False
        self.verbs = False
        self.half: torch.dtype | None = None

    def losses(self) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.autocast("cpu", self.half or torch.bfloat16, enabled=self.half is not None):
            return self.forward()

    def forward(self) -> tuple[Tensor, dict[str, Tensor]]:
        model, x = self.model, self.x
        dtype = model.stem.weight.dtype
        features = model.features(x.to(dtype))

        def others() -> Tensor:
            return model.features(2 * x.to(dtype))

        ahead = others() if self.always or (self.ahead and not self.together) else features
        losses = F.cross_entropy(model.heads["primary"](features), self.y, reduction="none")
        if not self.together and not self.ahead:
            ahead = others()
        taken = features if self.together else ahead
        return losses, {"a": model.heads["a"](taken).square().mean()}

    def step(self) -> list[Tensor | None]:
        self.model.zero_grad()
        losses, tasks = self.losses()
        if self.verbs:
            self.guide.primary(losses, retain_graph=self.together)
            self.guide.auxiliary(tasks)
            self.guide.combine()
        else:
            self.guide.backward(primary=losses, auxiliary=tasks)
        with torch.no_grad():  # so that every step is another one
            for p in self.model.parameters():
                p.add_(0.01 * torch.ones_like(p))
        return [None if p.grad is None else p.grad.clone() for p in self.model.parameters()]


def freeze(run: Run, number: int) -> None:
    run.model.blocks[1].requires_grad_(number < 3)


def layer_drop(run: Run, number: int) -> None:
    run.model.skipped = {number % 4}


def one_forward_in_turn(run: Run, number: int) -> None:
    """The forward passes come first, so there are as many nodes between these losses."""
    run.ahead, run.together = True, number % 2 == 1


def features_chosen(run: Run, number: int) -> None:
    """Both forward passes are made, so there are as many nodes whichever the task takes."""
    run.ahead, run.always, run.together = True, True, number % 2 == 1


def channels_last(run: Run, number: int) -> None:
    if number == 3:
        run.model.to(memory_format=torch.channels_last)


def pickled(run: Run, number: int) -> None:
    if number == 3:
        run.model, run.guide = pickle.loads(pickle.dumps((run.model, run.guide)))


def replaced(run: Run, number: int) -> None:
    if number == 3:
        run.model.blocks[0][0].weight = nn.Parameter(run.model.blocks[0][0].weight.detach().clone())


def module_added(run: Run, number: int) -> None:
    if number == 3:
        torch.manual_seed(1)
        run.model.blocks.append(nn.Conv2d(4, 4, 1))


def by_verbs(run: Run, number: int) -> None:
    run.verbs, run.model.skipped = True, {number % 4}


def autocast_later(run: Run, number: int) -> None:
    run.half = None if number < 3 else torch.bfloat16


CHANGES: list[Callable[[Run, int], None]] = [
    freeze,
    layer_drop,
    one_forward_in_turn,
    features_chosen,
    channels_last,
    pickled,
    replaced,
    module_added,
    by_verbs,
    autocast_later,
]


@pytest.fixture
def nothing_remembered() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GraphMemory, "recall", lambda self, losses: None)
        for module in (base, layout):
            patch.setattr(module, "unconverted", lambda loss, layout, parameters: list(parameters))
        yield


def updates(
    change: Callable[[Run, int], None], half: torch.dtype | None
) -> list[list[Tensor | None]]:
    run, found = Run(), []
    run.half = half
    for number in range(STEPS):
        change(run, number)
        found.append(run.step())
    return found


CASES = [(change, None) for change in CHANGES]
CASES += [(change, torch.bfloat16) for change in (layer_drop, by_verbs, features_chosen)]


@pytest.mark.parametrize(("change", "half"), CASES)
def test_updates_equal_the_updates_of_a_guide_without_memory(change, half, request):
    found = updates(change, half)
    request.getfixturevalue("nothing_remembered")
    wanted = updates(change, half)
    for number, (got, want) in enumerate(zip(found, wanted, strict=True)):
        assert [g is None for g in got] == [g is None for g in want], number
        for a, b in zip(got, want, strict=True):
            assert a is None or torch.equal(a, b), number


@pytest.mark.parametrize("verbs", [False, True])
def test_reentrant_checkpointing_that_is_switched_on_is_refused_at_once(verbs):
    """Its parameters would silently get no gradient."""
    run = Run()
    run.verbs = verbs
    run.step()
    run.step()
    run.model.reentrant = True
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        run.step()
    run.model.reentrant = False
    run.step()


def test_a_deleted_guide_keeps_no_tensor_alive():
    run = Run()
    run.step()
    run.step()
    kept = [
        weakref.ref(x)
        for x in (run.guide, run.model, run.model.stem.weight, run.guide.subspace.rows)
    ]
    run.model.zero_grad()
    del run
    gc.collect()
    assert [reference() for reference in kept] == [None] * 4


class Mark:
    """An object that lives as long as a node of a graph."""


def test_no_graph_is_kept_alive_after_a_step():
    run = Run()
    run.half = torch.bfloat16
    for _ in range(3):
        marks = [Mark(), Mark()]
        losses, tasks = run.losses()
        losses, tasks = Holding.apply(losses, marks[0]), {"a": Holding.apply(tasks["a"], marks[1])}
        alive = list(map(weakref.ref, marks))
        del marks
        gc.collect()
        assert None not in [reference() for reference in alive]  # the graphs hold them
        run.guide.backward(primary=losses, auxiliary=tasks)
        del losses, tasks
        gc.collect()
        assert [reference() for reference in alive] == [None, None]
