"""What may change under a guide between two steps: parameters, losses, hooks, memory formats."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import attittud.step.refresh
from attittud import Eta, Guide
from tests.helpers.zoo import problem

NOTHING = Eta(0, 0, 0)


def gradients(p):
    return {name: g.clone() for name, g in p.grads().items() if g is not None}


@pytest.mark.parametrize("narrowed", [False, True])
def test_a_copied_guide_continues_with_the_copied_model(narrowed):
    p = problem("mlp", torch.float64)
    options = {"parameters": list(p.model.body.parameters())} if narrowed else {}
    guide = Guide(p.model, eta=Eta(1, 0.5, -1), rank=3, refresh_every=2, **options)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    p.model.zero_grad()
    both = copy.deepcopy((p, guide))
    found = []
    for q, other in ((p, guide), both):
        assert other.model is q.model
        for _ in range(3):
            other.primary(q.losses())
            other.auxiliary(q.loss())
            other.combine()
        found.append(gradients(q))
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


PARTS = st.sets(st.integers(1, 3)).map(lambda some: [0, *some])
STEP = st.tuples(
    st.sets(st.sampled_from("abc"), min_size=1), st.sampled_from([None, True]), st.booleans()
)


@given(
    reached=st.fixed_dictionaries(dict.fromkeys(["primary", *"abc"], PARTS)),
    steps=st.lists(STEP, min_size=2, max_size=5),
    primary_weight=st.sampled_from([0.0, 0.1, -2.0]),
)
@settings(max_examples=25, deadline=None)
def test_any_tasks_in_any_steps_give_the_sum_of_their_gradients(reached, steps, primary_weight):
    """With equal weights of the parts there is no basis to think of. A parameter that only the
    primary losses have reached so far gets their gradient with weight 1, also in a refresh.
    """
    torch.manual_seed(0)
    x = torch.randn(4, 5, dtype=torch.float64)
    model = nn.ParameterList([torch.randn(5, dtype=torch.float64) for _ in range(4)])
    weights = {"a": 1.0, "b": 0.5, "c": -3.0}
    guide = Guide(
        model, eta=Eta(1, 1, 1), primary_weight=primary_weight, auxiliary_weight=weights,
        rank=2, refresh_every=2,
    )  # fmt: skip

    def losses(name):
        return sum((x @ model[part]).square() * (1 + part + len(name)) for part in reached[name])

    ever = set()
    for names, refresh, verbs in steps:
        model.zero_grad()
        if verbs:
            guide.primary(losses("primary"), refresh=refresh)
            for name in names:
                guide.auxiliary({name: losses(name).mean()})
            guide.combine()
        else:
            tasks = {name: losses(name).mean() for name in names}
            guide.backward(losses("primary"), tasks, refresh=refresh)
        ever = ever.union(*[reached[name] for name in names])
        for part, parameter in enumerate(model):
            expected = None
            for name in ("primary", *names):
                weight = weights.get(name, primary_weight if part in ever else 1.0)
                if part in reached[name]:
                    (gradient,) = torch.autograd.grad(losses(name).mean(), parameter)
                    expected = weight * gradient + (0 if expected is None else expected)
            if expected is None:
                assert parameter.grad is None
            else:
                torch.testing.assert_close(parameter.grad, expected)


def test_basis_losses_must_come_with_the_first_call():
    p = problem("mlp")
    guide = Guide(p.model, eta=NOTHING, rank=3)
    guide.primary(p.losses())
    with pytest.raises(RuntimeError, match="basis_losses"):
        guide.primary(p.losses(), basis_losses=p.losses)
    guide.primary(p.losses())
    guide.auxiliary(p.loss())
    with pytest.raises(RuntimeError, match="basis_losses"):
        guide.primary(p.losses(), basis_losses=p.losses)


def test_a_late_request_for_a_refresh_is_refused():
    p = problem("mlp")
    guide = Guide(p.model, eta=NOTHING, rank=3)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    guide.primary(p.losses())
    with pytest.raises(RuntimeError, match="refresh"):
        guide.primary(p.losses(), refresh=True)


def test_hooks_after_accumulation_run_once():
    p = problem("mlp")
    guide = Guide(p.model, eta=NOTHING, rank=3)
    calls = []
    for name, parameter in p.model.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda x, name=name: calls.append((name, x.grad is not None))
        )
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    reached = [name for name, g in p.grads().items() if g is not None]
    assert sorted(calls) == sorted((name, True) for name in reached)


@pytest.mark.parametrize(("engine", "include_mean"), [("loop", True), ("hooks", False)])
def test_backward_works_under_no_grad(engine, include_mean):
    found = []
    for grad in (False, True):
        p = problem("mlp")
        guide = Guide(
            p.model,
            eta=Eta(1, 0.5, -1),
            rank=3,
            basis="exact",
            engine=engine,
            include_mean=include_mean,
        )
        loss = p.loss()
        with torch.set_grad_enabled(grad):
            guide.backward(primary=p.losses, auxiliary=loss)
        found.append(gradients(p))
    assert found[0].keys() == found[1].keys() and found[0]
    assert all(torch.equal(g, found[1][name]) for name, g in found[0].items())


@pytest.mark.parametrize(("basis", "vectors"), [("sketch", 15), ("exact", 9)])
def test_proposed_settings_fit(monkeypatch, basis, vectors):
    p = problem("mlp", torch.float64, m=40)
    size = sum(x.numel() for x in p.model.body.parameters()) * 8
    monkeypatch.setattr(attittud.step.refresh, "available_bytes", lambda device: vectors * size)
    with pytest.raises(MemoryError) as caught:
        Guide(p.model, eta=NOTHING, rank=30, basis=basis).backward(
            primary=p.losses(), auxiliary=p.loss()
        )
    proposals = str(caught.value).split("Settings that fit: ")[1].split("; ")
    tried = 0
    for proposal in proposals:
        words = proposal.replace(",", " ").replace(".", " . ").split()
        rank = next((int(w.removeprefix("rank=")) for w in words if w.startswith("rank=")), None)
        if rank is None:
            continue
        options = {"basis": "sketch" if "sketch" in proposal else basis, "rank": rank}
        if "bfloat16" in proposal:
            options["basis_dtype"] = torch.bfloat16
        Guide(p.model, eta=NOTHING, **options).backward(primary=p.losses(), auxiliary=p.loss())
        tried += 1
    assert tried


def test_a_frozen_model_is_refused():
    p = problem("mlp")
    guide = Guide(p.model, eta=NOTHING, rank=3)
    losses, loss = p.losses(), p.loss()
    p.model.requires_grad_(False)
    with pytest.raises(ValueError, match="unfreeze"):
        guide.backward(primary=losses, auxiliary=loss)


def test_parameters_of_a_module_can_be_passed():
    p = problem("mlp")
    guide = Guide(p.model, eta=NOTHING, rank=3, parameters=p.model.body)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    assert set(guide.shared_parameters) == {f"body.{n}" for n, _ in p.model.body.named_parameters()}


def test_renamed_parameters_stay_decomposed():
    p = problem("mlp")
    guide = Guide(p.model, eta=NOTHING, rank=3, refresh_every=1)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    before = [id(parameter) for parameter in guide.shared_parameters.values()]
    p.model.body = nn.Sequential(p.model.body)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    assert sorted(map(id, guide.shared_parameters.values())) == sorted(before)
    names = dict(p.model.named_parameters())
    assert all(names[name] is parameter for name, parameter in guide.shared_parameters.items())
    Guide(p.model, eta=NOTHING, rank=3).load_state_dict(guide.state_dict())


def test_rows_of_an_interrupted_refresh_are_not_used(monkeypatch):
    """Ctrl-C comes while new rows overwrite the old ones: no later step may project on both."""
    p = problem("mlp", torch.float64)
    guide = Guide(p.model, eta=Eta(1, 1, -1), rank=3, refresh_every=1)
    guide.backward(primary=p.losses(), auxiliary=p.loss())

    def half(old, new, _):
        old[0].copy_(new[0])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("attittud.basis.subspace.take_", half)
        with pytest.raises(KeyboardInterrupt):
            guide.backward(primary=p.losses(slice(0, 4)), auxiliary=p.loss())
    p.model.zero_grad()
    for examples, refresh in ((slice(None), False), (slice(0, 1), None)):
        with pytest.raises(ValueError, match="refresh"):
            guide.backward(primary=p.losses(examples), auxiliary=p.loss(), refresh=refresh)
    assert all(gradient is None for gradient in p.grads().values())
    assert guide.backward(primary=p.losses(), auxiliary=p.loss()).refreshed
