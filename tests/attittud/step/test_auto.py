"""eta="auto": scores against an explicit oracle, and the promises that a guide makes about them."""

import json
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from attittud import Eta, Guide
from attittud.report import SCORED
from attittud.step.auto import TaskScores
from tests.helpers.oracle import error, expected, flatten, gradients
from tests.helpers.watch import Waits
from tests.helpers.zoo import Problem, problem

JUDGES = slice(8, 12)
TRAINED = slice(0, 8)


def make(
    basis: str = "sketch", dtype: torch.dtype = torch.float64, name: str = "mlp", **options
) -> tuple[Problem, Guide]:
    p = problem(name, dtype, m=12, n=12)
    return p, Guide(
        p.model,
        **{"eta": "auto", "basis": basis, "rank": 3, "refresh_every": 2, "judge_every": 1}
        | options,
    )


def step(p: Problem, guide: Guide, at: int = 0, **options):
    p.model.zero_grad()
    options = {"judge": lambda: p.losses(JUDGES)} | options
    return guide.backward(primary=p.losses(TRAINED), auxiliary=p.loss(slice(at, at + 8)), **options)


def cosine(x: torch.Tensor, y: torch.Tensor) -> float:
    return 0.0 if not x.any() else float(x @ y / (x.norm() * y.norm()))


def score(report, task: str = "auxiliary") -> list[float]:
    return report.tasks[task].earned.score.tolist()


def weights(report, task: str = "auxiliary") -> list[float]:
    found = report.tasks[task].earned.weights
    return [float(found.neutral), float(found.helpful), float(found.harmful)]


def judges_gradient(p: Problem, names) -> torch.Tensor:
    """The mean gradient of all judges."""
    return flatten(gradients(p.losses(JUDGES).mean(), p.model), names)


@pytest.mark.parametrize(
    ("basis", "include_mean"),
    [("sketch", True), ("mean", False), ("random", False), ("canonical", False)],
)
def test_scores_are_cosines_of_explicit_parts(basis, include_mean):
    p, guide = make(basis, include_mean=include_mean)
    report = step(p, guide)
    V = guide.subspace.rows if basis == "random" else basis
    want = expected(
        p.model,
        p.losses(TRAINED),
        p.loss(slice(0, 8)),
        eta=(0, 0, 0),
        basis=V,
        rank=3,
        include_mean=include_mean,
    )
    g_judge = judges_gradient(p, want.names)
    parts = want.parts["auxiliary"]
    whole = want.g_a["auxiliary"], want.g_p
    cosines = [cosine(x, g_judge) for x in (parts.neutral, parts.helpful, parts.harmful, *whole)]
    assert score(report) == pytest.approx(cosines, abs=1e-9)
    assert weights(report) == [0, 0, 0]  # nothing was earned before
    assert error(p.grads(), want.grads) < 1e-12


@pytest.mark.parametrize(
    ("basis", "dtype"),
    [("sketch", torch.float64), ("canonical", torch.float64), ("exact", torch.float32)],
    ids=str,
)
def test_a_step_uses_weights_from_the_scores_of_earlier_steps(basis, dtype):
    p, guide = make(basis, dtype)
    same = p.copy()
    for at in range(4):
        # Some of the judges are auxiliary examples, so that some weight is earned.
        report = step(p, guide, at, judge=lambda: p.losses(slice(0, 12)) + 3 * p.loss())
    eta = Eta(*weights(report))
    assert any(w > 0 for w in weights(report))
    fixed = Guide(same.model, eta=eta, basis=basis, rank=3, refresh_every=2)
    for at in range(4):
        same.model.zero_grad()
        fixed.backward(primary=same.losses(TRAINED), auxiliary=same.loss(slice(at, at + 8)))
    assert error(p.grads(), same.grads()) < (1e-12 if dtype == torch.float64 else 1e-5)


