"""Whole runs on the embedded digits: every strategy trains, and a run folder holds what it promises."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from attittud_lab.config.load import changed, load, loads
from attittud_lab.config.schema import Config, StrategyConfig
from attittud_lab.data.tasks import Examples, Task
from attittud_lab.errors import InputError
from attittud_lab.models.network import build_model, load_weights
from attittud_lab.strategies import names
from attittud_lab.training.evaluate import evaluate
from attittud_lab.training.phase import DivergedError, Phase
from attittud_lab.training.train import load_data, run

JOB = """
data:
  primary: {path: digits, train: 60, validation: 60, test: 200}
  auxiliary: {more: {path: digits, examples: 400}}
model: {name: mlp, width: 16}
training:
  guided: {steps: 12, evaluations: 3, primary_batch: 16, batch_size: 16, lr: 0.02}
  finetune: {steps: 6, evaluations: 2, primary_batch: 16, lr: 0.01}
log_every: 4
strategy: {rank: 3, refresh_every: 4}
"""


@pytest.fixture(scope="module")
def job() -> Config:
    return loads(JOB)


def own(name: str) -> StrategyConfig:
    extra = {"eta": {"neutral": 1.0, "helpful": 0.5, "harmful": -1.0}} if name == "custom" else {}
    text = json.dumps({"strategy": {"name": name, "rank": 3, "refresh_every": 4, **extra}})
    return loads(text).strategy


@pytest.mark.filterwarnings("ignore:.*(ECOS|not DPP):UserWarning")  # cvxpy's, about how TorchJD's Nash-MTL uses it
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate:UserWarning")
@pytest.mark.parametrize("name", names())
def test_every_strategy_trains(job: Config, tmp_path: Path, name: str) -> None:
    if name.startswith("torchjd_"):
        pytest.importorskip("torchjd", reason="the extra torchjd is not installed")
    try:
        result = run(job, 0, own(name), tmp_path)
    except InputError as error:
        # TorchJD has extras of its own for some aggregators.
        if name.startswith("torchjd_") and "requires" in str(error):
            pytest.skip(str(error))
        raise
    assert result.strategy == name and result.steps == 18
    assert 0.2 < result.test["accuracy"] <= 1 and result.validation["loss"] > 0


@pytest.mark.parametrize("strategy", ["flip", "auto", "pretrain_as_released"])
def test_the_test_set_is_read_once_at_the_end(
    job: Config, strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, read = load_data(job), list[Examples]()

    def noted(model: nn.Module, task: Task, examples: Examples, device: torch.device) -> dict[str, float]:
        read.append(examples)
        return evaluate(model, task, examples, device)

    for module in ("train", "phase"):
        monkeypatch.setattr(f"attittud_lab.training.{module}.evaluate", noted)
    result = run(job, 0, own(strategy), tmp_path, data=data)
    assert [examples is data.test for examples in read] == [False] * 5 + [True]
    assert all(examples is data.validation for examples in read[:-1])
    assert result.validation != result.test


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1", "auc"])
def test_the_metric_chooses_the_model_and_the_loss_among_equals(job: Config, metric: str) -> None:
    """Looks at validation are made up: the smallest loss is elsewhere than the best figure, which occurs twice."""
    looks = [(0.6, 0.5), (0.8, 0.9), (0.8, 0.7), (0.7, 0.1), (0.8, 0.8), (0.5, 0.6)]
    others = {name: 0.9 - 0.1 * number for number, name in enumerate(("accuracy", "macro_f1", "auc"))}
    config = changed(job, ["training.guided.evaluations=6", "strategy=primary_only"])
    data = load_data(config)
    model = build_model(config.model, data, 0)
    phase = Phase("guided", config, data, model, torch.device("cpu"), metric)
    seen = []

    def look() -> dict[str, float]:
        figure, loss = looks[len(seen)]
        seen.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return {**others, metric: figure, "loss": loss}

    phase._evaluate = look
    phase.run(lambda _: None, lambda: None, lambda *_: None)
    assert phase.finish() == {**others, metric: 0.8, "loss": 0.7} and phase.state.best_step == 6
    assert all(torch.equal(tensor, seen[2][name]) for name, tensor in model.state_dict().items())
    assert not all(torch.equal(tensor, seen[3][name]) for name, tensor in model.state_dict().items())


def test_the_loss_of_an_untrained_head_chooses_as_in_the_release(tmp_path: Path) -> None:
    config = loads(JOB, ["training.mode=joint", "training.guided.select=last", "training.guided.evaluations=12"])
    result = run(config, 0, own("pretrain_as_released"), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["validation/loss"] for line in lines if "validation/loss" in line}
    assert len(losses) == 12 and result.phases[0]["best_step"] == min(losses, key=losses.__getitem__)
    assert result.validation["loss"] == min(losses.values())
    trained, fresh = load_weights(tmp_path / "weights.safetensors"), build_model(config.model, load_data(config), 0)
    for name, tensor in fresh.state_dict().items():
        assert torch.equal(trained[name], tensor) == (name.startswith("heads.primary") or name in ("mean", "std")), name


@pytest.mark.parametrize(
    "changes",
    [
        ["strategy=flip", "training.guided.lr=3e38"],
        ["strategy=flip", "training.guided.lr=3e38", "training.guided.optimizer=sgd"],
        ["strategy=primary_only", "training.guided.lr=1e20", "training.guided.optimizer=sgd", "log_every=1000"],
        ["strategy=bloop", "training.guided.lr=1e20", "training.guided.select=last", "training.mode=joint"],
        ["strategy={name: auto, basis: svd}", "training.guided.lr=1e20", "log_every=1000"],
        ["strategy=torchjd_cagrad", "training.guided.lr=1e20"],
    ],
)
def test_training_that_diverges_ends_with_a_sentence(job: Config, changes: list[str], tmp_path: Path) -> None:
    if "torchjd" in changes[0]:
        pytest.importorskip("torchjd", reason="the extra torchjd is not installed")
    found = changed(job, changes[:1] + [change for change in changes[1:] if ".lr=" not in change])
    lr = next(float(change.partition("=")[2]) for change in changes if ".lr=" in change)
    found = replace(found, training=replace(found.training, guided=replace(found.training.guided, lr=lr, clip=None)))
    with pytest.raises(
        DivergedError, match=r"training diverged in step \d+ of phase guided: .*; lower training\.guided\.lr"
    ):
        run(found, run_dir=tmp_path)
    assert not (tmp_path / "result.json").exists() and not (tmp_path / "weights.safetensors").exists()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"),
        MemoryError("no room"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_memory_that_runs_out(job: Config, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Phase) -> None:
        raise error

    monkeypatch.setattr(Phase, "_update", full)
    with pytest.raises(InputError, match=r"the memory of cpu is not enough \(.*raise training\.guided\.accumulate"):
        run(job, run_dir=tmp_path)


@pytest.mark.parametrize("select", ["best", "last"])
def test_a_model_that_is_not_finite_is_never_chosen(job: Config, select: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also where its accuracy is higher than any before, as that of one that answers always the same may be."""
    config = changed(
        job, ["training.guided.evaluations=3", f"training.guided.select={select}", "strategy=primary_only"]
    )
    for broken in (0, 1, 2):
        data = load_data(config)
        phase = Phase("guided", config, data, build_model(config.model, data, 0), torch.device("cpu"), "accuracy")
        looks = iter([{"accuracy": 0.5 + 0.1 * n, "loss": math.nan if n == broken else 1.0} for n in range(3)])
        phase._evaluate = looks.__next__
        if broken == 2 and select == "best":
            phase.run(lambda _: None, lambda: None, lambda *_: None)
            assert phase.finish() == {"accuracy": 0.6, "loss": 1.0} and phase.state.best_step == 8
            assert caplog.messages == ["training diverged at its end; the model of step 8 is kept"]
        else:
            with pytest.raises(
                DivergedError, match=rf"in step {4 * broken + 4} of phase guided: the validation loss is nan"
            ):
                phase.run(lambda _: None, lambda: None, lambda *_: None)


