"""Batches that come after the first refresh."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attittud.autograd.layout import Layout
from attittud.engine import Engine, make_engine
from tests.helpers.layers import Function, weight
from tests.helpers.oracle import jacobian


def data(*shape: int) -> Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(shape[0]), dtype=torch.float64
    )


def losses_of(out: Tensor) -> Tensor:
    out = torch.tanh(out).flatten(1)
    return (out - torch.linspace(-1, 1, out.shape[1], dtype=out.dtype)).square().mean(1)


def raw() -> nn.Module:
    return Function(lambda self, x: x, w=weight(6))


# Name -> (model, losses, their arguments in the first batch and in a later one)
Case = tuple[Callable[[], nn.Module], Callable[..., Tensor], tuple, tuple]


def refresh(engine: Engine, model: nn.Module, losses: Callable[[], Tensor]) -> None:
    """J Jᵀ against one backward pass per example."""
    layout = Layout(model.named_parameters())
    want = jacobian(losses(), model, layout.names)
    with engine.watch(model):
        got = engine.jacobian(losses(), layout).gram()
    torch.testing.assert_close(got, want @ want.T, equal_nan=True)


def later(case: Case, engine: str) -> None:
    build, losses, first, second = case
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build().double()
    made = make_engine(engine)
    for arguments in (first, second):
        refresh(made, model, lambda arguments=arguments: losses(model, *arguments))
