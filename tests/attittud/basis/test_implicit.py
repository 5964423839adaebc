"""The basis that is never stored, against the stored one and against the definition."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import attittud.kernels
from attittud import Eta, Guide
from attittud.engine import UnsupportedError
from tests.helpers.oracle import error, expected
from tests.helpers.watch import LiveMemory
from tests.helpers.zoo import ZOO, problem

ETA = (0.7, 0.5, -1)


def implicit(model: nn.Module, **options) -> Guide:
    return Guide(model, **{"eta": Eta(*ETA), "rank": 3, "basis": "exact", "engine": "implicit"} | options)


def stored(model: nn.Module, **options) -> Guide:
    given = {"eta": Eta(*ETA), "rank": 3, "basis": "exact", "engine": "loop", "refresh_every": 1}
    return Guide(model, **given | options)


BATCH_NORM = ("cnn_batch_norm", "channels_last")


@pytest.mark.parametrize("include_mean", [False, True], ids=["", "include_mean"])
@pytest.mark.parametrize("name", [name for name in ZOO if name not in BATCH_NORM])
def test_same_update_as_the_stored_basis(name, include_mean):
    """Over several steps, each with its own examples."""
    finals, reports = [], []
    for build in (stored, implicit):
        p = problem(name, torch.float64, m=12)
        guide = build(p.model, primary_weight=0.3, include_mean=include_mean)
        optimizer = torch.optim.SGD(p.model.parameters(), lr=0.1)
        for at in (slice(0, 6), slice(6, 12), slice(3, 9)):
            optimizer.zero_grad()
            report = guide.backward(primary=lambda at=at: p.losses(at), auxiliary=p.loss())  # noqa: B023 - called at once
            optimizer.step()
        finals.append(p.grads())
        reports.append(report.to_dict())
    assert error(finals[1], finals[0]) <= 1e-10
    assert reports[1] == pytest.approx(reports[0], rel=1e-8, abs=1e-10)


@pytest.mark.parametrize("name", ["mlp", "transformer", "cnn_group_norm"])
def test_the_update_follows_the_definition(name):
    p = problem(name, torch.float64)
    want = expected(p.model, p.losses(), p.loss(), eta=ETA, basis="exact", rank=3, primary_weight=0.1)
    implicit(p.model, primary_weight=0.1).backward(primary=p.losses, auxiliary=p.loss())
    assert error(p.grads(), want.grads) <= 1e-10


@pytest.mark.parametrize("name", [*BATCH_NORM, "transformer", "checkpointed"])
def test_the_basis_may_come_from_basis_losses(name):
    """p is A (J g_p) with g_p from examples that did not build the basis."""
    grads = []
    for build in (stored, implicit):
        p, other = problem(name, torch.float64), problem(name, torch.float64, seed=5)
        guide = build(p.model, batch_norm="frozen")
        guide.backward(primary=p.losses(), auxiliary=p.loss(), basis_losses=lambda p=p, o=other: other_losses(p, o))
        grads.append(p.grads())
    assert error(grads[1], grads[0]) <= 1e-10


def other_losses(p, other) -> Tensor:
    p = type(p)(p.model, other.xp, other.yp, other.xa, other.ya)
    return p.losses()


def test_named_tasks_get_the_update_of_the_stored_basis():
    grads, reports = [], []
    etas = {"near": Eta(1, 0, -1), "far": Eta(0.2, 1, 0)}
    for build in (stored, implicit):
        p = problem("transformer", torch.float64)
        guide = build(p.model, eta=etas, auxiliary_weight={"near": 2.0, "far": 0.5})
        tasks = {"near": p.loss(slice(0, 4)), "far": p.loss(slice(4, None))}
        reports.append(guide.backward(primary=p.losses, auxiliary=tasks).to_dict())
        grads.append(p.grads())
    assert error(grads[1], grads[0]) <= 1e-10
    assert reports[1] == pytest.approx(reports[0], rel=1e-8)


@pytest.mark.parametrize("include_mean", [False, True], ids=["", "include_mean"])
@pytest.mark.parametrize("fixed", [True, False], ids=["beside_a_fixed_task", "alone"])
def test_judges_give_the_scores_of_the_stored_basis(fixed, include_mean):
    """The judges are asked in every second step, so the primary gradient is a vector in every second step only."""
    finals, reports = [], []
    for build in (stored, implicit):
        p = problem("transformer", torch.float64, m=12)
        optimizer = torch.optim.SGD(p.model.parameters(), lr=0.1)
        etas = {"near": "auto"} | ({"far": Eta(1, 0, -1)} if fixed else {})
        guide = build(p.model, eta=etas, auxiliary_weight=0.5, judge_every=2, include_mean=include_mean)
        for _ in range(5):
            optimizer.zero_grad()
            tasks = {"near": p.loss(slice(0, 4)), "far": p.loss(slice(4, None))}
            tasks = {name: tasks[name] for name in etas}
            report = guide.backward(
                primary=lambda p=p: p.losses(slice(0, 6)),
                auxiliary=tasks,
                judge=lambda p=p: p.losses(slice(6, None)),
            )
            optimizer.step()
        finals.append(p.grads())
        reports.append(report.to_dict())
    assert error(finals[1], finals[0]) <= 1e-10
    assert reports[1] == pytest.approx(reports[0], rel=1e-8, abs=1e-10)


@pytest.mark.parametrize("basis_losses", [False, True], ids=["", "basis_losses"])
def test_primary_auxiliary_combine_equals_backward(basis_losses):
    """Auxiliary losses are computed while the basis waits for them; the first step does not know yet what is shared."""
    grads = []
    for build in (stored, implicit):
        p = problem("checkpointed", torch.float64)
        guide = build(p.model)
        for _ in range(2):
            p.model.zero_grad()
            given = {"basis_losses": p.losses} if basis_losses else {}
            guide.primary(p.losses, **given)
            guide.auxiliary(p.loss() / 2)
            guide.auxiliary(p.loss() / 2)
            guide.combine()
        grads.append(p.grads())
    assert error(grads[1], grads[0]) <= 1e-10


def test_primary_auxiliary_combine_works_on_one_forward_pass():
    """The primary graph is needed again after the auxiliary loss has gone backward through a part of it."""
    grads = []
    for build in (stored, implicit):
        p = problem("mlp", torch.float64)
        guide, logits = build(p.model), {}

        def losses(p=p, logits=logits) -> Tensor:
            hidden = p.model.body(p.xp)
            logits["auxiliary"] = p.model.heads["auxiliary"](hidden)
            return nn.functional.cross_entropy(p.model.heads["primary"](hidden), p.yp, reduction="none")

        guide.primary(losses, retain_graph=build is stored)
        guide.auxiliary(nn.functional.cross_entropy(logits["auxiliary"], p.ya[:6]))
        guide.combine()
        grads.append(p.grads())
    assert error(grads[1], grads[0]) <= 1e-10


def test_accumulation_needs_basis_losses():
    p = problem("mlp", torch.float64)
    guide = implicit(p.model)
    guide.primary(lambda: p.losses(slice(0, 3)) / 2)
    with pytest.raises(RuntimeError, match="basis_losses="):
        guide.primary(lambda: p.losses(slice(3, None)) / 2)

    grads = []
    for build in (stored, implicit):
        p = problem("mlp", torch.float64)
        guide = build(p.model)
        for at in (slice(0, 3), slice(3, None)):
            guide.primary(p.losses(at) / 2, basis_losses=p.losses)
        guide.auxiliary(p.loss())
        guide.combine()
        grads.append(p.grads())
    assert error(grads[1], grads[0]) <= 1e-10


@pytest.mark.parametrize("others", [{}, {"absent": Eta(1, 0, 0)}], ids=["", "another_task_absent"])
def test_equal_weights_change_nothing(others):
    p, plain = problem("transformer"), problem("transformer")
    guide = implicit(p.model, eta={"near": Eta(0.5, 0.5, 0.5), **others}, primary_weight=0.1)
    guide.backward(primary=p.losses, auxiliary={"near": p.loss()})
    for loss, weight in zip((plain.loss(), plain.losses().mean()), (0.5, 0.1), strict=True):
        found = torch.autograd.grad(loss, list(plain.model.parameters()), allow_unused=True)
        for parameter, gradient in zip(plain.model.parameters(), found, strict=True):
            if gradient is not None:
                scaled = weight * gradient
                parameter.grad = scaled if parameter.grad is None else parameter.grad + scaled
    shared = implicit_shared(p)
    assert shared
    for name in shared:
        assert torch.equal(p.grads()[name], plain.grads()[name])


def implicit_shared(p) -> list[str]:
    guide = implicit(p.model)
    copy = {name: None if g is None else g.clone() for name, g in p.grads().items()}
    guide.backward(primary=p.losses, auxiliary=p.loss())
    for name, parameter in p.model.named_parameters():
        parameter.grad = copy[name]
    return list(guide.shared_parameters)


def test_fewer_examples_than_directions():
    grads = []
    for build in (stored, implicit):
        p = problem("mlp", torch.float64, m=3)
        report = build(p.model, rank=7).backward(primary=p.losses, auxiliary=p.loss())
        assert report.to_dict()["effective_rank"] == 3
        grads.append(p.grads())
    assert error(grads[1], grads[0]) <= 1e-10


def test_duplicates_are_one_direction():
    p = problem("mlp", torch.float64)
    p.xp, p.yp = p.xp[:2].repeat(3, 1), p.yp[:2].repeat(3)
    report = implicit(p.model, rank=5).backward(primary=p.losses, auxiliary=p.loss())
    assert report.to_dict()["effective_rank"] == 2


def test_losses_that_are_not_finite_make_everything_neutral():
    p = problem("mlp", torch.float64)
    guide = implicit(p.model)

    def broken() -> Tensor:
        return p.losses() * torch.tensor([1, 1, 1, 1, 1, float("inf")])

    report = guide.backward(primary=p.losses(), auxiliary=p.loss(), basis_losses=broken)
    with pytest.warns(UserWarning, match="NaN or Inf"):
        values = report.to_dict()
    assert values["skipped_refreshes"] == 1 and values["effective_rank"] == 0 and values["helpful"] == 0
    assert all(torch.isfinite(g).all() for g in p.grads().values() if g is not None)
    assert guide.backward(primary=p.losses, auxiliary=p.loss()).to_dict()["effective_rank"] == 3


@pytest.mark.parametrize("value", ["inf", "nan"])
def test_primary_losses_that_are_not_finite_reach_grad(value):
    """Nothing is helpful or harmful, and what is not finite reaches `.grad` as with a stored basis."""
    found = []
    for build in (stored, implicit):
        p = problem("mlp", torch.float64)
        factors = torch.tensor([1, 1, float(value), 1, 1, 1], dtype=torch.float64)
        report = build(p.model).backward(primary=lambda p=p, f=factors: p.losses() * f, auxiliary=p.loss())
        with pytest.warns(UserWarning, match="NaN or Inf"):
            values = report.to_dict()
        found.append({name: values[name] for name in ("helpful", "harmful", "neutral", "effective_rank")})
        found.append({name: torch.isfinite(g).tolist() for name, g in p.grads().items() if g is not None})
    assert found[2] == pytest.approx(found[0]) and found[2]["helpful"] == found[2]["harmful"] == 0
    assert found[3] == found[1]


class Dropping(nn.Module):
    """The forward pass runs again in every use of the graph, and it differs in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.inner, self.dropout = nn.Linear(5, 6), nn.Linear(6, 6), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.enter(x))
        return checkpoint(lambda h: torch.tanh(self.inner(self.dropout(h))), h, use_reentrant=False)


