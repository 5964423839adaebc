"""What may change under a guide between two steps: parameters, what each loss reaches, windows,
hooks, memory formats.
"""

import copy

import pytest
import torch
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


def test_a_task_that_is_missing_in_a_step_keeps_its_parameters():
    """The head is reached by task "b" in the first step only: its primary gradient keeps its
    weight, in steps with a refresh too.
    """
    p = problem("mlp", torch.float64)
    guide = Guide(
        p.model, eta=Eta(1, 1, 1), primary_weight=0.1, rank=3, parameters=p.model.body.parameters()
    )
    head = p.model.heads["primary"]

    def step(tasks, *, refresh):
        p.model.zero_grad()
        guide.backward(primary=p.losses(), auxiliary=tasks, refresh=refresh)

    step({"a": p.loss(), "b": head.weight.square().sum()}, refresh=True)
    expected = 0.1 * torch.autograd.grad(p.losses().mean(), head.weight)[0]
    for refresh in (False, True, False):
        step({"a": p.loss()}, refresh=refresh)
        assert torch.allclose(head.weight.grad, expected, atol=1e-12)


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
    """Ctrl-C comes while new rows are written over the old rows: no later step may project on
    both.
    """
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
