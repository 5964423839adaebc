"""With the mean gradient as the only direction a step is one-sided PCGrad."""

import pytest
import torch

from attittud import Guide, preset
from tests.helpers.oracle import error, gradients, unflatten
from tests.helpers.zoo import problem


@pytest.mark.parametrize("weight", [1.0, 0.1])
def test_mean_basis_is_one_sided_pcgrad(weight):
    p = problem("mlp", torch.float64, m=9)
    guide = Guide(p.model, **preset("pcgrad") | {"primary_weight": weight})
    conflicts = set()
    for i in range(8):
        at, sign = slice(i, i + 2), (-1) ** (i // 4)
        g_p, g_a = gradients(p.losses(at).mean(), p.model), gradients(sign * p.loss(at), p.model)
        names = [n for n in g_p if g_p[n] is not None and g_a[n] is not None]
        a, b = (torch.cat([g[n].reshape(-1) for n in names]) for g in (g_a, g_p))
        inner = a @ b
        conflicts.add(bool(inner < 0))
        want = a - (inner / b.square().sum() * b if inner < 0 else 0) + weight * b
        p.model.zero_grad()
        report = guide.backward(primary=p.losses(at), auxiliary=sign * p.loss(at))
        assert report.refreshed
        got = {n: g for n, g in p.grads().items() if n in names}
        assert error(got, unflatten(want, p.model, names)) < 1e-12
    assert conflicts == {True, False}
