"""A step that is refused changes nothing: later steps have the bits of never having tried."""

import copy
import itertools
import random
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attittud.step.step
from attittud import Eta, Guide, Report
from attittud.basis import make_basis
from attittud.guide import AccumulationWarning
from tests.helpers.zoo import Problem, problem

MODELS = ["mlp", "reused", "tied_module", "transformer", "cnn_group_norm"]
BASES = ["sketch", "svd", "exact", "mean", "random", "canonical"]


class OwnError(Exception):
    """Raised by the user's own code."""


def raises() -> Tensor:
    raise OwnError("own error")


def used(loss: Tensor) -> Tensor:
    """A loss whose graph is gone."""
    loss.sum().backward()
    return loss


# What is wrong with a step: what the error names, and from a problem and another model the changed
# arguments of `backward`.
WRONG: dict[str, tuple[str, Callable[[Problem, Problem], dict[str, Any]]]] = {
    "primary is a scalar": ("primary", lambda p, other: {"primary": p.losses().mean()}),
    "primary is a matrix": ("1)", lambda p, other: {"primary": p.losses()[:, None]}),
    "primary is a list": ("list", lambda p, other: {"primary": p.losses().tolist()}),
    "primary is empty": ("empty", lambda p, other: {"primary": p.losses()[:0]}),
    "primary is one example": (
        "2 primary examples",
        lambda p, other: {"primary": p.losses(slice(1)), "refresh": True},
    ),
    "primary is nothing": ("primary", lambda p, other: {"primary": None}),
    "primary has no graph": ("primary", lambda p, other: {"primary": p.losses().detach()}),
    "primary is of another model": ("loss", lambda p, other: {"primary": other.losses()}),
    "primary raises": ("own error", lambda p, other: {"primary": raises}),
    "primary was used": ("second time", lambda p, other: {"primary": used(p.losses())}),
    "auxiliary is a matrix": ("auxiliary", lambda p, other: {"auxiliary": p.loss()[None, None]}),
    "auxiliary is a number": ("float", lambda p, other: {"auxiliary": p.loss().item()}),
    "auxiliary has no graph": ("auxiliary", lambda p, other: {"auxiliary": p.loss().detach()}),
    "auxiliary is of another model": ("loss", lambda p, other: {"auxiliary": other.loss()}),
    "auxiliary was used": ("second time", lambda p, other: {"auxiliary": used(p.loss())}),
    "there is no task": ("auxiliary", lambda p, other: {"auxiliary": {}}),
    "a second task is a matrix": (
        "'more'",
        lambda p, other: {"auxiliary": {"auxiliary": p.loss(), "more": p.loss()[None, None]}},
    ),
    "a second task was used": (
        "second time",
        lambda p, other: {"auxiliary": {"auxiliary": p.loss(), "more": used(p.loss())}},
    ),
    "a second task is of another model": (
        "loss",
        lambda p, other: {"auxiliary": {"auxiliary": p.loss(), "more": other.loss()}},
    ),
    "basis_losses raises": (
        "own error",
        lambda p, other: {"basis_losses": raises, "refresh": True},
    ),
    "basis_losses is a tensor": (
        "basis_losses",
        lambda p, other: {"basis_losses": p.losses(), "refresh": True},
    ),
    "basis_losses gives nothing": (
        "basis_losses",
        lambda p, other: {"basis_losses": lambda: None, "refresh": True},
    ),
    "basis_losses is a scalar": (
        "basis_losses",
        lambda p, other: {"basis_losses": lambda: p.losses().mean(), "refresh": True},
    ),
    "basis_losses is of another model": (
        "loss",
        lambda p, other: {"basis_losses": other.losses, "refresh": True},
    ),
    "judge raises": ("own error", lambda p, other: {"judge": raises}),
    "judge is a number": ("judge", lambda p, other: {"judge": 3}),
    "judge has no graph": ("judge", lambda p, other: {"judge": lambda: torch.zeros(3)}),
    "judge is a scalar": ("judge", lambda p, other: {"judge": lambda: p.losses().mean()}),
    "judge is empty": ("judge", lambda p, other: {"judge": lambda: p.losses()[:0]}),
    "judge is of another model": ("judge", lambda p, other: {"judge": other.losses}),
}