def test_checkpointing_runs_the_forward_pass_of_the_basis_again_as_it_was():
    grads = []
    for build in (stored, implicit):
        p, other = problem("mlp", torch.float64), problem("mlp", torch.float64, seed=5)
        torch.manual_seed(0)
        p.model.body = Dropping().double()
        guide = build(p.model)
        guide.backward(primary=p.losses(), auxiliary=p.loss(), basis_losses=lambda p=p, o=other: other_losses(p, o))
        grads.append(p.grads())
    assert error(grads[1], grads[0]) <= 1e-10


def test_a_resumed_run_is_the_same_run():
    whole, first = problem("mlp", torch.float64), problem("mlp", torch.float64)

    def steps(p, guide: Guide, count: int) -> None:
        optimizer = torch.optim.SGD(p.model.parameters(), lr=0.1)
        for _ in range(count):
            optimizer.zero_grad()
            guide.backward(primary=p.losses, auxiliary=p.loss())
            optimizer.step()

    steps(whole, implicit(whole.model), 4)
    guide = implicit(first.model)
    steps(first, guide, 2)
    state = guide.state_dict()
    assert state["basis"] is None
    again = implicit(first.model)
    again.load_state_dict(state)
    steps(first, again, 2)
    assert all(torch.equal(whole.grads()[name], g) for name, g in first.grads().items() if g is not None)