def test_run_folder_holds_everything(job: Config, tmp_path: Path) -> None:
    result = run(job, 3, "flip", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        ".lock",
        "config.yaml",
        "run.json",
        "data.json",
        "metrics.jsonl",
        "weights.safetensors",
        "result.json",
    }
    assert load(tmp_path / "config.yaml").seed == 3 and load(tmp_path / "config.yaml").strategy.name == "flip"
    about = json.loads((tmp_path / "run.json").read_text())
    assert about["torch"] in torch.__version__ and about["cores"] and about["device"] == "cpu"
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    logged = [line for line in lines if "loss/primary" in line]
    assert [line["step"] for line in logged if line["phase"] == "guided"] == [4, 8, 12]
    assert {"attittud/neutral", "attittud/helpful", "attittud/harmful", "loss/auxiliary/more"} <= logged[0].keys()
    looked = [line for line in lines if line["phase"] == "guided" and "validation/accuracy" in line]
    assert [line["step"] for line in looked] == [4, 8, 12]
    assert load_weights(tmp_path / "weights.safetensors")["heads.primary.weight"].shape == (10, 16)
    data = json.loads((tmp_path / "data.json").read_text())
    rows = [set(data["primary"][part]["rows"]) for part in ("train", "validation", "test")]
    assert [len(part) for part in rows] == [60, 60, 200] and not rows[0] & rows[1] and not rows[2] & (rows[0] | rows[1])
    # No auxiliary example is a primary one under another name.
    assert not set(data["auxiliary"]["more"]["rows"]) & set().union(*rows)
    again = run(job, 3, "flip", tmp_path)
    assert again.skipped and again == result


