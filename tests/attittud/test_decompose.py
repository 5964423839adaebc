"""Properties of the decomposition, on plain tensors and through whole steps."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from attittud import Eta, Guide, decompose
from attittud.decompose import Numbers, TaskNumbers, combine
from tests.helpers.oracle import split

many = settings(max_examples=60, deadline=None)
weights = st.floats(0, 3)


@st.composite
def cases(draw, in_span=False):
    """(g_aux, g_prim, V) with gradients of any size; ``in_span`` puts g_prim into the span of V."""
    D = draw(st.integers(2, 12))
    k = draw(st.integers(1, D))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    sizes = [10.0 ** draw(st.integers(-18, 10)) for _ in range(2)]
    x = torch.randn(2 + k, D, dtype=torch.float64, generator=generator)
    V = torch.linalg.qr(x[2:].T).Q.T.contiguous()
    g_prim = V.T @ x[1, :k] if in_span else x[1]
    return sizes[0] * x[0], sizes[1] * g_prim, V


def assume_clear(g_prim: torch.Tensor, V: torch.Tensor) -> None:
    """Leave out a g_prim that lies almost in the span: its residual has few digits."""
    residual = (g_prim - V.T @ (V @ g_prim)).norm() / g_prim.norm()
    assume(residual < 1e-12 or residual > 1e-2)


def small(value: torch.Tensor, *factors: torch.Tensor) -> bool:
    """Zero up to rounding of a product of these vectors."""
    return abs(value.item()) <= 1e-12 * torch.stack([f.norm() for f in factors]).prod().item()


@many
@given(cases(), st.booleans())
def test_parts_add_up_and_are_orthogonal(case, include_mean):
    g_aux, g_prim, V = case
    assume_clear(g_prim, V)
    parts = decompose(g_aux, g_prim, V, include_mean=include_mean)
    assert (parts.neutral + parts.helpful + parts.harmful - g_aux).norm() <= 1e-14 * g_aux.norm()
    for x, y in [("neutral", "helpful"), ("neutral", "harmful"), ("helpful", "harmful")]:
        assert small(getattr(parts, x) @ getattr(parts, y), g_aux, g_aux), (x, y)
    assert (V @ parts.neutral).norm() <= 1e-13 * g_aux.norm()


@many
@given(cases())
def test_parts_follow_the_definition(case):
    g_aux, g_prim, V = case
    got, want = decompose(g_aux, g_prim, V), split(g_aux, g_prim, V)
    for name in ("neutral", "helpful", "harmful"):
        assert (getattr(got, name) - getattr(want, name)).norm() <= 1e-12 * g_aux.norm(), name
    eta = (0.5, 2.0, -3.0)
    assert (got.combine(Eta(*eta)) - want.weighted(eta)).norm() <= 1e-12 * g_aux.norm()


@many
@given(cases())
def test_signs_are_right_with_the_mean_included(case):
    g_aux, g_prim, V = case
    assume_clear(g_prim, V)
    parts = decompose(g_aux, g_prim, V, include_mean=True)
    rounding = 1e-12 * g_aux.norm() * g_prim.norm()
    assert parts.helpful @ g_prim >= -rounding
    assert parts.harmful @ g_prim <= rounding
    assert small(parts.neutral @ g_prim, g_aux, g_prim)


@many
@given(cases(), st.sampled_from([1.0, 0.5, 2.0, -1.0, 0.0, 0.1]), st.booleans())
def test_equal_weights_change_nothing(case, c, include_mean):
    g_aux, g_prim, V = case
    assert torch.equal(
        decompose(g_aux, g_prim, V, include_mean=include_mean).combine(Eta(c, c, c)), c * g_aux
    )


@many
@given(cases(), st.integers(0, 2**31))
def test_orthogonal_does_not_depend_on_the_rotation(case, seed):
    g_aux, g_prim, V = case
    Q = torch.linalg.qr(
        torch.randn(len(V), len(V), dtype=V.dtype, generator=torch.Generator().manual_seed(seed))
    ).Q
    one, other = (decompose(g_aux, g_prim, W).combine(Eta(1, 0, 0)) for W in (V, Q @ V))
    assert (one - other).norm() <= 1e-12 * g_aux.norm()


@many
@given(cases(in_span=True), st.floats(-3, 3), weights, weights, weights)
def test_corrected_theorem_1_holds(case, neutral, helpful, harmful, weight):
    """To first order no step raises the primary loss if g_prim is in the span."""
    g_aux, g_prim, V = case
    update = decompose(g_aux, g_prim, V).combine(Eta(neutral, helpful, -harmful)) + weight * g_prim
    assert update @ g_prim >= -1e-12 * (3 * g_aux.norm() + 3 * g_prim.norm()) * g_prim.norm()


@many
@given(cases(in_span=True), weights, weights)
def test_corrected_theorem_1_holds_for_the_auxiliary_loss(case, neutral, helpful):
    """With neutral, helpful >= 0, harmful = 0 and no primary gradient."""
    g_aux, g_prim, V = case
    update = decompose(g_aux, g_prim, V).combine(Eta(neutral, helpful, 0))
    assert update @ g_aux >= -1e-12 * g_aux.norm() ** 2


@pytest.mark.parametrize("weight", [0.5, 1.0, 3.0])
def test_corrected_theorem_1_holds_where_the_part_outside_the_span_is_dropped_as_rounding(weight):
    """g_prim lies almost in the span, and a large auxiliary gradient along the little that does
    not. Numbers of float32 gradients; the update is in the numbers of `Combination`.
    """
    p = torch.tensor([1.0, 0.5], dtype=torch.float64)
    a = torch.tensor([0.3, -0.2], dtype=torch.float64)
    square = p @ p + 1e-9
    inner = p @ a - 2.0  # the auxiliary gradient is 6e4 long outside of the span
    task = TaskNumbers(Eta(1, 0.5, 0), weight, a, torch.tensor(4e9), inner)
    made = combine(
        Numbers(p, square, {"auxiliary": task}), 0.0, include_mean=True, dtype=torch.float32
    )
    assert made.residual == 0
    along = weight * task.eta.neutral * inner + made.rows @ p + made.primary * square
    assert abs(along) <= 1e-9 * weight  # and no more than is needed


def test_a_hundredth_of_the_primary_gradient_outside_of_the_span_is_no_rounding():
    p = torch.tensor([1.0, 0.5], dtype=torch.float64)
    outside = 0.01 * p.norm()
    task = TaskNumbers(Eta(1, 1, 0), 1.0, p, torch.tensor(4.0), p @ p)
    numbers = Numbers(p, p @ p + outside**2, {"auxiliary": task})
    made = combine(numbers, 1.0, include_mean=True, dtype=torch.float32)
    torch.testing.assert_close(made.residual, outside[None])


def test_theorem_1_as_printed_is_false():
    """A purely neutral step, g_prim in the span, takes the primary loss from 0.5 to 1.0."""
    model = nn.Module()
    model.theta = nn.Parameter(torch.tensor([1.0, 0.0]))
    guide = Guide(model, eta=Eta(1, 1, 0), basis="mean", primary_weight=0)

    def primary():
        return (model.theta.square().sum() / 2).expand(2)

    assert primary().mean() == 0.5
    report = guide.backward(primary=primary(), auxiliary=model.theta[1])
    assert (report.neutral, report.helpful, report.harmful, report.captured_primary) == (1, 0, 0, 1)
    torch.optim.SGD(model.parameters(), lr=1).step()
    assert primary().mean() == 1.0


def test_zero_rows_are_ignored():
    g_aux, g_prim = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([-1.0, 1.0, 1.0])
    V = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    parts = decompose(g_aux, g_prim, V, check=True)
    assert parts.harmful.tolist() == [1, 0, 0]
    assert parts.helpful.tolist() == [0, 2, 0]
    assert parts.neutral.tolist() == [0, 0, 3]


def test_signs_survive_where_products_underflow():
    V = torch.eye(2)
    parts = decompose(torch.tensor([1e-30, 1e-30]), torch.tensor([-1e-30, 1e-30]), V)
    assert parts.harmful[0] == torch.tensor(1e-30)
    assert parts.helpful[1] == torch.tensor(1e-30)


@pytest.mark.parametrize(
    ("g_aux", "g_prim", "basis", "words"),
    [
        (torch.ones(3), torch.ones(2), torch.eye(3), ("g_aux", "g_prim")),
        (torch.ones(3, 1), torch.ones(3, 1), torch.eye(3), ("vector",)),
        (torch.ones(3), torch.ones(3), torch.eye(4), ("basis", "3")),
        (torch.ones(3), torch.ones(3), torch.ones(2, 3), ("basis", "orthonormal")),
        (torch.ones(3), torch.ones(3), 2 * torch.eye(3), ("basis", "orthonormal")),
    ],
)
def test_wrong_input_is_refused(g_aux, g_prim, basis, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is looked at below
        decompose(g_aux, g_prim, basis, check=True)
    assert all(word in str(caught.value) for word in words)
