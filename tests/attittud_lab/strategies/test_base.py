"""What strategies declare, names that are unknown, and a strategy from outside."""

from pathlib import Path

import pytest
from torch import nn

import attittud_lab.models
import attittud_lab.strategies.base
from attittud_lab.config.schema import StrategyConfig
from attittud_lab.models.weights import load_weights
from attittud_lab.strategies import find, make_strategy, names
from tests.helpers.commands import JOB, call


def test_a_strategy_and_a_model_can_be_registered_from_outside_of_the_package(
    tmp_path, monkeypatch, capsys
):
    """The script that CONTRIBUTING.md shows, through the command."""
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
    for registry in (attittud_lab.strategies.base, attittud_lab.models):  # removed afterwards
        monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    text = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text()
    script = text.partition("# mine.py")[2].partition("```")[0]
    exec(compile(f"#{script}", "mine.py", "exec"), {"__name__": "mine"})
    assert call("train", "job.yaml", "strategy=half", "model.name=linear") == 0
    assert "half, seed 0: 10 steps" in capsys.readouterr().out
    weights = load_weights(Path("runs/job/half/seed-0/weights.safetensors"))
    assert weights["body.layer.1.weight"].shape == (8, 64)
    assert weights["heads.primary.weight"].shape == (10, 8)
    assert attittud_lab.strategies.names()["half"] == "half of the auxiliary gradient"
    with pytest.raises(ValueError, match="there is a strategy 'half' already"):
        attittud_lab.strategies.register("half", "", attittud_lab.strategies.Strategy)


def test_every_strategy_declares_its_needs():
    declared = {
        name: make_strategy(StrategyConfig(name=name), nn.Linear(4, 4), weights={"a": 1.0}, seed=0)
        for name in ("auto", "flip", "multitask", "primary_only", "pretrain_as_released")
    }
    assert {name for name, found in declared.items() if found.uses_held_out} == {"auto"}
    shown = {name for name, found in declared.items() if not found.needs_auxiliary}
    assert shown == {"primary_only"}
    expected = {"pretrain_as_released"}
    assert {name for name, found in declared.items() if not found.trains_head} == expected
    assert {name for name, found in declared.items() if found.needs_shared} == {"auto", "flip"}
    fixed = {"primary_only", "pretrain", "pretrain_as_released", "replay"}
    assert {name for name in names() if not find(name).tunes_primary_weight} == fixed
