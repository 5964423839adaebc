"""How the gradients of the primary and the auxiliary tasks become one update: strategies by name."""

import attittud_lab.strategies.guided
import attittud_lab.strategies.mixing
import attittud_lab.strategies.portfolio  # noqa: F401 - importing them registers their strategies
from attittud_lab.strategies.base import (
    StepKind,
    StepLosses,
    Strategy,
    Telemetry,
    completed,
    find,
    make_strategy,
    names,
    register,
)

__all__ = [
    "COMPARED",
    "StepKind",
    "StepLosses",
    "Strategy",
    "Telemetry",
    "completed",
    "find",
    "make_strategy",
    "names",
    "register",
]

COMPARED = ("pretrain", "pcgrad", "drop_harmful", "flip", "auto")
"""The default of compare.strategies. It is not in the schema, whose import would make `--help` slow."""