def test_a_step_stores_no_basis(monkeypatch):
    """A step holds one gradient, which becomes `.grad`, and nothing of k or m times D."""
    monkeypatch.setattr(attittud.kernels, "chunk_size", lambda x: 256)  # the model is small for the real one
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
    x, size = torch.randn(16, 64), 4 * sum(p.numel() for p in model.parameters())
    peaks = {}
    for rank, include_mean in ((2, False), (12, False), (12, True)):
        guide = implicit(model, rank=rank, include_mean=include_mean)
        for _ in range(2):
            model.zero_grad(set_to_none=False)
            auxiliary = model(x).mean()
            with LiveMemory() as watch:
                guide.backward(primary=lambda: model(x).square().mean(1), auxiliary=auxiliary)
        peaks[rank, include_mean] = watch.peak / size
    assert peaks[12, False] - peaks[2, False] < 0.1
    # 1 and activations; the watch also counts the meta tensors of a layout, which take nothing.
    assert 1 < peaks[12, False] < 2
    assert 1 < peaks[12, True] < 2


def test_a_step_holds_only_one_graph_of_large_activations():
    """The graphs of the two losses are never held together, so a step takes less memory than a multitask step."""
    model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.GELU())))
    primary, auxiliary = torch.randn(2, 16, 16, 64)
    guide = implicit(model)

    def losses() -> Tensor:
        return model(primary).square().mean((1, 2))

    peaks = {}
    for name in ("multitask", "first", "implicit"):
        model.zero_grad()
        with LiveMemory() as watch:
            loss = model(auxiliary).mean()
            if name == "multitask":
                (losses().mean() + loss).backward()
            else:
                guide.backward(primary=losses, auxiliary=loss)
        peaks[name] = watch.peak
    assert peaks["implicit"] < 0.85 * peaks["multitask"]


