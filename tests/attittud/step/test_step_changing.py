"""Steps that differ from each other, drawn at random, against the slow way: batches of any size,
repeated examples, resumption.

V is checked against the explicit Jacobian, and the update against the definition with this V.
"""

import random
import warnings

import pytest
import torch
from torch import Tensor

from attittud import AccumulationWarning, Eta, Guide
from tests.helpers import oracle
from tests.helpers.zoo import Problem, problem

MODELS = ["mlp", "frozen", "unused", "reused", "layer_norm", "cnn_group_norm"]
MODELS += ["tied_module", "embedding", "transformer"]
ETAS = [(1, 1, 0), (1, 1, -1), (0, 1, 0), (1, 0, 0), (0.3, -0.7, 2.5), (-2, 0.5, 0.5)]
ROUNDING = {None: 1e-9, torch.float32: 1e-6, torch.bfloat16: 2**-6}


def repeat_some(p: Problem, draw: random.Random, m: int) -> None:
    """m primary examples, some of them several times."""
    if draw.random() < 0.4:
        again = [draw.randrange(max(1, m // 2)) for _ in range(m)]
        p.xp, p.yp = p.xp[again], p.yp[again]


def rows(guide: Guide) -> Tensor:
    """V with columns in the order of the parameters, float64."""
    space = guide.subspace
    return torch.stack(
        [torch.cat([part.reshape(-1) for part in space.split(row)]) for row in space.rows.double()]
    )


def check_rows(V: Tensor, J: Tensor, storage: torch.dtype | None) -> None:
    """Orthonormal, in the row space of J, and no more of them than that has dimensions."""
    live = V[V.any(1)]
    values, right = torch.linalg.svd(J, full_matrices=False)[1:]
    space = right[values > 1e-12 * values[0]]
    rounding = ROUNDING[storage]
    assert len(live) <= len(space)
    assert (live @ live.T - torch.eye(len(live))).abs().max() < rounding
    assert (live - live @ space.T @ space).norm(dim=1).max() < max(rounding, 1e-4)


@pytest.mark.parametrize("seed", range(16))
def test_every_step_follows_the_definition(seed):
    draw = random.Random(seed)
    warnings.simplefilter("ignore", AccumulationWarning)
    name = draw.choice(MODELS)
    basis = draw.choice(["sketch", "svd", "exact"])
    rank = draw.choice([1, 2, 4, 7])
    storage = draw.choice([None, None, torch.float32, torch.bfloat16])
    eta = draw.choice(ETAS)
    weight = draw.choice([1, 0, 0.1])
    settings = {
        "eta": Eta(*eta),
        "primary_weight": weight,
        "basis": basis,
        "rank": rank,
        "refresh_every": draw.choice([1, 2, 3]),
        "engine": draw.choice(["loop", "hooks"]),
        "basis_dtype": storage,
        "seed": seed,
    }
    p = problem(name, torch.float64, m=2, seed=seed)
    model = p.model
    guide = Guide(model, **settings)
    age = None
    for number in range(5):
        m = draw.choice([1, 2, 3, max(1, rank - 1), rank, rank + 1, 12])
        p = problem(name, torch.float64, m=m, seed=100 * seed + number)
        p.model = model
        repeat_some(p, draw, m)
        due = age is None or age >= settings["refresh_every"]
        if age is None and m < 2:
            with pytest.raises(ValueError, match="at least 2"):
                guide.backward(p.losses, p.loss())
            continue
        model.zero_grad()
        losses, loss = p.losses(), p.loss()
        shared = oracle.shared_names(model, losses, loss)
        J = oracle.jacobian(losses, model, shared)
        report = guide.backward(p.losses, p.loss())
        assert report.refreshed == (due and m >= 2)
        age = 1 if report.refreshed else age + 1
        assert list(guide.shared_parameters) == shared
        V = rows(guide)
        if report.refreshed:
            check_rows(V, J, storage)
            assert report.effective_rank <= min(m, rank)
        want = oracle.expected(model, losses, loss, eta=eta, basis=V, primary_weight=weight)
        if want.margin > 1e-9:
            assert oracle.error(p.grads(), want.grads) < 1e-9
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=0.1)
        if draw.random() < 0.2:
            kept = draw.random() < 0.5
            state = guide.state_dict(include_basis=kept)
            guide = Guide(model, **settings)
            guide.load_state_dict(state)
            age = age if kept else None
