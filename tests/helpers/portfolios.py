"""Small portfolios of networks and of simple candidates, and what they leave behind."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from attittud_lab.config.load import loads
from attittud_lab.config.schema import Config
from attittud_lab.output.progress import Progress
from attittud_lab.portfolio.run import run
from attittud_lab.runs.folder import load_checkpoint

# Dropout and BatchNorm's buffers, two phases, few looks: all that a trial which stops and goes on
# could get wrong.
JOB = """
data:
  primary: {path: digits, train: 40, validation: 20, test: 100}
  auxiliary: {more: {path: digits, examples: 200, label_noise: {kind: shifted, share: 0.5}}}
model: {name: mlp, width: 16, dropout: 0.2}
training:
  guided: {steps: 24, primary_batch: 16, batch_size: 16, lr: 0.01}
  finetune: {steps: 12, primary_batch: 16, lr: 0.003}
  reset_head: true
log_every: 4
checkpoint_every: 3
strategy: portfolio
portfolio:
  final: single
  looks: 6
  features: [histogram]
  learners: [network]
  candidates: [multitask, {name: multitask, head: own}, pretrain]
"""

SIMPLE = ["portfolio.learners=[linear]", "portfolio.features=[histogram]"]
"""The same digits with simple candidates instead of networks."""


class Told(Progress):
    """Keeps the lines that a person would read."""

    def __init__(self) -> None:
        self.lines = list[str]()

    def say(self, text: str) -> None:
        self.lines.append(text)


def board(folder: Path) -> dict[str, Any]:
    """The content of leaderboard.json."""
    content: dict[str, Any] = json.loads((folder / "leaderboard.json").read_text())
    return content


def job(*changes: str) -> Config:
    return loads(JOB, changes)


def train(folder: Path, *changes: str, **options: Any) -> Any:
    torch.set_num_threads(1)
    return run(job(f"output={folder}-output", *changes), folder, **options)


def outcome(folder: Path) -> dict[str, Any]:
    """All that a portfolio leaves but the clock's readings, by file."""
    parts: dict[str, Any] = {"files": sorted(path.name for path in folder.iterdir())}
    for name in ("result", "leaderboard", "model"):
        parts[name] = _without_clock(json.loads((folder / f"{name}.json").read_text()))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    parts["metrics"] = [_without_clock(json.loads(line)) for line in lines]
    for path in sorted(
        [*folder.glob("member-*"), *folder.glob("features-*"), *folder.glob("weights.*")]
    ):
        parts[path.name] = path.read_bytes()
    parts["out of fold"] = _plain(load_checkpoint(folder / "out_of_fold.safetensors"))
    return parts


CLOCK = ("seconds", "seconds_per_prediction")
FOLDER = ("config.yaml", "checksum")
"""Checksums that depend on the output folder."""


def _without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _without_clock(item)
            for name, item in value.items()
            if name not in (*CLOCK, *FOLDER)
        }
    if isinstance(value, list):
        return [_without_clock(item) for item in value]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value.tolist() if isinstance(value, torch.Tensor) else value


def of_patients(folder: Path) -> str:
    """A portfolio on tables of patients: several labels, groups, and four sources."""
    numbers = np.random.default_rng(0)
    for name, count, classes in [
        ("own", 120, 3),
        ("s0", 60, 2),
        *((f"s{n}", 60, 3) for n in (1, 2, 3)),
    ]:
        x = numbers.normal(size=(count, 4))
        labels = (x[:, :classes] + numbers.normal(size=(count, classes)) > 0).astype(int)
        columns = {
            "v": x.tolist(),
            "label": labels.tolist(),
            "patient": [f"{name}-{i // 3}" for i in range(count)],
        }
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    sources = ", ".join(f"s{n}: {{path: {folder}/s{n}.parquet, label: label}}" for n in range(4))
    return f"""
data:
  kind: table
  table: {{columns: [v]}}
  primary: {{path: {folder}/own.parquet, group: patient, label: label}}
  auxiliary: {{{sources}}}
model: {{name: table-mlp, width: 8}}
training: {{mode: joint, guided: {{steps: 4, primary_batch: 16, batch_size: 16}}}}
strategy: portfolio
portfolio: {{final: single, looks: 4, learners: [linear]}}
"""