def record_of(*cosines: list[float]) -> TaskScores:
    record = TaskScores(torch.device("cpu"))
    for found in cosines:
        record.add(torch.tensor(found, dtype=torch.float64))
    return record


CASES = st.lists(
    st.lists(st.floats(-1, 1), min_size=len(SCORED), max_size=len(SCORED)), min_size=1, max_size=8
)


@given(CASES)
def test_weights_stay_in_bounds(cosines):
    record = record_of(*cosines)
    assert torch.isfinite(record.weights).all()
    assert (record.weights >= 0).all() and (record.weights <= 1).all()


@pytest.mark.parametrize("steps", [7, 150])
def test_moments_follow_an_exponential_average(steps):
    """A twentieth of the mean is new with every score, so it is worth at most 39 of them."""
    random = torch.Generator().manual_seed(1)
    cosines = torch.rand(steps, 5, generator=random, dtype=torch.float64) * 2 - 1
    record = record_of(*cosines.tolist())
    decay = 0.95 ** torch.arange(steps, dtype=torch.float64).flip(0)[:, None]
    mean = (decay * cosines).sum(0) / decay.sum()
    count = decay.sum() ** 2 / decay.square().sum()
    variance = (decay * (cosines - mean).square()).sum(0) / decay.sum() * count / (count - 1)
    assert torch.allclose(record.statistics[0], mean)
    assert torch.allclose(record.statistics[1], variance.sqrt())
    assert torch.allclose(record.statistics[2], (variance / count).sqrt() * (1 + 3 / (count - 1)))


@given(
    st.lists(st.floats(-0.9, 0.9), min_size=5, max_size=5),
    st.lists(st.lists(st.floats(-0.1, 0.1), min_size=5, max_size=5), min_size=6, max_size=8),
)
def test_weights_follow_the_documented_rule(centre, noise):
    """The same, number by number, from the sentences in docs/which-weights.md."""
    cosines = [[c + e for c, e in zip(centre, errors, strict=True)] for errors in noise]
    record = record_of(*cosines)
    score = record.statistics[0].tolist()
    spread = record.statistics[1].tolist()
    error = float(record.statistics[2][3])
    assume(error > 1e-9)
    for part in range(3):
        difference = score[part] - score[3]
        total = difference**2 + (4 * spread[part]) ** 2 + (4 * spread[3]) ** 2
        believed = score[3] + difference * difference**2 / total
        want = (believed / error - 1) / 2
        assert float(record.weights[part]) == pytest.approx(min(1, max(0, want)), abs=1e-6)


def test_a_part_that_always_helps_is_kept_and_one_that_always_harms_is_dropped():
    """Equal scores have a standard error of 0."""
    record = record_of(*[[1.0, 1.0, -1.0, 1.0, 1.0]] * 4)
    assert record.statistics[2].tolist() == pytest.approx([0] * 5, abs=1e-6)
    assert record.weights[:2].tolist() == [1, 1]
    assert record_of(*[[-1.0] * 5] * 4).weights.tolist() == [0, 0, 0]


def test_judges_from_the_auxiliary_data_drop_nothing():
    """The judges are other examples than the step's, with their auxiliary loss."""
    p = problem("mlp", torch.float64, m=12, n=400)
    guide = Guide(p.model, eta="auto", rank=3, refresh_every=5, judge_every=1)
    order = torch.Generator().manual_seed(3)
    for _ in range(40):
        rows = torch.randperm(400, generator=order)

        def losses(at, **options):
            return nn.functional.cross_entropy(p.model(p.xa[at], "auxiliary"), p.ya[at], **options)

        p.model.zero_grad()
        report = guide.backward(
            p.losses(),
            losses(rows[:100]),
            judge=lambda at=rows[100:200]: losses(at, reduction="none"),
        )
    assert weights(report) == [1, 1, 1]


