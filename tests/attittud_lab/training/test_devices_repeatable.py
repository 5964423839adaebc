"""A run of the paper's experiments gives the same bits again, and says so where it might not."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attittud_lab.config.load import load
from attittud_lab.config.schema import Config
from attittud_lab.training.train import run
from experiments.reproduce.miniature import write_miniature

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


@pytest.mark.parametrize("strategy", ["orthogonal", "bloop"])
def test_a_repeated_run_gives_the_same_bits(strategy: str, tmp_path: Path) -> None:
    job = config(tmp_path, f"strategy.name={strategy}", "device=cpu", "training.precision=fp32")
    first, second = (bits(tmp_path / name, job) for name in ("first", "second"))
    assert first == second
    other = bits(tmp_path / "other", replace(job, model=replace(job.model, dropout=0.2)))
    assert other[0] != first[0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings(
    "ignore:.*AccumulateGrad.*", "ignore:.*TensorFloat32.*", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize(
    "strategy", ["orthogonal", "pcgrad", "multitask", "auto", "pretrain_as_released"]
)
def test_a_repeated_run_gives_the_same_bits_on_a_gpu(strategy: str, tmp_path: Path) -> None:
    job = config(tmp_path, f"strategy.name={strategy}", "device=cuda")
    assert (
        job.training.deterministic and job.training.cuda_graph and job.training.precision == "bf16"
    )
    first, second = (bits(tmp_path / name, job) for name in ("first", "second"))
    assert first == second
    assert json.loads((tmp_path / "first" / "run.json").read_text())["repeatable"] is True
    run(
        config(tmp_path, "training.deterministic=false", "device=cuda"), 0, run_dir=tmp_path / "off"
    )
    assert json.loads((tmp_path / "off" / "run.json").read_text())["repeatable"] is False
