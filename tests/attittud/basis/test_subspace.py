"""How a subspace finishes an update: no harm with the mean in the basis, and rounding."""

import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from attittud import Eta, Guide, decompose
from attittud.decompose import residual_tolerance
from tests.helpers.degenerate import few_warnings
from tests.helpers.oracle import error
from tests.helpers.steps import step
from tests.helpers.zoo import problem

__all__ = ["few_warnings"]


class Vector(nn.Module):
    """Losses with any gradients one likes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(size))


def test_basis_dtype_rounds_a_finished_basis():
    """bf16 is for keeping, not for orthonormalising: the stored basis is the rounded fp32 one."""
    full, half = problem("mlp"), problem("mlp")
    V = step(full, eta=Eta(1, 0, -1), rank=4).state_dict()["basis"]
    W = step(half, eta=Eta(1, 0, -1), rank=4, basis_dtype=torch.bfloat16).state_dict()["basis"]
    assert V.dtype == torch.float32
    assert W.dtype == torch.bfloat16
    assert torch.equal(V.to(torch.bfloat16), W)
    assert error(half.grads(), full.grads()) < 2e-2


@given(
    st.integers(0, 2**31),
    st.sampled_from([(1, 1, 0), (1, 0, 0), (1, 1, -1), (0, 1, 0), (2, 0.5, -0.5), (-1, 1, 0)]),
    st.floats(0, 2),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from([None, torch.bfloat16]),
    st.floats(-5, 2),
    st.floats(-4, 6),
)
# A residual that looks like rounding of the stored rows, and a large auxiliary gradient along it.
@example(158, (1, 0, 0), 0.0, torch.float64, torch.bfloat16, 0.0, 2.0)
@example(236, (1, 1, 0), 0.5, torch.float64, torch.bfloat16, -1.0, 5.0)
def test_with_the_mean_in_the_basis_no_update_points_against_the_primary_gradient(
    seed, eta, weight, dtype, storage, outside, size
):
    """Whatever the sizes: up to the rounding of the update itself, a few times eps ‖g_prim‖
    (‖g_aux‖ + ‖g_prim‖) ‖g_prim‖/‖r‖.

    The update holds a multiple of r, the part of g_prim outside of the span, computed as g_prim
    less its part in the span: the smaller r is, the more digits cancel. Below `residual_tolerance`
    r is left out.

    `outside`: how far the primary gradient is outside of the span, `size`: how long the auxiliary
        gradient is, in decades.
    """
    generator = torch.Generator().manual_seed(seed)
    D, k = 12, 3
    V = torch.linalg.qr(torch.randn(D, k, generator=generator, dtype=torch.float64)).Q.T.to(dtype)
    inside, rest, g_aux = torch.randn(3, D, generator=generator, dtype=dtype)
    rest = rest - V.T @ (V @ rest)
    g_prim = V.T @ (V @ inside) + 10**outside * rest / rest.norm()
    g_aux = 10**size * g_aux
    model = Vector(D).to(dtype)
    guide = Guide(
        model,
        eta=Eta(*eta),
        primary_weight=weight,
        rank=k,
        include_mean=True,
        basis="exact",
        basis_dtype=storage,
    )
    examples = g_prim + torch.randn(4, D, generator=generator, dtype=dtype)
    guide.backward(primary=examples @ model.x, auxiliary=g_aux @ model.x)
    guide.load_state_dict(guide.state_dict() | {"basis": V})
    model.zero_grad()
    guide.backward(primary=(g_prim @ model.x)[None], auxiliary=g_aux @ model.x, refresh=False)
    update = model.x.grad.double()
    lengths = (g_aux.double().norm() + g_prim.double().norm()) * (1 + max(map(abs, eta)) + weight)
    cancels = 1 + g_prim.double().norm() / max(
        10**outside, float(residual_tolerance(dtype) * g_prim.double().norm())
    )
    assert (
        update @ g_prim.double()
        >= -16 * torch.finfo(dtype).eps * g_prim.double().norm() * lengths * cancels
    )


def test_no_update_opposes_the_primary_gradient_even_if_sizes_differ_a_lot():
    """The primary gradient lies almost in the span, the auxiliary one along the part outside."""
    g_prim, g_aux = torch.tensor([1.0, 0.0, 1e-3]), torch.tensor([1.0, 0.0, -1e4])
    parts = decompose(g_aux, g_prim, torch.eye(3)[:2], include_mean=True)
    assert parts.combine(Eta(1, 1, 0)) @ g_prim >= 0
    model = Vector(3)
    guide = Guide(
        model,
        eta=Eta(1, 1, 0),
        basis="mean",
        refresh_every=1,
        include_mean=True,
        basis_dtype=torch.bfloat16,
    )
    guide.backward(primary=(g_prim @ model.x).expand(2), auxiliary=g_aux @ model.x)
    assert model.x.grad @ g_prim >= 0