def train(p: Problem, guide: Guide, steps: int, first: int = 0, scale=(1.0, 1.0, 1.0), **options):
    optimizer = torch.optim.SGD(p.model.parameters(), lr=0.05)
    for i in range(first, first + steps):
        optimizer.zero_grad()
        report = guide.backward(
            primary=scale[0] * p.losses(TRAINED),
            auxiliary=scale[1] * p.loss(slice(i % 4, i % 4 + 8)),
            judge=lambda: scale[2] * p.losses(JUDGES),
            **options,
        )
    return report


@settings(max_examples=5)  # each is two runs
@given(st.lists(st.integers(-60, 30), min_size=3, max_size=3))
def test_scaling_any_loss_changes_no_weight(exponents):
    found = []
    for scale in ([1.0] * 3, [2.0**e for e in exponents]):
        p, guide = make(judge_every=2)
        found.append(train(p, guide, 7, scale=scale))
    assert weights(found[1]) == pytest.approx(weights(found[0]), abs=1e-9)
    assert score(found[1]) == pytest.approx(score(found[0]), abs=1e-9)


@pytest.mark.parametrize("basis", ["sketch", "canonical"])
def test_a_resumed_run_is_bitwise_the_same(basis):
    whole, guide = make(basis, torch.float32, judge_every=3)
    train(whole, guide, 5)
    state, parameters = guide.state_dict(), whole.copy()
    basis_rows = state.pop("basis")
    text = json.loads(json.dumps(state))  # JSON keeps every bit of the numbers
    train(whole, guide, 7, first=5)
    again = Guide(parameters.model, eta="auto", basis=basis, rank=3, refresh_every=2, judge_every=3)
    again.load_state_dict(text | {"basis": basis_rows})
    report = train(parameters, again, 7, first=5)
    assert score(report) != [0] * 5
    assert all(
        torch.equal(x, y)
        for x, y in zip(whole.model.parameters(), parameters.model.parameters(), strict=True)
    )
    ours, theirs = guide.state_dict(), again.state_dict()
    assert ours["judges"] == theirs["judges"]


def test_judges_are_called_when_due_and_may_be_left_out_later():
    p, guide = make(judge_every=4)
    calls = []

    def judge():
        calls.append(i)
        return p.losses(JUDGES)

    for i in range(10):
        assert guide.judge_due == (i % 4 == 0)
        step(p, guide, judge=judge)
    assert calls == [0, 4, 8]
    before = weights(step(p, guide, judge=judge))
    for i in range(9):
        assert weights(step(p, guide, i % 4, judge=None)) == before


def test_judges_with_nan_change_no_score_and_are_counted():
    p, guide = make()
    for at in range(3):
        step(p, guide, at)
    state = guide.state_dict()["judges"]["records"]["auxiliary"]
    report = step(
        p, guide, judge=lambda: p.losses(JUDGES) * torch.tensor([1.0, math.nan, 1.0, 1.0])
    )
    after = guide.state_dict()["judges"]["records"]["auxiliary"]
    assert after == state | {"skipped": 1}
    assert report.to_dict()["skipped_scores"] == 1
    assert all(torch.isfinite(g).all() for g in p.grads().values() if g is not None)
    # Judges who learn nothing more have no gradient and say nothing.
    assert step(p, guide, judge=lambda: 0 * p.losses(JUDGES)).to_dict()["skipped_scores"] == 2


def test_judges_work_with_primary_auxiliary_combine_and_micro_batches():
    p, guide = make()
    q, other = make()
    for at in range(3):
        first = step(p, guide, at)
        q.model.zero_grad()
        for half in (slice(0, 4), slice(4, 8)):
            other.primary(q.losses(half) / 2)
        other.judge(lambda: q.losses(JUDGES))
        for half in (slice(at, at + 4), slice(at + 4, at + 8)):
            other.auxiliary(q.loss(half) / 2)
        second = other.combine()
        assert error(q.grads(), p.grads()) < 1e-10
        assert score(second) == pytest.approx(score(first), abs=1e-9)


