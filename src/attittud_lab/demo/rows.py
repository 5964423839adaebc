"""The rows of the table. A new one is one more `Row`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attittud import preset

BASELINE = "primary_only"


@dataclass(frozen=True)
class Row:
    """A way to use the auxiliary data."""

    name: str
    what: str
    phases: tuple[dict[str, Any], ...] = ()
    """Keyword arguments of a `Guide`, one after the other with equal shares of the steps; empty: the preset `name`."""
    own_head: bool = False
    """The auxiliary task has its own output layer instead of the primary task's."""

    @property
    def guides(self) -> tuple[dict[str, Any], ...]:
        return self.phases or (preset(self.name),)


ROWS = (
    Row(BASELINE, "ignores the auxiliary data"),
    Row(
        "pretrain",
        "auxiliary data alone for half of the steps, then primary data alone",
        (preset("pretrain"), preset(BASELINE)),
    ),
    Row("multitask", "the plain sum of both losses: Eta (1, 1, 1)"),
    Row("pcgrad", "one-sided PCGrad: (1, 1, 0) against the mean primary gradient"),
    Row("drop_harmful", "Eta (1, 1, 0)"),
    Row("orthogonal", "Eta (1, 0, 0)"),
    Row("helpful_only", "Eta (0, 1, 0)"),
    Row("flip", "Eta (1, 1, -1)"),
    Row("orthogonal_flip", "Eta (1, 0, -1)"),
    Row("auto", "every part earns its weight before judges", ({"eta": "auto"},)),
    Row(
        "own_head",
        "control: multitask, the auxiliary task with an output layer of its own",
        (preset("multitask"),),
        True,
    ),
)