def test_strategies_of_a_seed_share_initialisation_and_batches(job: Config, tmp_path: Path) -> None:
    data = load_data(job)
    first = {}
    for name in ("primary_only", "multitask", "drop_harmful"):
        run(job, 1, own(name), tmp_path / name, data=data)
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        first[name] = json.loads(lines[0])
    # The same batches, though another model by then.
    job1 = loads(JOB, ["log_every=1", "training.guided.steps=1"])
    losses = set()
    for name in ("primary_only", "multitask", "drop_harmful"):
        run(job1, 1, own(name), tmp_path / f"{name}-1", data=data)
        losses.add(json.loads((tmp_path / f"{name}-1" / "metrics.jsonl").read_text().splitlines()[0])["loss/primary"])
    assert len(losses) == 1


def test_other_configuration_is_refused(job: Config, tmp_path: Path) -> None:
    run(job, 0, "primary_only", tmp_path)
    with pytest.raises(InputError, match=r"another configuration \(seed: 0 there, 1 here"):
        run(job, 1, "primary_only", tmp_path)
    assert run(job, 1, "primary_only", tmp_path, fresh=True).seed == 1


def test_runs_of_a_version_with_fewer_settings_are_kept(job: Config, tmp_path: Path) -> None:
    run(job, 0, "primary_only", tmp_path)
    about = json.loads((tmp_path / "run.json").read_text())
    del about["config"]["checkpoint_every"], about["config"]["training"]["guided"]["clip"]
    for source in about["config"]["data"]["auxiliary"].values():
        del source["weight"]
    (tmp_path / "run.json").write_text(json.dumps(about))
    assert run(job, 0, "primary_only", tmp_path).skipped
    about["config"]["training"]["guided"]["gone"] = 3  # a setting that there is no more
    (tmp_path / "run.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match="another configuration"):
        run(job, 0, "primary_only", tmp_path)
