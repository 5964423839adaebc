"""The candidates of a portfolio: the default list, names, and what each changes in a job."""

import torch

from attittud_lab.config.load import dump, loads
from attittud_lab.config.schema import CandidateConfig, Config
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import Examples, Task
from attittud_lab.portfolio.candidates import (
    candidates,
    config_for,
    data_for,
    fitted,
    named,
    smaller_basis,
)


def prepared(*classes: list[str]) -> Prepared:
    """Primary classes a and b, and an auxiliary source for each list of classes."""
    examples = Examples(torch.zeros(8, 2), torch.zeros(8, dtype=torch.int64))
    tasks = {f"s{i}": Task(f"s{i}", "classify", names, examples) for i, names in enumerate(classes)}
    return Prepared(
        "table", Task("primary", "classify", ["a", "b"], examples), examples, examples, tasks
    )


def labels(config: Config, data: Prepared) -> list[str]:
    return [entry.label for entry in candidates(config, data)]


BASE = ["primary_only", "multitask", "pretrain"]


def test_the_default_candidates_follow_from_the_data():
    config = loads("strategy: portfolio")
    assert labels(config, prepared(["x", "y"])) == BASE
    same = labels(config, prepared(["a", "b"]))
    assert same == ["primary_only", "multitask", "multitask, own head", "pretrain"]
    assert labels(config, prepared()) == ["primary_only"]
    two = labels(config, prepared(["x", "y"], ["z", "w"]))
    assert two == [*BASE, "multitask, only s0", "multitask, only s1"]


def test_candidates_can_be_listed_in_the_configuration():
    text = "strategy: {name: portfolio, rank: 4}\nportfolio: {candidates: [drop_harmful, {name: auto, rank: 2}, "
    text += "{name: multitask, auxiliary_weight: 3, sources: [s1]}, drop_harmful]}"
    config = loads(text)
    found = candidates(config, prepared(["x", "y"], ["z", "w"]))
    names = ["primary_only", "drop_harmful", "auto, rank=2", "multitask 3, only s1"]
    assert [entry.label for entry in found] == names
    assert [entry.strategy.rank for entry in found[1:3]] == [
        4,
        2,
    ]  # from `strategy:` unless it is named
    assert loads(dump(config)) == config
    assert [
        entry.label for entry in candidates(loads(dump(config)), prepared(["x", "y"], ["z", "w"]))
    ] == names


def test_candidates_choose_heads_and_sources():
    data, config = prepared(["a", "b"], ["x", "y"]), loads("")
    for head, shared in (("shared", True), ("own", False), ("data", False)):
        found = data_for(named(CandidateConfig(name="multitask", head=head), config), data)
        assert [task.shares_head for task in found.auxiliary.values()] == [
            shared,
            False,
        ]  # the second one has other classes
    assert not any(task.shares_head for task in data.auxiliary.values())
    alone = data_for(named(CandidateConfig(name="multitask", sources=["s1"]), config), data)
    assert list(alone.auxiliary) == ["s1"] and alone.primary is data.primary


def test_the_job_of_a_candidate_never_stops_early_and_keeps_its_last_step():
    text = "training: {guided: {schedule: plateau, patience: 3, seconds: 9}}\nmodel: {weights: 'runs/{seed}.safetensors'}"
    config = loads(text, ["seed=5"])
    found = config_for(named(CandidateConfig(name="multitask"), config), config, 77)
    for phase in (found.training.guided, found.training.finetune):
        assert (phase.select, phase.patience, phase.seconds) == ("last", None, None)
    assert found.training.guided.schedule == "constant" and found.seed == 77
    assert found.model.weights == "runs/5.safetensors"  # of the portfolio's seed, not of the fold's


def test_batches_follow_the_smallest_fold():
    config = loads(
        "training: {guided: {primary_batch: 32, accumulate: 4}, finetune: {epochs: 1, primary_batch: 5, warmup: 9}}"
    )
    found = fitted(config, 10, {"guided": 7, "finetune": 3}, 2).training
    assert (found.guided.primary_batch, found.finetune.primary_batch, found.threads) == (8, 5, 2)
    assert (found.guided.steps, found.finetune.steps, found.finetune.warmup) == (7, 3, 3)
    entry = named(CandidateConfig(name="flip", basis_batch=64), config)
    assert smaller_basis([entry], 10)[0].strategy.basis_batch == 10