def test_named_tasks_may_mix_auto_and_fixed_weights():
    eta = {"a": "auto", "b": Eta(0.5, 1, -1), "c": "auto"}
    p, guide = make(eta=eta, auxiliary_weight={"a": 1.0, "b": 0.3, "c": 2.0})
    tasks = {"a": slice(0, 4), "b": slice(4, 8), "c": slice(8, 12)}
    for _ in range(3):
        p.model.zero_grad()
        losses = {name: p.loss(at) for name, at in tasks.items()}
        report = guide.backward(
            primary=p.losses(TRAINED), auxiliary=losses, judge=lambda: p.losses(JUDGES)
        )
    assert report.tasks["b"].earned is None
    etas = {name: tuple(weights(report, name)) for name in ("a", "c")} | {"b": (0.5, 1, -1)}
    want = expected(
        p.model,
        p.losses(TRAINED),
        {name: p.loss(at) for name, at in tasks.items()},
        eta=etas,
        auxiliary_weight={"a": 1.0, "b": 0.3, "c": 2.0},
        rank=3,
        refresh_index=1,
    )
    assert error(p.grads(), want.grads) < 1e-10
    for name in ("a", "c"):
        parts, g_judge = want.parts[name], judges_gradient(p, want.names)
        cosines = [
            cosine(x, g_judge)
            for x in (parts.neutral, parts.helpful, parts.harmful, want.g_a[name], want.g_p)
        ]
        # The model stands still, so every score is the same (except for the basis, which the
        # refreshes change).
        assert score(report, name)[3:] == pytest.approx(cosines[3:], abs=1e-9)
    values = report.to_dict()
    assert {"a/weight_neutral", "c/score_auxiliary", "c/score_primary"} <= values.keys()
    assert "b/weight_neutral" not in values and "weight_neutral" not in values


def test_the_judges_forward_pass_has_no_side_effects():
    """Dropout, BatchNorm, random state and `.grad` are as without judges."""
    p, guide = make(name="cnn_batch_norm", dtype=torch.float32)
    q, fixed = make(name="cnn_batch_norm", dtype=torch.float32, eta=Eta(0, 0, 0))
    step(p, guide)
    step(q, fixed, judge=None)
    assert error(p.grads(), q.grads()) == 0  # nothing was earned yet: the primary gradient alone
    for x, y in zip(p.model.buffers(), q.model.buffers(), strict=True):
        assert torch.equal(x, y)
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(0)))


def test_using_judges_does_not_wait_for_the_device():
    p, guide = make(dtype=torch.float32)
    step(p, guide)
    losses, loss = p.losses(TRAINED), p.loss()
    with Waits() as watch:
        guide.backward(losses, loss, judge=lambda: p.losses(JUDGES), refresh=False)
    assert not watch.seen


def test_judges_are_needed_once():
    p, guide = make()
    with pytest.raises(ValueError, match="judge"):
        step(p, guide, judge=None)
    step(p, guide)  # the failed step is forgotten


def test_a_first_step_that_fails_leaves_no_scores():
    p, guide = make()
    used = p.loss()
    used.backward()
    with pytest.raises(RuntimeError, match="second time"):
        guide.backward(p.losses(), {"a": p.loss(), "b": used}, judge=lambda: p.losses(JUDGES))
    assert guide.state_dict()["judges"]["records"] == {}


def test_judge_comes_before_auxiliary():
    p, guide = make()
    guide.primary(p.losses(TRAINED))
    with pytest.raises(ValueError, match="judge"):
        guide.auxiliary(p.loss())
    step(p, guide)
    guide.primary(p.losses(TRAINED))
    guide.auxiliary(p.loss())
    with pytest.raises(RuntimeError, match="judge"):
        guide.judge(lambda: p.losses(JUDGES))
    step(p, guide)
