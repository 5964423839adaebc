"""A demo of a few rows, which trains in this process."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from attittud_lab import demo


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Leave the two baselines that every decision needs and one other row, and start no process."""
    patch.setattr(demo, "ROWS", {row: demo.ROWS[row] for row in ("primary_only", "multitask", "flip")})
    patch.setattr(demo, "worker_processes", lambda _: ThreadPoolExecutor(1))
