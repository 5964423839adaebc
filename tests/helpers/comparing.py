"""An engine's products with J, compared with one backward pass per example."""

import torch
from torch import Tensor, nn

from attittud.autograd.layout import Layout
from attittud.engine import make_engine
from tests.helpers.oracle import jacobian, trainable


def reached(losses: Tensor, model: nn.Module) -> list[str]:
    parameters = list(trainable(model).values())
    found = torch.autograd.grad(losses.sum(), parameters, retain_graph=True, allow_unused=True)
    return [
        name for name, gradient in zip(trainable(model), found, strict=True) if gradient is not None
    ]


def compare(engine: str, model: nn.Module, losses, rows: int = 3, tolerance: float = 1e-11) -> None:
    """All three operations against an explicit J."""
    names = reached(losses(), model)
    J = jacobian(losses(), model, names)
    layout = Layout((name, trainable(model)[name]) for name in names)

    def as_rows(flat: Tensor) -> Tensor:
        return torch.cat([view.reshape(view.shape[0], -1) for view in layout.views(flat)], dim=1)

    def distance(got: Tensor, want: Tensor) -> float:
        return ((got - want).norm() / want.norm()).item()

    made = make_engine(engine)
    with made.watch(model):
        touched = made.jacobian(losses(), layout)
        weights, vectors = torch.randn(rows, len(J)).to(J), torch.randn(2, layout.size).to(J)
        product = weights @ J
        assert distance(as_rows(touched.left(weights)), product) < tolerance
        found = distance(as_rows(touched.left(weights, touched.left(weights))), 2 * product)
        assert found < tolerance
        assert distance(touched.right(vectors), J @ as_rows(vectors).T) < tolerance
        assert distance(touched.gram(), J @ J.T) < tolerance
