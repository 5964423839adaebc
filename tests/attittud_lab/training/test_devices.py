"""Captured steps: their bookkeeping on the CPU with a stand-in, and real ones on a GPU."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attittud_lab.config.load import load, loads
from attittud_lab.config.schema import Config
from attittud_lab.models.build import build_model
from attittud_lab.strategies.guided import Guided
from attittud_lab.training import phase as module
from attittud_lab.training.devices import WARM_UP, CapturedSteps
from attittud_lab.training.phase import Phase
from attittud_lab.training.train import load_data, run
from experiments.reproduce.miniature import write_miniature


class StandIn:
    """Like a CUDA graph: Python code runs at the recording, device work at replays alone."""

    def __init__(self) -> None:
        self.phase: Phase | None = None
        self.replays = 0

    def _tensors(self) -> list[Tensor]:
        tensors = [*self.phase.model.state_dict().values()]
        for state in self.phase.optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, Tensor)]
        if isinstance(self.phase.strategy, Guided):
            guide = self.phase.strategy.guide
            tensors += [guide._schedule.index, guide._schedule.skipped, guide.subspace.active]
            if guide.subspace.rows is not None:
                tensors.append(guide.subspace.rows)
            for record in guide._auto.scores.values():
                tensors += [record.moments, record.weights, record.skipped]
        return tensors

    def counts(self, new: tuple[Any, Any] | None = None) -> tuple[Any, Any] | None:
        """What the guide counts in Python."""
        guide = getattr(self.phase.strategy, "guide", None)
        if guide is None:
            return None
        refresher, hearings = guide._schedule, guide._auto
        old = (refresher.age, refresher.count), (hearings.age, hearings.count)
        if new is not None:
            (refresher.age, refresher.count), (hearings.age, hearings.count) = new
        return old

    def __call__(self, action: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        places = self._tensors()
        before = [tensor.clone() for tensor in places]
        random, counts = torch.get_rng_state(), self.counts()
        found = action()
        with torch.no_grad():
            for place, value in zip(places, before, strict=True):
                place.copy_(value)
        torch.set_rng_state(random)

        def replay() -> None:
            self.replays += 1
            now, values = self.counts(), dict(self.phase.streams.values)
            self.counts(counts)  # the same work that was recorded
            again = action()
            for name, tensor in found.values.items():
                tensor.copy_(again.values[name])
            self.phase.streams.values = values
            self.counts(now)

        return found, replay


def trained(phase: Phase) -> tuple[list[dict[str, Any]], Tensor]:
    lines: list[dict[str, Any]] = []
    phase.run(lambda line: lines.append(dict(line)), lambda: None, lambda *_: None)
    for line in lines:
        del line["seconds"]
    return lines, torch.cat(
        [parameter.detach().flatten() for parameter in phase.model.parameters()]
    )


JOB = """
data:
  primary: {path: digits, train: 60, validation: 60, test: 200}
  auxiliary: {more: {path: digits, examples: 400}}
model: {name: wideresnet-10-1}
training:
  guided: {steps: 14, evaluations: 2, primary_batch: 16, batch_size: 16, schedule: cosine}
  finetune: {steps: 6, evaluations: 2, primary_batch: 16}
  cuda_graph: true
