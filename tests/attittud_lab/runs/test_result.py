"""Damaged results of runs are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attittud_lab.compare.run import compare
from attittud_lab.errors import InputError
from tests.helpers.comparisons import Trainings, config, finished, trained

__all__ = ["finished", "trained"]  # fixtures


@pytest.mark.parametrize(
    "spoil",
    [
        lambda found: found.clear(),
        lambda found: found["phases"][0].update(seconds="long"),
        lambda found: found["test"].pop("accuracy"),
        lambda found: found["validation"].update(loss=10**400),
    ],
)
def test_damaged_results_of_runs_are_refused(
    spoil: Callable[[dict[str, Any]], None],
    finished: tuple[Path, dict[str, Any]],
    trained: Trainings,
) -> None:
    path = finished[0] / "runs/multitask/weight-1/steps-12-4/seed-0/result.json"
    text = path.read_text()
    found = json.loads(text)
    spoil(found)
    path.write_text(json.dumps(found))
    try:
        with pytest.raises(
            InputError, match=r"seed-0/result.json: is damaged, or was not written by a run"
        ):
            compare(config(), finished[0])
    finally:
        path.write_text(text)
    assert trained == []
