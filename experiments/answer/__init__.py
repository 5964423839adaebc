"""The pairs of tasks on which `attittud train` is developed and measured.

`pairs()` lists them, `build()` writes one of them as files with a job that the product can train.
"""

from pathlib import Path

import yaml

from .pair import Pair
from .write import build

__all__ = ["Pair", "build", "pairs"]

DECLARED = Path(__file__).parent / "pairs.yaml"


def pairs() -> dict[str, Pair]:
    """All declared pairs by name."""
    from . import earlier, held_out, images, tables, texts  # noqa: F401  # they register builders
    from .pair import BUILDERS

    declared = yaml.safe_load(DECLARED.read_text(encoding="utf-8"))
    result = {}
    for name, facts in declared.items():
        labels = tuple(facts.pop("labels"))
        result[name] = Pair(name=name, labels=labels, make=BUILDERS[name], **facts)
    return result