log_every: 1
log_layers: false
strategy: {name: flip, rank: 3, refresh_every: 3, basis_batch: 20, engine: loop}
"""


def phase_of(config: Config, monkeypatch: pytest.MonkeyPatch) -> tuple[Phase, StandIn]:
    """A phase with captured steps, recorded by a stand-in."""
    data, cpu = load_data(config), torch.device("cpu")
    model = build_model(config.model, data, config.seed).train()
    stand_in = StandIn()
    monkeypatch.setattr(module, "CudaRecorder", lambda _: stand_in)
    # As on a GPU, where a captured refresh makes its numbers itself: a replay cannot choose among
    # those made ahead.
    monkeypatch.setattr("attittud.basis.base.Ahead.begin", lambda *_: None)
    stand_in.phase = Phase("guided", config, data, model, cpu, "accuracy", captured=True)
    return stand_in.phase, stand_in


def nothing_recorded(phase: Phase, monkeypatch: pytest.MonkeyPatch) -> Phase:
    """The same phase with a warm-up that never ends."""
    phase.captured = CapturedSteps(lambda action: pytest.fail("nothing is to be recorded"))
    monkeypatch.setattr("attittud_lab.training.devices.WARM_UP", 1000)
    return phase


@pytest.mark.parametrize("strategy", ["flip", "primary_only", "auto"])
def test_replayed_steps_are_the_steps_of_an_ordinary_run(strategy, monkeypatch):
    changes = [f"strategy.name={strategy}", "model.dropout=0.3"]
    if strategy == "auto":
        changes += ["strategy.judge_every=2", "training.guided.steps=30"]
    config = loads(JOB, changes)
    phase, stand_in = phase_of(config, monkeypatch)
    lines, weights = trained(phase)
    # Each kind is recorded after its warm-up, and what is left of the steps are replays.
    kinds = {"flip": 2, "auto": 4}.get(strategy, 1)
    assert stand_in.replays == phase.steps - kinds * WARM_UP
    eager, _ = phase_of(config, monkeypatch)
    expected_lines, expected = trained(nothing_recorded(eager, monkeypatch))
    assert torch.equal(weights, expected)
    for line in (*lines, *expected_lines):
        for name in [name for name in line if name.startswith("attittud")]:
            del line[name]
    assert lines == expected_lines


@pytest.mark.gpu
@pytest.mark.parametrize(
    "strategy",
    ["flip", "multitask", "pcgrad", "primary_only", "pretrain", "bloop", "cosine_gate", "auto"],
)
def test_captured_runs_on_a_gpu_equal_eager_runs_bit_by_bit(strategy, tmp_path, monkeypatch):
    more = [f"strategy.name={strategy}", "model.dropout=0.2"]
    more += ["training.deterministic=true", "training.precision=bf16"]
    if strategy == "auto":
        more += ["strategy.judge_every=2", "training.guided.steps=30"]
    config = loads(JOB, [*more, "training.channels_last=true", "device=cuda"])
    weights = []
    for name, warm_up in (("captured", WARM_UP), ("again", WARM_UP), ("eager", 1000)):
        monkeypatch.setattr("attittud_lab.training.devices.WARM_UP", warm_up)
        run(config, 0, run_dir=tmp_path / name)
        weights.append((tmp_path / name / "weights.safetensors").read_bytes())
    assert weights[0] == weights[1] == weights[2]
    assert json.loads((tmp_path / "again" / "run.json").read_text())["repeatable"] is True


CONFIG = Path(__file__).parents[3] / "experiments" / "configs" / "table2-cat-vs-dog.yaml"

SMALL = [
    "model.name=wideresnet-10-1",
    "data.primary.validation=40",
    "training.guided.epochs=null",
    "training.guided.steps=12",
    "training.guided.evaluations=3",
    "training.guided.warmup=0",
    "training.guided.batch_size=16",
    "training.guided.primary_batch=10",
    "training.finetune.steps=8",
    "training.finetune.evaluations=2",
    "training.finetune.primary_batch=10",
    "strategy.basis_batch=8",
    "strategy.refresh_every=4",
]


def config(folder: Path, *more: str) -> Config:
    data = write_miniature(folder, "cifar10")
    return load(
        CONFIG, [f"data.primary.path={data}", f"data.auxiliary.others.path={data}", *SMALL, *more]
    )


def bits(path: Path, job: Config) -> tuple[bytes, dict[str, float]]:
    result = run(job, 0, run_dir=path)
    return (path / "weights.safetensors").read_bytes(), result.test


@pytest.mark.gpu
@pytest.mark.parametrize(
    "strategy", ["orthogonal", "pcgrad", "multitask", "auto", "pretrain_as_released"]
)
def test_a_repeated_run_gives_the_same_bits_on_a_gpu(strategy, tmp_path):
    job = config(tmp_path, f"strategy.name={strategy}", "device=cuda")
    training = job.training
    assert training.deterministic and training.cuda_graph and training.precision == "bf16"
    first, second = (bits(tmp_path / name, job) for name in ("first", "second"))
    assert first == second
    assert json.loads((tmp_path / "first" / "run.json").read_text())["repeatable"] is True
    bits(tmp_path / "off", config(tmp_path, "training.deterministic=false", "device=cuda"))
    assert json.loads((tmp_path / "off" / "run.json").read_text())["repeatable"] is False
