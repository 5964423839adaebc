"""The Trainer of a language model: its settings, its checkpoints and its clock."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra 'transformers'")
pytest.importorskip("accelerate", reason="needs the extra 'transformers'")

from attittud_lab.files import write_json
from attittud_lab.language.learner import arguments, last_checkpoint
from tests.helpers.language import job

CPU = torch.device("cpu")


def test_settings_reach_the_trainer(tmp_path: Path) -> None:
    made = arguments(job("language.accumulate=2", "language.schedule=cosine"), tmp_path, 50, CPU)
    assert (made.max_steps, made.per_device_train_batch_size, made.gradient_accumulation_steps) == (12, 2, 2)
    assert (made.eval_steps, made.save_steps, made.logging_steps) == (4, 4, 2)
    assert str(made.lr_scheduler_type.value) == "cosine" and made.learning_rate == 1e-2 and made.n_gpu <= 1
    made = arguments(job("language.epochs=2", "language.lr=null", "checkpoint_every=null"), tmp_path, 50, CPU)
    assert made.max_steps == 26 and made.learning_rate == 1e-5 and made.save_strategy.value == "no"
    assert arguments(job("language.lora=2", "language.lr=null"), tmp_path, 50, CPU).learning_rate == 1e-4


def test_an_incomplete_checkpoint_is_not_used(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path) == ({}, None)
    for step in (8, 20, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
    write_json(tmp_path / "checkpoint-8" / "trainer_state.json", {"global_step": 8})
    (tmp_path / "checkpoint-20" / "trainer_state.json").write_text('{"global_st')
    assert last_checkpoint(tmp_path) == ({"global_step": 8}, str(tmp_path / "checkpoint-8"))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-8"]
    (tmp_path / "checkpoint-8-copy").mkdir()
    assert last_checkpoint(tmp_path)[1] == str(tmp_path / "checkpoint-8")
