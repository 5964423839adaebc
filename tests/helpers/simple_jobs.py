"""Small portfolios of simple candidates on tables and texts."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.helpers.texts import write_reviews


def table_job(folder: Path) -> str:
    """A table with three classes; `more` has the same classes, `other` two of its own."""
    numbers = np.random.default_rng(0)
    names = {"own": 120, "more": 80, "other": 70}
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in names.items():
        x = numbers.normal(size=(rows, 5)).astype(np.float32)
        labels = (x[:, :3] + numbers.normal(size=(rows, 3))).argmax(1)
        if name == "other":
            labels = labels % 2 + 10
        text = [f"c{label}" for label in labels]
        pq.write_table(pa.table({"v": x.tolist(), "label": text}), folder / f"{name}.parquet")
    return f"""
data:
  kind: table
  table: {{columns: [v]}}
  primary: {{path: {folder}/own.parquet, label: label, train: 90, validation: 0, test: 30}}
  auxiliary:
    more: {{path: {folder}/more.parquet, label: label}}
    other: {{path: {folder}/other.parquet, label: label}}
model: {{name: table-mlp, width: 8}}
training: {{mode: joint, guided: {{steps: 6, primary_batch: 16, batch_size: 16}}}}
strategy: portfolio
output: {folder}/runs
portfolio: {{looks: 3, learners: [linear], candidates: [multitask]}}
"""


def text_job(folder: Path) -> str:
    """Reviews, and others of the same kind as auxiliary data."""
    folder.mkdir(parents=True, exist_ok=True)
    write_reviews(folder / "own.jsonl", 100, 0)
    write_reviews(folder / "more.jsonl", 60, 1)
    return f"""
data:
  primary: {{path: {folder}/own.jsonl, train: 60, validation: 0, test: 40}}
  auxiliary: {{more: {{path: {folder}/more.jsonl}}}}
  max_length: 24
model: {{name: text-cnn, width: 4}}
training: {{mode: joint, guided: {{steps: 6, primary_batch: 16, batch_size: 16}}}}
strategy: portfolio
output: {folder}/runs
portfolio: {{looks: 3, features: [tfidf], learners: [linear], candidates: [multitask]}}
"""
