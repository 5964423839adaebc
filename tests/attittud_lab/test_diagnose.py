"""The alarms of `attittud diagnose` in planted cases, and that the model trains as if nobody looked."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from attittud_lab.config.load import loads
from attittud_lab.diagnose import diagnose, make_probe, summarise_steps
from attittud_lab.models.network import build_model
from attittud_lab.statistics import summarise
from attittud_lab.training.phase import Phase
from attittud_lab.training.train import load_data
from tests.helpers.diagnosis import JOB, Linear, normal

# ------------------------------------------------------------------------------------------------------ the alarms


def test_an_alarm_about_auxiliary_data_appears_when_it_should() -> None:
    """Auxiliary gradients like the primary ones, and auxiliary gradients outside of all primary gradients."""
    primary = torch.cat([normal(60, 10) + 1, torch.zeros(60, 30, dtype=torch.float64)], 1)
    inside, outside = primary[:20].mean(0), torch.cat([torch.zeros(10), torch.ones(30)]).double()
    assert Linear(primary, like=inside).alarms(40) == [False, False, False]
    assert Linear(primary, like=inside, unlike=outside).alarms(40) == [False, True, False]


def test_an_alarm_about_primary_data_appears_when_it_should() -> None:
    """A random span of rank 4 holds 1 % of 400 dimensions; one of the examples themselves holds their common part."""
    job = Linear(normal(60, 400) + 0.5, one=normal(400))
    assert job.alarms(20, basis="random")[0] and not job.alarms(20)[0]


def test_an_alarm_about_signs_appears_when_it_should() -> None:
    """Half-batches of two examples from two classes, whose labels are right or coins."""
    clean, coins = (torch.randint(2, (1000, 1)).double() * 2 - 1 for _ in range(2))
    inputs = clean * 0.7 + normal(1000, 20)
    settings = {"basis_batch": 16, "primary_batch": 4, "steps": 200}
    assert Linear(inputs * coins, one=normal(20)).alarms(**settings)[2]
    assert not Linear(inputs * clean, one=normal(20)).alarms(**settings)[2]


def test_chance_allows_for_small_sets() -> None:
    """Labels are coins, yet half-batches of 16 of the same 68 examples agree in more than half of the directions."""
    shares, fired = [], []
    for _ in range(8):
        job = Linear(normal(100, 30), one=normal(30))
        probe = job.probe(basis_batch=32, primary_batch=32, refresh_every=1, rank=5)
        found = summarise_steps([probe.measure(step) for step in range(40)], probe)
        shares.append(found["half_batches"]["all"]["share"])
        fired.append(found["alarms"][2]["fired"])
    assert probe.chance == pytest.approx(0.5 + np.arcsin(16 / 68) / np.pi)
    found = summarise(shares)
    assert found.low < probe.chance < found.high and found.low > 0.53
    assert sum(fired) >= 6


IMPLICIT = ("flip, basis: exact, engine: implicit, basis_batch: 8", "flip, basis: implicit, basis_batch: 8")


@pytest.mark.parametrize("strategy", ["drop_harmful", "bloop", "primary_only", *IMPLICIT])
def test_diagnosing_does_not_change_training(strategy: str) -> None:
    """With dropout and BatchNorm, under strategies with and without a basis."""
    config = loads(JOB, [f"strategy={{name: {strategy}, rank: 4, refresh_every: 5}}"])
    data = load_data(config)
    weights = []
    for watched in (False, True):
        model = build_model(config.model, data, 0).train()
        phase = Phase("guided", config, data, model, torch.device("cpu"), "accuracy")
        probe = make_probe(config, phase)
        for step in range(12):
            if watched:
                probe.measure(step)
            phase.step()
        weights.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    assert probe.guide.basis.name == ("exact" if strategy in IMPLICIT else "sketch") and probe.guide.rank == 4


def test_primary_data_as_auxiliary_data(tmp_path: Path) -> None:
    """The auxiliary gradient then is as deep in the span as the primary one."""
    config = loads(JOB, ["model={name: mlp, width: 16}"])
    data = load_data(config)
    data = replace(data, auxiliary={"more": replace(data.primary, name="more", shares_head=True)})
    result = diagnose(config, tmp_path, data=data)
    share = result["sources"]["more"]["captured"]["all"]["mean"]
    assert share > 0.1 and share == pytest.approx(result["captured_primary"]["all"]["mean"], rel=0.25)
    assert [alarm["fired"] for alarm in result["alarms"]][:2] == [False, False]
