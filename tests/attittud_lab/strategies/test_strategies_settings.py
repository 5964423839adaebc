"""Every strategy with settings drawn by a seed: a job is refused in one paragraph, or it trains to
finite figures.
"""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import attittud
from attittud_lab.config.load import loads
from attittud_lab.data.prepare import Prepared
from attittud_lab.errors import InputError
from attittud_lab.strategies import find, names
from attittud_lab.training.train import load_data, run

JOB = """
data: {primary: {path: digits, train: 40, validation: 20, test: 30}, auxiliary: {more: {path: digits, examples: 60}}}
model: {name: mlp, width: 4}
training:
  mode: joint
  guided: {steps: 2, evaluations: 1, primary_batch: 8, batch_size: 8}
"""
SETTINGS: dict[str, list[Any]] = {
    "strategy.eta": [
        None,
        [1, 1, 0],
        {"harmful": -1e10},
        {"helpful": 0.5},
        {"neutral": 0, "helpful": 0, "harmful": 0},
    ],
    "strategy.basis": [None, *attittud.bases()],
    "strategy.engine": ["auto", *attittud.engines()],
    "strategy.rank": [1, 2, 9, 4096],
    "strategy.primary_weight": [None, 0, 0.5, 1e10],
    "strategy.auxiliary_weight": [0, 1e-30, 0.5, 1e10],
    "strategy.include_mean": [True],
    "strategy.basis_batch": [2, 10, 1000],
    "strategy.refresh_every": [1, 2, 10**6],
    "strategy.exclude": [["body.*"], ["*"], ["*bias"]],
    "strategy.judge_every": [1],
    "strategy.ratio": [0, 0.5, 1],
    "strategy.decay": [0, 1],
    "model.head_init": ["zero", "kaiming"],
    "model.dropout": [0.95],
    "model.freeze": [["body.*"], ["heads.*"], ["*bias"], ["body.*", "heads.primary.*"], ["*"]],
    "model.name": ["small-cnn"],
    "model.weights": ["WEIGHTS"],
    "training.guided.accumulate": [2, 8],
    "training.guided.optimizer": ["sgd"],
    "data.auxiliary.more.weight": [0, 1e10],
}


@pytest.fixture(scope="module")
def data() -> Prepared:
    return load_data(loads(JOB))


@pytest.fixture(scope="module")
def weights(data: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of an earlier run."""
    folder = tmp_path_factory.mktemp("earlier")
    run(loads(JOB), run_dir=folder, data=data)
    return folder / "weights.safetensors"


def drawn(strategy: str, number: int) -> dict[str, Any]:
    """Two to five settings; each strategy has draws of its own, so that another strategy does not
    change them.
    """
    draw = random.Random(f"{strategy} {number}")
    return {
        name: draw.choice(SETTINGS[name])
        for name in draw.sample(list(SETTINGS), draw.randint(2, 5))
    }


@pytest.mark.filterwarnings(
    "ignore:You are solving a parameterized problem:UserWarning"
)  # NashMTL's solver
@pytest.mark.parametrize("strategy", [name for name in names() if not find(name).trains_others])
def test_drawn_settings_train_or_are_refused(
    strategy: str, data: Prepared, weights: Path, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    jobs = trained = 0
    refusals: list[str] = []
    while jobs < 2 or not trained:  # a draw that is refused tells nothing about the steps
        changes = [f"{name}={json.dumps(value)}" for name, value in drawn(strategy, jobs).items()]
        changes = [change.replace("WEIGHTS", str(weights)) for change in changes]
        jobs += 1
        try:
            result = run(
                loads(JOB, [f"strategy.name={strategy}", *changes]),
                run_dir=tmp_path / str(jobs),
                data=data,
            )
        except InputError as error:
            refusals.append(str(error))
        else:
            assert all(map(math.isfinite, (*result.test.values(), *result.validation.values()))), (
                changes
            )
            trained += 1
        assert len(refusals) < 10, refusals
    assert not [refusal for refusal in refusals if "\n" in refusal or len(refusal) > 1000]