def test_shared_parameters_may_change_from_step_to_step():
    """The gradient of the auxiliary loss is computed before it is known what is shared; the guess may be wrong."""
    grads = []
    for build in (stored, implicit):
        p = problem("mlp", torch.float64)
        guide, first = build(p.model, primary_weight=0.3), p.model.body[0]
        found = []
        for step in range(5):
            p.model.zero_grad()
            first.weight.requires_grad_(step != 3)
            hidden = p.model.body[:2](p.xa)
            hidden = p.model.body[2:](hidden.detach() if step == 1 else hidden)
            loss = nn.functional.cross_entropy(p.model.heads["auxiliary"](hidden), p.ya)
            guide.backward(primary=p.losses, auxiliary=loss)
            found.append(p.grads())
            assert ("body.0.bias" in guide.shared_parameters) == (step != 1)
        grads.append(found)
    for got, want in zip(grads[1], grads[0], strict=True):
        assert error(got, want) <= 1e-10


@pytest.mark.parametrize("primary_weight", [0.0, 0.3])
def test_parameters_that_are_not_decomposed_get_their_primary_gradient(primary_weight):
    """They get their primary gradient although the shared primary gradient is never a vector."""
    grads = []
    for build in (stored, implicit):
        p = problem("transformer", torch.float64)
        first = next(name for name, _ in p.model.named_parameters())
        guide = build(p.model, primary_weight=primary_weight, parameters=lambda name, _, first=first: name != first)
        guide.backward(primary=p.losses, auxiliary=p.loss())
        assert first not in guide.shared_parameters and p.grads()[first] is not None
        grads.append(p.grads())
    assert error(grads[1], grads[0]) <= 1e-10


def test_unsupported_settings_are_refused():
    p = problem("cnn_batch_norm")
    with pytest.raises(UnsupportedError, match=r"(?s)'body\.1'.*basis='exact' with engine='loop'"):
        implicit(p.model).backward(primary=p.losses, auxiliary=p.loss())
    with pytest.raises(ValueError, match="basis='exact'"):
        Guide(p.model, eta=Eta(*ETA), engine="implicit")
    r = problem("mlp")
    with pytest.raises(
        UnsupportedError, match=r"engine 'hooks': per-example gradients do not add up to .*body\.0\.weight"
    ):
        implicit(r.model).backward(primary=lambda: r.losses() * r.losses().mean(), auxiliary=r.loss())
    q = problem("mlp")
    with pytest.raises(UnsupportedError, match=r"(?s)'hooks' must see the forward pass.*callable.*basis='exact'"):
        implicit(q.model).backward(primary=q.losses(), auxiliary=q.loss())
    with pytest.raises(ValueError, match="every step is a refresh"):
        implicit(q.model).backward(primary=q.losses, auxiliary=q.loss(), refresh=False)


@pytest.mark.slow
def test_the_graph_of_the_forward_pass_is_freed_after_the_step():
    p = problem("mlp", m=200)  # activations are larger than gradients
    guide = implicit(p.model)
    with LiveMemory() as watch:
        guide.backward(primary=p.losses, auxiliary=p.loss())
        gradients = sum(g.numel() * 4 for g in p.grads().values() if g is not None)
        assert watch.live < 1.5 * gradients + 600
