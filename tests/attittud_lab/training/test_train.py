"""Whole runs on the embedded digits: every strategy trains, and reads the test set once."""

import pytest

from attittud_lab.config.load import loads
from attittud_lab.errors import InputError
from attittud_lab.strategies import find, names
from attittud_lab.training.evaluate import evaluate
from attittud_lab.training.train import load_data, run
from tests.helpers.runs import JOB, job, metrics_of, own

__all__ = ["job"]  # fixtures


def _trains_digits(name: str) -> bool:
    """All but strategies that need features of the images; test_channels.py has those."""
    return not find(name).trains_others and not find(name).translates


@pytest.mark.filterwarnings(
    "ignore:.*(ECOS|not DPP):UserWarning"
)  # cvxpy's, about how TorchJD's Nash-MTL uses it
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate:UserWarning")
@pytest.mark.parametrize("name", [name for name in names() if _trains_digits(name)])
def test_every_strategy_trains(job, tmp_path, name):
    if name.startswith("torchjd_"):
        pytest.importorskip("torchjd", reason="the extra torchjd is not installed")
    try:
        result = run(job, 0, own(name), tmp_path)
    except InputError as error:
        # TorchJD needs its own extras for some aggregators.
        if name.startswith("torchjd_") and "requires" in str(error):
            pytest.skip(str(error))
        raise
    assert result.strategy == name and result.steps == 18
    assert 0.2 < result.test["accuracy"] <= 1 and result.validation["loss"] > 0


def test_the_test_set_is_read_once_at_the_end(job, tmp_path, monkeypatch):
    data, read = load_data(job), []

    def noted(model, task, examples, device):
        read.append(examples)
        return evaluate(model, task, examples, device)

    for module in ("train", "phase"):
        monkeypatch.setattr(f"attittud_lab.training.{module}.evaluate", noted)
    result = run(job, 0, own("flip"), tmp_path, data=data)
    assert [examples is data.test for examples in read] == [False] * 5 + [True]
    assert all(examples is data.validation for examples in read[:-1])
    assert result.validation != result.test


def test_strategies_of_a_seed_share_initialisation_and_batches(job, tmp_path):
    data = load_data(job)
    job1 = loads(JOB, ["log_every=1", "training.guided.steps=1"])
    losses = set()
    for name in ("primary_only", "multitask", "drop_harmful"):
        run(job1, 1, own(name), tmp_path / f"{name}-1", data=data)
        losses.add(metrics_of(tmp_path / f"{name}-1")[0]["loss/primary"])
    assert len(losses) == 1
