"""Text classification with masked language modelling, with a tiny encoder made on the spot."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from attittud_lab.config.load import changed, load, loads
from attittud_lab.config.schema import Config
from attittud_lab.models.build import build_model
from attittud_lab.training.phase import Phase
from attittud_lab.training.train import load_data, run
from tests.helpers.runs import metrics_of, phase_of
from tests.helpers.text_jobs import write_job

torch.set_num_threads(1)


# of tokenizers and transformers
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return load(write_job(tmp_path_factory.mktemp("texts")))


def test_word_embeddings_are_not_decomposed(job):
    """They receive the auxiliary gradient as it is, the other shared parameters do not."""
    torch.manual_seed(0)
    updates = {}
    for name, eta in (
        ("flip", "{neutral: 1, helpful: 1, harmful: -1}"),
        ("sum", "{neutral: 1, helpful: 1, harmful: 1}"),
    ):
        phase = phase_of(changed(job, ["strategy.name=custom", f"strategy.eta={eta}"]))
        phase.streams.load(0)
        phase.strategy.step(phase.streams)
        parameters = phase.model.named_parameters()
        updates[name] = {n: p.grad for n, p in parameters if p.grad is not None}
        assert not any("word_embeddings" in n for n in phase.strategy.guide.subspace.layout.names)
    differs = {
        n for n, gradient in updates["flip"].items() if not torch.equal(gradient, updates["sum"][n])
    }
    assert "body.model.embeddings.word_embeddings.weight" not in differs
    assert any("position_embeddings" in n for n in differs) and any("layer.1" in n for n in differs)
    assert "heads.lm.dense.weight" not in differs


@pytest.mark.parametrize("strategy", ["flip", "auto", "primary_only"])
def test_micro_batches_change_no_update(tmp_path, strategy):
    weights = []
    for parts in (1, 4):
        config = loads(
            f"""
            data:
              primary: {{path: digits, train: 60, validation: 40, test: 40}}
              auxiliary: {{more: {{path: digits, examples: 100}}}}
            model: {{name: mlp, width: 16}}
            training:
              guided: {{steps: 5, evaluations: 1, primary_batch: 16, batch_size: 24, accumulate: {parts}, optimizer: sgd}}
              finetune: {{steps: 2, evaluations: 1, primary_batch: 16, accumulate: {parts}, optimizer: sgd}}
            strategy: {{name: {strategy}, rank: 3, refresh_every: 2, engine: hooks, ratio: 0.4}}
            """
        )
        run(config, run_dir=tmp_path / str(parts))
        weights.append(load_file(tmp_path / str(parts) / "weights.safetensors"))
        lines = metrics_of(tmp_path / str(parts))
        assert all("loss/primary" in line for line in lines if "lr" in line)
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], rtol=1e-3, atol=1e-5)


def test_micro_batches_have_their_own_noise(job):
    """Else accumulation would hide the same positions in all of them, and drop the same units."""
    config = changed(job, ["training.guided.accumulate=2", "model.dropout=0.5"])
    data = load_data(config)
    for examples in (data.primary.examples, data.auxiliary["lm"].examples):
        examples.inputs[:] = examples.inputs[0]  # the same text everywhere
    data.primary.examples.targets[:] = 0
    model = build_model(config.model, data, 0).train()
    streams = Phase("guided", config, data, model, torch.device("cpu"), "macro_f1").streams
    streams.load(0)
    first, second = streams.micro
    assert not torch.allclose(first.primary(), second.primary(), rtol=1e-3)
    assert not torch.allclose(first.auxiliary()["lm"], second.auxiliary()["lm"], rtol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", ["flip", "pretrain", "multitask"])
def test_captured_text_runs_on_a_gpu_equal_eager_ones_bit_by_bit(
    job, strategy, tmp_path, monkeypatch, caplog
):
    """Masked words, packed blocks, several lengths and refreshes by hooks."""
    text = (Path(job.output).parent / "job.yaml").read_text()
    more = ["strategy.engine=hooks", "strategy.basis_batch=8", "training.guided.steps=60"]
    more += ["training.deterministic=true", "training.cuda_graph=true"]
    more += ["training.precision=bf16", "device=cuda", f"strategy.name={strategy}"]
    weights = []
    for name, warm_up in (("captured", 3), ("again", 3), ("eager", 1000)):
        monkeypatch.setattr("attittud_lab.training.devices.WARM_UP", warm_up)
        run(loads(text, more), run_dir=tmp_path / name)
        weights.append((tmp_path / name / "weights.safetensors").read_bytes())
    assert "cannot be captured" not in caplog.text
    assert weights[0] == weights[1] == weights[2]
