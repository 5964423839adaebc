"""The pairs of tasks on which `attittud train` is developed and measured.

`pairs()` lists them, `build()` writes one of them as files with a job that the product can train.
"""

from .pair import Pair
from .write import build

__all__ = ["Pair", "build", "pairs"]


def pairs() -> dict[str, Pair]:
    """All pairs by name."""
    from . import earlier, images, tables, texts  # noqa: F401  # importing them declares their pairs
    from .pair import PAIRS

    return dict(PAIRS)
