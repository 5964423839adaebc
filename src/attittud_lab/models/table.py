"""A network for tables: residual blocks of fully connected layers, as in Gorishniy et al. 2021,
with LayerNorm.

BatchNorm would make the gradient of one example depend on the others of its batch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from attittud_lab.models import Wanted


class TableMLP(nn.Module):
    """n x F features to n x model.width."""

    def __init__(self, request: Wanted, blocks: str | None = None) -> None:
        super().__init__()
        self.features = width = request.config.width
        self.first = nn.Linear(math.prod(request.shape), width)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, 2 * width),
                nn.ReLU(),
                nn.Dropout(request.config.dropout),
                nn.Linear(2 * width, width),
                nn.Dropout(request.config.dropout),
            )
            for _ in range(int(blocks or 2))
        )
        self.last = nn.Sequential(nn.LayerNorm(width), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """Return n x width; each block adds to what came before."""
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)  # type: ignore[no-any-return]  # modules return Any
