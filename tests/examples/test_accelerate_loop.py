"""A custom loop under Accelerate: the documented example is the whole adapter."""

import re
import signal
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import accelerate_loop
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from attittud import preset
from tests.helpers.processes import exit_code

pytestmark = pytest.mark.filterwarnings(
    "ignore:'pin_memory' argument is set as true but no accelerator:UserWarning"
)

KILLED = """
import os, signal
from pathlib import Path
from accelerate_loop import train
train(Path({folder!r}), after_step=lambda step: step == 8 and os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.fixture(autouse=True)
def _fresh() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.nightly
def test_a_killed_run_resumes_to_the_same_losses(tmp_path):
    assert exit_code(KILLED.format(folder=str(tmp_path))) == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == ["step_5"]
    resumed = accelerate_loop.train(tmp_path, resume=True)
    whole = accelerate_loop.train(tmp_path / "whole")
    assert len(resumed) == 7 and resumed == whole[5:]


class Plain:
    """What Accelerate's users do without a Guide: backward of each loss, gradients add up."""

    def __init__(self, model: Any, **settings: Any) -> None:
        self.settings = settings

    def primary(self, losses: Any) -> None:
        losses.mean().backward()

    def auxiliary(self, loss: Any) -> None:
        loss.backward()

    def combine(self) -> Any:
        return SimpleNamespace(refreshed=True, tasks={}, to_dict=lambda: defaultdict(float))


def test_equal_weights_reproduce_plain_training(tmp_path, monkeypatch):
    guided = accelerate_loop.train(tmp_path, strategy=preset("multitask"))
    monkeypatch.setattr(accelerate_loop, "Guide", Plain)
    monkeypatch.setattr(accelerate_loop.checkpoint, "save", lambda *_: None)
    assert guided == pytest.approx(accelerate_loop.train(tmp_path), rel=1e-4)


def test_shares_are_logged(tmp_path, capsys):
    accelerate_loop.train(tmp_path, steps=3)
    lines = capsys.readouterr().out.splitlines()
    for line in lines:
        shares = [
            float(share) for share in re.findall(r"(?:neutral|helpful|harmful) ([\d.]+)", line)
        ]
        assert len(shares) == 3 and sum(shares) == pytest.approx(1, abs=0.02)
    assert len(lines) == 3


@pytest.mark.nightly
def test_the_example_works_in_fp16(tmp_path, monkeypatch):
    """With a scaler put in by hand, which Accelerate makes for GPUs alone."""

    def scaling(**settings: Any) -> Accelerator:
        accelerator = Accelerator(**settings)
        accelerator.scaler, accelerator.native_amp = (
            torch.amp.GradScaler("cpu", init_scale=2.0**10),
            True,
        )
        accelerator.state._mixed_precision = "fp16"
        return accelerator

    full = accelerate_loop.train(tmp_path)
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setattr(accelerate_loop, "Accelerator", scaling)
    half = accelerate_loop.train(tmp_path)
    assert half != full and half == pytest.approx(full, rel=0.02)
