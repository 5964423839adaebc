"""The threads of a run: measured once, then part of what the run is, wherever it takes place."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from attittud_lab.compare.run import compare
from attittud_lab.config.load import loads
from attittud_lab.errors import InputError
from attittud_lab.training import devices
from attittud_lab.training.phase import Phase
from attittud_lab.training.train import load_data, run, threads_of
from tests.helpers.comparisons import JOB
from tests.helpers.comparisons import config as comparison
from tests.helpers.interrupted_runs import JOB as INTERRUPTED
from tests.helpers.interrupted_runs import outcome, train_to_end, unfinished

MANY = 3


class Machine:
    """A machine with three cores on which a step takes a known time for each number of threads."""

    def __init__(self, seconds: Mapping[int, float]) -> None:
        self.seconds = seconds
        self.threads = MANY
        self.now = 0.0
        self.counts: list[int] = []
        """The number of threads of every step."""

    def use(self, count: int) -> None:
        self.threads = count

    def step(self, *_: object) -> None:
        self.counts.append(self.threads)
        self.now += self.seconds[self.threads]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Replace torch's threads and the clock; a step is a real one that takes a known time."""
    machine = Machine({1: 0.01, 2: 1.0, MANY: 1.5})
    original = Phase.step

    def step(phase: Phase) -> object:
        machine.step()
        return original(phase)

    monkeypatch.setattr(torch, "get_num_threads", lambda: machine.threads)
    monkeypatch.setattr(torch, "set_num_threads", machine.use)
    monkeypatch.setattr(devices, "perf_counter", lambda: machine.now)
    monkeypatch.setattr(Phase, "step", step)
    return machine


def recorded(path: Path) -> object:
    return json.loads((path / "run.json").read_text()).get("threads")


@pytest.mark.parametrize(
    ("several", "expected"),
    [(1.5, 1), (0.0095, 1), (0.0085, MANY)],
)
def test_a_measurement_chooses_one_thread_unless_more_are_clearly_faster(
    several, expected, machine, tmp_path
):
    machine.seconds = {1: 0.01, MANY: several}
    config = loads(JOB)
    run(config, run_dir=tmp_path)
    assert recorded(tmp_path) == expected
    assert machine.counts[-1] == expected and machine.threads == MANY  # as before the run
    assert machine.now < 10 + 100 * 0.01  # few slow steps
    assert threads_of(config, load_data(config)) == expected


def test_a_configured_number_of_threads_is_not_measured(machine, tmp_path):
    config = loads(JOB, ["training.threads=2"])
    run(config, run_dir=tmp_path)
    assert recorded(tmp_path) == 2 and set(machine.counts) == {2}
    assert threads_of(config, load_data(config)) == 2


def test_a_hiccup_does_not_decide():
    machine = Machine({1: 0.01, MANY: 0.002})
    usual = torch.get_num_threads()
    taken = iter(range(100))

    def step() -> None:
        if next(taken) == 7:
            machine.now += 1.0
        machine.step()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "set_num_threads", machine.use)
        patch.setattr(devices, "perf_counter", lambda: machine.now)
        assert devices.fastest_threads(step, MANY) == MANY
    assert torch.get_num_threads() == usual


@pytest.mark.usefixtures("machine")
def test_the_measurement_changes_no_result(tmp_path):
    run(loads(JOB), run_dir=tmp_path / "measured")
    run(loads(JOB, ["training.threads=1"]), run_dir=tmp_path / "configured")
    assert recorded(tmp_path / "measured") == 1
    assert outcome(tmp_path / "measured") == outcome(tmp_path / "configured")


def test_a_continued_run_keeps_its_number_of_threads(machine, tmp_path):
    unfinished(tmp_path)
    about = tmp_path / "run.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"threads": 2}))
    machine.counts.clear()
    machine.threads = MANY
    run(loads(INTERRUPTED, ["model.name=mlp"]), run_dir=tmp_path)
    assert recorded(tmp_path) == 2 and set(machine.counts) == {2}


def test_later_runs_of_a_comparison_keep_its_number_of_threads(machine, tmp_path):
    machine.seconds = {1: 0.01, MANY: 0.005}
    compare(comparison(), tmp_path)
    machine.seconds = {1: 0.01, MANY: 0.5}  # the machine is busy now
    compare(comparison("compare.seeds=3"), tmp_path)
    assert {recorded(path.parent) for path in tmp_path.rglob("run.json")} == {MANY}


@pytest.mark.parametrize("wrong", ["many", 0, None, True])
def test_a_wrong_number_of_threads_is_refused(wrong, tmp_path):
    unfinished(tmp_path)
    about = tmp_path / "run.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"threads": wrong}))
    with pytest.raises(InputError, match=r"run\.json"):
        train_to_end(tmp_path)
