"""How the gradients of the primary and the auxiliary tasks become one update: strategies by name.

`training/phase.py` builds one with `make_strategy` and calls its `step`.
"""

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
