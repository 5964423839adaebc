"""comparison.json from finished runs, and damaged results."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from attittud_lab.compare.content import _example_worth, checked
from attittud_lab.errors import InputError
from attittud_lab.runs.result import RunResult
from tests.helpers.comparisons import config


def run(
    seconds: float = 2.0, steps: int = 4, accuracy: float = 0.5, finetune: float = 1.0
) -> RunResult:
    phases = [
        {"name": "guided", "steps": steps, "seconds": seconds, "stopped": None},
        {"name": "finetune", "steps": 1, "seconds": finetune, "stopped": None},
    ]
    figures = {"accuracy": accuracy, "loss": 1.0}
    return RunResult(
        "flip", 0, "accuracy", figures, figures, phases, 1, {"test": 9}, Path(f"run-{seconds:g}")
    )


def test_damaged_results_are_refused():
    assert checked(run()) == run()
    for damaged in (
        run(seconds=0.0),
        run(seconds=math.inf),
        run(steps=0),
        run(accuracy=1.5),
        replace(run(), phases=[]),
    ):
        with pytest.raises(InputError, match=r"run-\w+/result\.json"):
            checked(damaged)


def test_what_one_test_example_is_worth():
    """The mean over all seeds cannot be known better than this."""
    settings = {
        (): 1 / 9,
        ("data.subsets=5",): 1 / (9 * 2),  # there are only two seeds
        ("data.subsets=5", "data.test_seed=1"): 1 / 9,
        ("data.seed=null",): 0.0,
    }
    for changes, worth in settings.items():
        assert _example_worth(config(*changes), run()) == pytest.approx(worth)
    assert _example_worth(config(), replace(run(), metric="macro_f1")) == 0.0
