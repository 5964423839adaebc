"""The threads of a run: part of what it is, wherever it takes place."""

import json
from pathlib import Path

import pytest
import torch

from attittud_lab.config.load import loads
from attittud_lab.errors import InputError
from attittud_lab.training import devices
from attittud_lab.training.train import load_data, run, threads_of
from tests.helpers.comparisons import JOB
from tests.helpers.interrupted_runs import train_to_end, unfinished


def threads(path: Path) -> object:
    return json.loads((path / "run.json").read_text()).get("threads")


@pytest.mark.parametrize(
    ("override", "small", "expected"),
    [("seed=0", 10**6, 1), ("seed=0", 10, 3), ("training.threads=2", 10**6, 2), ("training.threads=2", 10, 2)],
)
def test_threads_follow_the_model_or_the_configuration(
    override: str, small: int, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "SMALL", small)
    used: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: (used or [3])[-1])  # a machine with three cores
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    config = loads(JOB, [override])
    run(config, run_dir=tmp_path)
    assert threads(tmp_path) == expected and expected in used
    assert used[-1] == 3  # as before
    assert threads_of(config, load_data(config)) == expected


def test_a_continued_run_keeps_its_number_of_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unfinished(tmp_path)
    about = tmp_path / "run.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"threads": 2}))
    used: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    train_to_end(tmp_path)
    assert 2 in used and threads(tmp_path) == 2


@pytest.mark.parametrize("wrong", ["many", 0, None, True])
def test_a_wrong_number_of_threads_is_refused(wrong: object, tmp_path: Path) -> None:
    unfinished(tmp_path)
    about = tmp_path / "run.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"threads": wrong}))
    with pytest.raises(InputError, match=r"threads is .*, which no run writes; start over with --fresh"):
        train_to_end(tmp_path)
