"""Bad input raises at the call that made it, and the message names the culprit and the cure."""

import re

import pytest
import torch
from torch import nn

from attittud import Eta, Guide
from tests.helpers.zoo import Checkpointed, TwoHeads, problem

BAD_INPUT = (ValueError, TypeError, RuntimeError)


def complains(culprit: str):
    """An error of ours whose message names the culprit."""
    return pytest.raises(BAD_INPUT, match=re.escape(culprit))


@pytest.fixture
def p():
    found = problem("mlp")
    yield found
    assert all(g is None for g in found.grads().values())  # a refused call leaves nothing behind


def guide_for(p, **options) -> Guide:
    return Guide(p.model, **{"eta": Eta(1, 1, -1), "rank": 3} | options)


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        ({"rank": 0}, "rank"),
        ({"rank": 2.5}, "2.5"),
        ({"rank": 10**9}, "rank=1000000000"),
        ({"refresh_every": 0}, "refresh_every"),
        ({"basis": "sketchy"}, "sketchy"),
        ({"engine": "looop"}, "looop"),
        ({"batch_norm": "half"}, "half"),
        ({"primary_weight": float("nan")}, "primary_weight"),
        ({"primary_weight": "1"}, "primary_weight"),
        ({"auxiliary_weight": {"a": float("nan")}}, "auxiliary_weight"),
        ({"eta": (1, 1)}, "eta"),
        ({"eta": "flop"}, "flip"),
        ({"eta": {"a": 1.0}}, "'a'"),
        ({"eta": {}}, "eta"),
        ({"basis_dtype": torch.int32}, "int32"),
        ({"seed": 1.5}, "seed"),
        ({"parameters": [nn.Parameter(torch.ones(3))]}, "parameters"),
        ({"parameters": lambda name, _: name == "nobody"}, "parameters"),
        ({"parameters": ["body.0.weight"]}, "str"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_wrong_arguments_of_guide_are_refused(p, options, culprit):
    with complains(culprit):
        guide_for(p, **options)


def test_a_model_that_is_no_module_is_refused():
    with complains("nn.Module"):
        Guide([nn.Parameter(torch.ones(2))], eta=Eta(1, 1, 1))


class Normalised(nn.Module):
    """BatchNorm, which one example does not have statistics for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layer(x)).square().mean(1)


@pytest.mark.parametrize("which", ["primary", "basis_losses", "judge"])
def test_one_example_under_batch_norm_is_refused(which):
    model = Normalised()
    x = torch.randn(6, 4)
    judged = which == "judge"
    options = {"eta": "auto" if judged else Eta(1, 1, -1), "rank": 2}
    given = {"primary": lambda: model(x)} | ({"judge": lambda: model(x)} if judged else {})
    given |= {which: lambda: model(x[:1])}
    with complains(f"{which}: one example"):
        Guide(model, **options).backward(auxiliary=model(x).mean(), **given)
    assert all(p.grad is None for p in model.parameters())
    assert model.training and model.norm.track_running_stats
    if judged:
        frozen = Guide(model, batch_norm="frozen", **options)
        frozen.backward(auxiliary=model(x).mean(), **given)
        assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("which", ["primary", "basis_losses"])
def test_a_users_own_error_is_passed_on(p, which):
    def mine():
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$"):
        guide_for(p).backward(**{"primary": p.losses(), "auxiliary": p.loss()} | {which: mine})


@pytest.mark.parametrize(
    ("options", "auxiliary", "culprit"),
    [
        ({"eta": {"a": Eta(1, 1, 1)}}, lambda p: {"a": p.loss(), "b": p.loss()}, "'b'"),
        ({"eta": {"a": Eta(1, 1, 1)}}, lambda p: p.loss(), "'a'"),
        ({"auxiliary_weight": {"a": 1.0}}, lambda p: {"a": p.loss(), "b": p.loss()}, "'b'"),
    ],
    ids=["no eta of its own", "names expected", "no weight of its own"],
)
def test_wrong_names_of_losses_are_refused(p, options, auxiliary, culprit):
    guide = guide_for(p, **options)
    with complains(culprit):
        guide.backward(primary=p.losses(), auxiliary=auxiliary(p))


def test_calls_in_a_wrong_order_are_refused(p):
    guide = guide_for(p)
    with complains("primary"):
        guide.combine()
    guide.primary(p.losses())
    with complains("auxiliary"):
        guide.combine()


def test_sparse_gradients_are_refused():
    model = TwoHeads(nn.Sequential(nn.Embedding(9, 3, sparse=True), nn.Flatten()), 12)
    x = torch.arange(8).reshape(2, 4)
    guide = Guide(model, eta=Eta(1, 1, -1), rank=2, engine="loop")
    with complains("body.0.weight"):
        guide.backward(
            primary=model(x, "primary").square().mean(1), auxiliary=model(x, "auxiliary").mean()
        )


@pytest.mark.parametrize("which", ["both", "auxiliary", "basis_losses"])
def test_reentrant_checkpointing_is_refused(which):
    """Such a graph hides parameters: they must not pass for unused."""
    hidden = TwoHeads(Checkpointed(use_reentrant=True), 6)
    x = torch.randn(4, 5)

    def losses(reentrant: bool, head: str):
        hidden.body.use_reentrant = reentrant
        return hidden(x, head).square().mean(1)

    guide = Guide(hidden, eta=Eta(1, 1, -1), rank=2)
    with complains("use_reentrant=False"):
        guide.backward(
            primary=losses(which == "both", "primary"),
            auxiliary=losses(which != "basis_losses", "auxiliary").mean(),
            basis_losses=(lambda: losses(True, "primary")) if which == "basis_losses" else None,
        )
    assert all(x.grad is None for x in hidden.parameters())


def trained_state() -> dict:
    q = problem("mlp")
    guide = guide_for(q)
    guide.backward(primary=q.losses(), auxiliary=q.loss())
    return guide.state_dict()


def test_a_state_without_a_field_or_with_an_impossible_number_is_refused(p):
    """By the field's name, and the guide keeps its own state."""
    state = trained_state()
    guide = guide_for(p)
    before = repr(guide.state_dict())
    changes = {name: [{}] for name in state.keys() - {"worker", "version"}}
    for name in ("refreshes", "since_refresh", "skipped_refreshes"):
        changes[name] += [{name: -1}, {name: 2**64}, {name: True}, {name: 0.5}]
    changes["basis"].append({"basis": state["basis"][:0]})  # no rows
    for name, others in changes.items():
        rest = {field: value for field, value in state.items() if field != name}
        for other in others:
            with complains(name):
                guide.load_state_dict(rest | other)
    assert repr(guide.state_dict()) == before


def test_two_names_with_the_same_text_are_refused(p):
    with complains("[1, '1']"):
        guide_for(p).backward(primary=p.losses(), auxiliary={1: p.loss(), "1": p.loss()})
