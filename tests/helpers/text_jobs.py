"""A text job with a tiny encoder."""

from pathlib import Path

from tests.helpers.texts import tiny_encoder, write_reviews

JOB = """
data:
  primary: {path: FOLDER/labelled.jsonl, train: 40, validation: 30, test: 30}
  auxiliary: {lm: {path: FOLDER/plain.jsonl, objective: masked_lm}}
  max_length: 24
  buckets: 8
model: {name: "hf:FOLDER/encoder", dropout: 0.1}
training:
  guided: {steps: 12, evaluations: 3, primary_batch: 8, batch_size: 8, lr: 1e-2}
  finetune: {steps: 6, evaluations: 2, primary_batch: 8}
  metric: macro_f1
strategy: {name: flip, rank: 3, refresh_every: 4, primary_weight: 0.1, exclude: ["*word_embeddings*"]}
compare: {seeds: 2, tuning_seeds: 1, weights: [0.3, 1], strategies: [pretrain, auto], equal: steps}
output: FOLDER/runs
log_every: 3
checkpoint_every: 2
"""


def write_job(folder: Path) -> Path:
    tiny_encoder(folder / "encoder")
    write_reviews(folder / "labelled.jsonl", 100, 0)
    write_reviews(folder / "plain.jsonl", 60, 1, labelled=False)
    path = folder / "job.yaml"
    path.write_text(JOB.replace("FOLDER", str(folder)))
    return path
