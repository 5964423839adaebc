"""Finished runs are read, the others are trained; slow ones are named with the cure."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attittud_lab.compare import runs as module
from attittud_lab.compare.run import compare
from attittud_lab.compare.table import notes
from attittud_lab.config.schema import Config
from attittud_lab.report import write_report
from tests.helpers.comparisons import config, finished

__all__ = ["finished"]  # fixtures


def timed(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[Config], float]) -> None:
    """Runs are trained as usual, with made-up times for their steps."""
    original = module.train

    def train(job: Config, **options: Any) -> Any:
        result = original(job, **options)
        guided, *others = result.phases
        phases = [
            guided | {"seconds": guided["steps"] * seconds(job)},
            *(phase | {"seconds": 0.5} for phase in others),
        ]
        return replace(result, phases=phases)

    monkeypatch.setattr(module, "train", train)


def test_runs_that_were_timed_on_a_busy_machine_are_named(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost of the strategy comes from its other runs, as long as these are the majority."""
    folder = tmp_path / "compare"
    shutil.copytree(finished[0], folder)
    usual = {"primary_only": 0.01, "multitask": 0.02, "flip": 0.03}
    busy = {("flip", 0.3, 0): 10.0, ("multitask", 1.0, 0): 2.5}

    def seconds(job: Config) -> float:
        key = (job.strategy.name, job.strategy.auxiliary_weight, job.seed)
        return usual[job.strategy.name] * (
            busy.get(key, 1.0) if job.training.guided.steps == 12 else 1.0
        )

    timed(monkeypatch, seconds)
    result = compare(config(), folder)
    assert result["slow"] == {
        "runs/flip/weight-0.3/steps-12-4/seed-0": pytest.approx(10),
        "runs/multitask/weight-1/steps-12-4/seed-0": pytest.approx(2.5),
    }
    assert {
        label: cost["seconds_per_step"] for label, cost in result["costs"].items()
    } == pytest.approx(usual)
    assert result["tables"][1]["rows"][2]["steps"]["guided"] == 8
    # The paths can be pasted: they begin where the command was given.
    slow = [folder / path for path in result["slow"]]
    (warning,) = (note for note in notes(result, folder) if "not reliable" in note)
    assert all(path.is_dir() for path in slow)
    assert f"{slow[0]} (10.0×), {slow[1]} (2.5×)." in warning
    assert "the costs and the table at equal seconds" in warning
    assert f"{slow[0]} (10.0×)" in write_report(folder).read_text()
    # The cure: without these folders the runs are made again, now in time.
    for path in result["slow"]:
        shutil.rmtree(folder / path)
    busy.clear()
    result = compare(config(), folder)
    assert result["slow"] == {} and "Warning: in some" not in " ".join(notes(result, tmp_path))
