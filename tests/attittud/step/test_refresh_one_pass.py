"""Where one backward pass of `hooks` also gives the primary gradient, both have the same bits."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from attittud import Eta, Guide
from attittud.engine.hooks import HookedJacobian
from tests.helpers.layers import Contiguous
from tests.helpers.watch import LiveMemory
from tests.helpers.zoo import Problem, problem

ETA = Eta(neutral=1, helpful=0.5, harmful=-1)


def guide_for(p: Problem, **options) -> Guide:
    return Guide(
        p.model.eval(), **{"eta": ETA, "rank": 3, "engine": "hooks", "refresh_every": 1} | options
    )


def counted(losses: Callable[[], Tensor], passes: list[int]) -> Callable[[], Tensor]:
    """The same losses, which note every backward pass through them."""

    def call() -> Tensor:
        out = losses()
        out.register_hook(lambda _: passes.append(1))
        return out

    return call


def passes(p: Problem, amp=nullcontext, **options) -> int:
    """Backward passes through the primary losses in the second refresh, without the first check."""
    guide, found = guide_for(p, **options), list[int]()
    for _ in range(2):
        found.clear()
        with amp():
            guide.backward(primary=counted(p.losses, found), auxiliary=p.loss())
    return len(found)


def autocast_inside(dtype: torch.dtype = torch.bfloat16) -> Problem:
    """Its forward passes run under autocast, but the step does not: the usual mixed precision."""
    p = problem("transformer", m=8)
    p.model.forward = torch.autocast("cpu", dtype)(p.model.forward)
    return p


def normed() -> Problem:
    """A weight is computed from parameters, so forming its gradients needs the graph once more."""
    p = problem("mlp", m=8)
    parametrizations.weight_norm(p.model.body[0])
    return p


# A cache of casts would be a part of both graphs, so that the primary graph is kept anyway.
UNCACHED = partial(torch.autocast, "cpu", torch.bfloat16, cache_enabled=False)


@pytest.mark.parametrize(
    ("p", "most", "options"),
    [
        (problem("mlp", m=8).to(torch.float16), 2, {}),
        (problem("mlp", m=8), 2, {"amp": UNCACHED}),
        # The chosen parameters are float32, but their gradients have gone through float16.
        (autocast_inside(torch.float16), 2, {"parameters": lambda name, _: "tokens" in name}),
        (normed(), 2, {}),
        (problem("mlp", m=8), 1, {"basis": "exact"}),
        (problem("mlp", m=8), 1, {"primary_weight": 0.0}),
        (problem("mlp", m=8), 2, {"rank": 1}),  # ΠJ is an ordinary gradient of weighted losses
    ],
    ids=[
        "float16",
        "autocast around the step",
        "float16 on the way",
        "computed weight",
        "exact",
        "weight 0",
        "rank 1",
    ],
)
def test_how_many_passes_a_refresh_takes(p, most, options):
    assert passes(p, **options) == most


def in_two_passes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HookedJacobian, "expect", lambda *_: None)


def trained(p: Problem) -> list[Tensor | None]:
    """The gradients, bases and reports of some steps."""
    guide, left = guide_for(p, include_mean=True), list[Tensor | None]()
    for _ in range(3):
        p.model.zero_grad()
        report = guide.backward(primary=p.losses, auxiliary=p.loss())
        left += [
            *p.grads().values(),
            guide.state_dict()["basis"],
            report.agreement,
            report.captured_primary,
        ]
        torch.optim.SGD(p.model.parameters(), lr=0.1).step()
    return [None if x is None else x.clone() for x in left]


def lost_layout() -> Problem:
    """A bias' gradient depends on the layout of the gradient that arrives at its convolution."""
    p = problem("channels_last", torch.float64, m=8)
    p.model.body[0].register_forward_hook(lambda module, args, out: Contiguous.apply(out))
    return p


PROBLEMS = {
    **{
        name: partial(problem, name, m=8)
        for name in ("mlp", "cnn_group_norm", "tied_function", "checkpointed", "transformer")
    },
    "transformer in bfloat16": partial(problem, "transformer", torch.bfloat16, m=8),
    "autocast inside": autocast_inside,
    "lost layout": lost_layout,
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_one_pass_gives_the_bits_of_two(name, monkeypatch):
    one = trained(PROBLEMS[name]())
    in_two_passes(monkeypatch)
    for a, b in zip(one, trained(PROBLEMS[name]()), strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


def test_one_pass_holds_at_most_one_vector_more(monkeypatch):
    """The activations are still there when the first gradients of parameters are."""
    model = nn.Sequential(*(nn.Linear(96, 96) for _ in range(6)))
    x, size = torch.randn(16, 96), sum(p.numel() * 4 for p in model.parameters())

    def peak() -> float:
        guide = Guide(model, eta=ETA, rank=5, engine="hooks", refresh_every=1)
        for _ in range(2):
            model.zero_grad()
            with LiveMemory() as watch:
                guide.backward(
                    primary=lambda: model(x).square().mean(1), auxiliary=model(x[:4]).abs().mean()
                )
        return watch.peak / size

    one = peak()
    in_two_passes(monkeypatch)
    assert one <= peak() + 1.05
