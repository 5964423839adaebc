"""A demo of a few rows, which trains in this process."""

import pytest

from attittud_lab import demo
from attittud_lab.placing.job import in_this_process


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Leave the two baselines that every decision needs and one other row, and start no process."""
    patch.setattr(
        demo, "ROWS", {row: demo.ROWS[row] for row in ("primary_only", "multitask", "flip")}
    )
    patch.setattr(demo, "in_processes", lambda _: in_this_process())
