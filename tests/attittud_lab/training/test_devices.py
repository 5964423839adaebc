"""Captured steps: their bookkeeping on the CPU with a stand-in for CUDA graphs, and the real ones
on a GPU.
"""

import json
from pathlib import Path

import pytest
import torch

from attittud_lab.config.load import loads
from attittud_lab.config.schema import Config
from attittud_lab.models.network import build_model
from attittud_lab.training import phase as module
from attittud_lab.training.devices import WARM_UP, CapturedSteps
from attittud_lab.training.phase import Phase
from attittud_lab.training.train import load_data, run
from tests.helpers.captured import StandIn, trained

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


def phase_of(
    config: Config, monkeypatch: pytest.MonkeyPatch, *, captured: bool
) -> tuple[Phase, StandIn | None]:
    data, cpu = load_data(config), torch.device("cpu")
    model = build_model(config.model, data, config.seed).train()
    made: list[StandIn] = []

    def recorder(device: torch.device) -> StandIn:
        made.append(StandIn(device))
        return made[-1]

    monkeypatch.setattr(module, "CudaRecorder", recorder)
    # As on a GPU, where a captured refresh makes its numbers itself: a replay cannot choose among
    # those made ahead.
    monkeypatch.setattr("attittud.basis.base.Ahead.begin", lambda *_: None)
    phase = module.Phase("guided", config, data, model, cpu, "accuracy", captured=captured)
    for stand_in in made:
        stand_in.phase = phase
    return phase, made[0] if made else None


def nothing_recorded(phase: Phase, monkeypatch: pytest.MonkeyPatch) -> Phase:
    """The same phase with a warm-up that never ends."""
    phase.captured = CapturedSteps(lambda action: pytest.fail("nothing is to be recorded"))
    monkeypatch.setattr("attittud_lab.training.devices.WARM_UP", 1000)
    return phase


@pytest.mark.parametrize("strategy", ["flip", "primary_only", "auto"])
def test_replayed_steps_are_the_steps_of_an_ordinary_run(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [f"strategy.name={strategy}", "model.dropout=0.3"]
    if strategy == "auto":
        changes += ["strategy.judge_every=2", "training.guided.steps=30"]
    config = loads(JOB, changes)
    phase, stand_in = phase_of(config, monkeypatch, captured=True)
    assert stand_in is not None
    lines, weights = trained(phase)
    # Each kind is recorded after its warm-up, and what is left of the steps are replays.
    kinds = {"flip": 2, "auto": 4}.get(strategy, 1)
    assert stand_in.replays == phase.steps - kinds * WARM_UP
    usual, expected = trained(
        nothing_recorded(phase_of(config, monkeypatch, captured=True)[0], monkeypatch)
    )
    assert torch.equal(weights, expected)
    for line, want in zip(lines, usual, strict=True):
        shown = [
            {key: value for key, value in found.items() if not key.startswith("attittud")}
            for found in (line, want)
        ]
        assert shown[0] == shown[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings(
    "ignore:.*AccumulateGrad.*", "ignore:.*TensorFloat32.*", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize(
    "strategy",
    ["flip", "multitask", "pcgrad", "primary_only", "pretrain", "bloop", "cosine_gate", "auto"],
)
def test_captured_runs_on_a_gpu_equal_eager_runs_bit_by_bit(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = [
        f"strategy.name={strategy}",
        "training.deterministic=true",
        "model.dropout=0.2",
        "training.precision=bf16",
    ]
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
