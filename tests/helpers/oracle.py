"""The slow way: explicit Jacobian, explicit Gram-Schmidt and SVD, every part of the gradient
written out.

Nothing here uses the library's own maths. ``expected`` says what one step must leave in ``.grad``,
from the definitions: build the basis, project on one basis vector after the other, compare signs,
add the three weighted parts. The one thing taken from the library are the random numbers of the
sketch, because they are part of its definition.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attittud.basis.base import gaussian
from tests.helpers.zoo import Problem

PRESETS = {  # eta and primary weight as the paper and the design give them
    "primary_only": ((0, 0, 0), 1),
    "pretrain": ((1, 1, 1), 0),
    "multitask": ((1, 1, 1), 1),
    "pcgrad": ((1, 1, 0), 1),
    "drop_harmful": ((1, 1, 0), 1),
    "orthogonal": ((1, 0, 0), 1),
    "helpful_only": ((0, 1, 0), 1),
    "flip": ((1, 1, -1), 1),
    "orthogonal_flip": ((1, 0, -1), 1),
}
BASES = ("sketch", "svd", "exact", "mean", "random", "canonical")
FULL_BASES = ("sketch", "svd", "exact", "random")  # those with a free rank


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def gradients(loss: Tensor, model: nn.Module) -> dict[str, Tensor | None]:
    """Plain gradients of a scalar; None where the loss does not reach."""
    params = trainable(model)
    return dict(
        zip(
            params,
            torch.autograd.grad(loss, list(params.values()), retain_graph=True, allow_unused=True),
            strict=True,
        )
    )


def flatten(grads: Mapping[str, Tensor | None], names: Collection[str]) -> Tensor:
    found = [grads[name] for name in names]
    assert all(g is not None for g in found)
    return torch.cat([g.reshape(-1) for g in found])


def unflatten(vector: Tensor, model: nn.Module, names: Collection[str]) -> dict[str, Tensor]:
    params = trainable(model)
    pieces = vector.split([params[name].numel() for name in names])
    return {
        name: piece.reshape(params[name].shape) for name, piece in zip(names, pieces, strict=True)
    }


def shared_names(model: nn.Module, primary: Tensor, *auxiliary: Tensor) -> list[str]:
    """Parameters that the primary and at least one auxiliary loss reach."""
    p = gradients(primary.sum(), model)
    a = [gradients(loss, model) for loss in auxiliary]
    return [name for name in p if p[name] is not None and any(g[name] is not None for g in a)]


def jacobian(losses: Tensor, model: nn.Module, names: Collection[str]) -> Tensor:
    """One backward pass per example; its rows are the per-example gradients."""
    return torch.stack([flatten(gradients(loss, model), names) for loss in losses])


def gram_schmidt(rows: Tensor) -> Tensor:
    """Classical, twice, in row order; a row that adds no direction becomes zero."""
    out = torch.zeros_like(rows)
    for j, row in enumerate(rows):
        v = row.clone()
        for _ in range(2):
            for u in out[:j]:
                v = v - (u @ v) * u
        if v.norm() > 1e-9 * row.norm():
            out[j] = v / v.norm()
    return out


def build_basis(kind: str, J: Tensor, rank: int, seed: int = 0, refresh_index: int = 0) -> Tensor:
    """V from an explicit J (m x D); ``random`` has no oracle."""
    m, D = J.shape
    if kind == "sketch":
        return gram_schmidt(gaussian(seed, refresh_index, rows=rank, first=0, columns=m).to(J) @ J)
    if kind in ("svd", "exact"):
        _, values, rows = torch.linalg.svd(J, full_matrices=False)
        return rows[:rank] * (values[:rank, None] > 1e-9 * values[0])
    if kind == "mean":
        return gram_schmidt(J.mean(0, keepdim=True))
    if kind == "canonical":
        return torch.eye(D, dtype=J.dtype)
    raise ValueError(kind)


def with_mean(V: Tensor, g_p: Tensor) -> Tensor:
    """Append the part of g_p outside the span of V, unless it is rounding noise."""
    r = g_p - V.T @ (V @ g_p)
    r = r - V.T @ (V @ r)
    size = r.norm() / g_p.norm()
    assert size < 1e-9 or size > 1e-3, (
        "the problem is a bad test: the residual of g_p is neither zero nor clearly there"
    )
    return torch.cat([V, (r / r.norm())[None]]) if size > 1e-3 else V


@dataclass
class Parts:
    neutral: Tensor
    helpful: Tensor
    harmful: Tensor
    agreement: float  # share of the directions that are helpful

    def weighted(self, eta: tuple[float, float, float]) -> Tensor:
        return eta[0] * self.neutral + eta[1] * self.helpful + eta[2] * self.harmful


def split(g_a: Tensor, g_p: Tensor, V: Tensor) -> Parts:
    """The three parts by definition, one basis vector after the other."""
    helpful, harmful = torch.zeros_like(g_a), torch.zeros_like(g_a)
    n_helpful, n = 0, 0
    for v in V:
        if not v.any():
            continue
        a, p = v @ g_a, v @ g_p
        if torch.sign(a) * torch.sign(p) < 0:
            harmful += a * v
        else:
            helpful += a * v
            n_helpful += 1
        n += 1
    return Parts(g_a - helpful - harmful, helpful, harmful, n_helpful / n if n else float("nan"))


@dataclass
class Expected:
    grads: dict[str, Tensor | None]
    V: Tensor
    g_p: Tensor
    g_a: dict[str, Tensor]
    parts: dict[str, Parts]
    names: list[str]
    margin: float  # smallest |<v_j, g>| / |g|: how far the nearest sign change is


def per_task(value: Any, name: str) -> Any:
    return value[name] if isinstance(value, Mapping) else value


def expected(
    model: nn.Module,
    primary: Tensor,
    auxiliary: Tensor | Mapping[str, Tensor],
    *,
    eta: Any,
    basis: str | Tensor = "sketch",
    rank: int = 10,
    primary_weight: float = 1.0,
    auxiliary_weight: Any = 1.0,
    include_mean: bool = False,
    seed: int = 0,
    refresh_index: int = 0,
    basis_losses: Tensor | None = None,
    only: Collection[str] | None = None,
) -> Expected:
    """What one step leaves in ``.grad``; ``basis`` may be V itself, ``eta`` a dict."""
    tasks = auxiliary if isinstance(auxiliary, Mapping) else {"auxiliary": auxiliary}
    names = [n for n in shared_names(model, primary, *tasks.values()) if only is None or n in only]
    zeros = {name: torch.zeros_like(p) for name, p in trainable(model).items()}
    primary_grads = gradients(primary.mean(), model)
    task_grads = {t: gradients(loss, model) for t, loss in tasks.items()}
    filled = {
        t: {n: zeros[n] if g is None else g for n, g in grads.items()}
        for t, grads in task_grads.items()
    }
    g_p = flatten(primary_grads, names)
    g_a = {t: flatten(grads, names) for t, grads in filled.items()}

    V = basis
    if isinstance(V, str):
        J = jacobian(primary if basis_losses is None else basis_losses, model, names)
        V = build_basis(V, J, rank, seed, refresh_index)
    rows = with_mean(V, g_p) if include_mean else V
    parts = {t: split(g, g_p, rows) for t, g in g_a.items()}

    update = primary_weight * g_p
    for t, part in parts.items():
        update = update + per_task(auxiliary_weight, t) * part.weighted(per_task(eta, t))
    grads = unflatten(update, model, names)
    for name, nothing in zeros.items():
        if name in grads:
            continue
        p, reaching = primary_grads[name], [t for t in tasks if task_grads[t][name] is not None]
        a = sum((per_task(auxiliary_weight, t) * task_grads[t][name] for t in reaching), nothing)
        if p is None:
            grads[name] = a if reaching else None
        else:
            grads[name] = a + primary_weight * p if reaching else p
    live = rows[rows.any(1)]
    margin = (
        min(((live @ g).abs().min() / g.norm()).item() for g in (g_p, *g_a.values()))
        if len(live)
        else float("inf")
    )
    return Expected(grads, V, g_p, g_a, parts, names, margin)


def expected_for(p: Problem, **options: Any) -> Expected:
    """What one step on all of a problem's data leaves."""
    return expected(p.model, p.losses(), p.loss(), **options)


def error(got: Mapping[str, Tensor | None], want: Mapping[str, Tensor | None]) -> float:
    """Relative error of all gradients together; None is compared with None (or nothing)."""
    found = {n for n, g in got.items() if g is not None}
    assert found == {n for n, g in want.items() if g is not None}
    names = [n for n, g in want.items() if g is not None]
    a, b = flatten(got, names).double(), flatten(want, names).double()
    return ((a - b).norm() / b.norm()).item()


def distance(a: Tensor, b: Tensor) -> float:
    """Relative distance of two tensors."""
    return ((a.double() - b.double()).norm() / b.double().norm()).item()
