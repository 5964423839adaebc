"""The decomposition as an aggregator of TorchJD, from `[primary gradients; auxiliary gradients]` to
one update.

aggregator = Attittud(Eta(neutral=1, helpful=1, harmful=0), primary_rows=len(losses))
backward([losses, auxiliary_loss])             # torchjd.autojac: fills .jac
jac_to_grad(model.parameters(), aggregator)    # fills .grad
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attittud._checks import check_count
from attittud.basis.base import tolerance
from attittud.decompose import decompose
from attittud.eta import Eta, check_weight
from attittud.integrations import missing_extra

try:
    from torchjd.aggregation import Aggregator
except ImportError as error:
    raise missing_extra("torchjd", error) from error


class Attittud(Aggregator):  # type: ignore[misc] # mypy skips torchjd, see pyproject.toml
    """Decomposes the last rows of a Jacobian in the subspace of its first rows.

    The basis is the same as in `Guide(basis="exact", refresh_every=1)`: the top right singular
    vectors of the primary rows. With one primary row the basis is the direction of this row, and
    `Eta(1, 1, 0)` makes it one-sided PCGrad.

    Args:
        eta: one Eta for all auxiliary rows, or one for each row.
        primary_weight: weight of the mean primary row in the update; unlike in `Guide`, also for
            the primary task's own parameters.
        primary_rows: how many rows, from the top, are gradients of single primary examples; 1 for
            the mean primary gradient.
        rank: the largest number of directions along which gradients are compared.
    """

    def __init__(
        self,
        eta: Eta | Sequence[Eta],
        *,
        primary_weight: float = 1.0,
        primary_rows: int = 1,
        rank: int = 10,
    ) -> None:
        super().__init__()
        self.eta: Eta | tuple[Eta, ...]
        if isinstance(eta, Eta):
            self.eta = eta
        else:
            self.eta = tuple(eta)
        self.primary_weight = check_weight("primary_weight", primary_weight)
        self.primary_rows = check_count("primary_rows", primary_rows)
        self.rank = check_count("rank", rank)

    def forward(self, matrix: Tensor, /) -> Tensor:
        """Aggregate the rows of a Jacobian (m x D), of which the first `primary_rows` are primary, to
        one update (D): primary_weight * mean primary row + Σ of the re-weighted auxiliary rows.
        """
        primary = matrix[: self.primary_rows]
        auxiliary = matrix[self.primary_rows :]
        if len(auxiliary) == 0:
            raise ValueError(
                f"the Jacobian has {len(matrix)} rows and primary_rows={self.primary_rows}, so "
                "none is auxiliary"
            )
        etas = self.eta
        if isinstance(etas, Eta):
            etas = (etas,) * len(auxiliary)
        if len(etas) != len(auxiliary):
            raise ValueError(
                f"{len(etas)} Etas were given for {len(auxiliary)} auxiliary rows; pass one Eta, "
                "or one for each row"
            )
        mean = primary.mean(dim=0)
        # Primary rows with NaN or Inf give a basis of zero rows, so every auxiliary row is neutral as
        # a whole. The mean still has the NaN or Inf and hands it on to the update.
        finite_rows = torch.where(torch.isfinite(primary).all(), primary, 0.0)
        _, sizes, directions = torch.linalg.svd(finite_rows, full_matrices=False)
        # Directions that are only rounding become zero rows, which `decompose` ignores.
        is_significant = sizes > tolerance(matrix.dtype) * sizes[0]
        basis = torch.where(is_significant[:, None], directions, 0.0)[: self.rank]
        update = self.primary_weight * mean
        for row, eta in zip(auxiliary, etas, strict=True):
            update = update + decompose(row, mean, basis).combine(eta)
        return update

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.eta!r}, primary_weight={self.primary_weight}, "
            f"primary_rows={self.primary_rows}, rank={self.rank})"
        )