def step(
    guide: Guide, verbs: bool, primary: Any, auxiliary: Any, judge: Any = None, **options: Any
) -> None:
    if not verbs:
        guide.backward(primary, auxiliary, judge=judge, **options)
        return
    guide.primary(primary, **options)
    if judge is not None:
        guide.judge(judge)
    guide.auxiliary(auxiliary)
    guide.combine()


def differences(a: Any, b: Any, at: str = "") -> list[str]:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return [] if a.dtype == b.dtype and torch.equal(a, b) else [at]
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [found for key in a for found in differences(a[key], b[key], f"{at}.{key}")]
    return [] if type(a) is type(b) and a == b else [f"{at}: {a} is not {b}"]


def traces(p: Problem) -> dict[str, Any]:
    model = copy.deepcopy(p.model.state_dict())
    return {
        "random": torch.get_rng_state(),
        "model": model,
        "modes": [m.training for m in p.model.modules()],
    }


@pytest.mark.parametrize("wrong", WRONG)
def test_a_refused_step_changes_nothing(wrong):
    draw = random.Random(wrong)
    warnings.simplefilter("ignore", AccumulationWarning)
    # A basis that uses the mean gradient alone takes the mean loss.
    bases = [
        name
        for name in BASES
        if not {"scalar", "one"} & set(wrong.split()) or make_basis(name).needs == "jacobian"
    ]
    basis = draw.choice(bases)
    verbs = draw.random() < 0.5
    judged = "judge" in wrong or draw.random() < 0.2
    p = problem(draw.choice(MODELS), torch.float64)
    settings = {
        "eta": "auto" if judged else Eta(1, 0.5, -1),
        "basis": basis,
        "engine": draw.choice(["loop", "hooks"]),
        "rank": draw.choice([2, 4]),
        "refresh_every": draw.choice([1, 2, 3]),
        "include_mean": draw.random() < 0.3,
        "judge_every": 1,
    }
    guide = Guide(p.model, **settings)

    def right(p: Problem, auxiliary: Tensor | None = None) -> dict[str, Any]:
        judge = {"judge": lambda: p.losses(slice(0, 3))} if judged else {}
        return {
            "primary": p.losses,
            "auxiliary": p.loss() if auxiliary is None else auxiliary,
            **judge,
        }

    for _ in range(draw.choice([0, 1, 2])):
        step(guide, verbs, **right(p))
    culprit, change = WRONG[wrong]
    arguments = right(p) | change(p, p.copy())
    p.model.zero_grad()
    state, before = guide.state_dict(), traces(p)
    with pytest.raises((OwnError, ValueError, TypeError, RuntimeError), match=re.escape(culprit)):
        step(guide, verbs, **arguments)
    assert not differences(traces(p), before)
    assert all(g is None for g in p.grads().values())
    after = guide.state_dict()
    if after["since_refresh"] is None:  # a basis that was overwritten already does not serve
        state["since_refresh"], state["basis"] = None, after["basis"]
    assert not differences(after, state)
    copy.deepcopy(guide)  # no graph is left in it

    other = p.copy()
    twin = Guide(other.model, **settings)
    twin.load_state_dict(state)
    for _, in_verbs in itertools.product(range(2), [verbs, not verbs]):
        for each, of_each in ((p, guide), (other, twin)):
            each.model.zero_grad()
            step(of_each, in_verbs, **right(each))
        assert not differences(p.grads(), other.grads())


@pytest.mark.parametrize("changed", [False, True], ids=["first step", "other parameters"])
def test_a_step_that_is_interrupted_at_its_end_is_repeated(changed, monkeypatch):
    """The basis is then complete, and `.grad` is written."""
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), torch.randn(5, 4)
    guide = Guide(model, eta=Eta(1, 1, 0), rank=2, refresh_every=10)

    def step(**options: bool) -> Report:
        return guide.backward(model(x).square().mean(1), model(x + 1).square().mean(1), **options)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    if changed:
        for _ in range(10):
            step()
        model[0].requires_grad_(False)
    assert guide.refresh_due
    with monkeypatch.context() as patched:
        patched.setattr(attittud.step.step, "Report", interrupted)
        with pytest.raises(KeyboardInterrupt):
            step()
    assert guide.refresh_due
    assert [step().refreshed for _ in range(3)] == [True, False, False]
