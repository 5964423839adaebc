"""A small job with strategy auto."""

AUTO_JOB = """
data:
  primary: {path: digits, train: 60, validation: 40, test: 60}
  auxiliary: {more: {path: digits, examples: 200}, less: {path: digits, examples: 100}}
model: {name: mlp, width: 8}
strategy: auto
training:
  guided: {steps: 24, evaluations: 4, primary_batch: 16, batch_size: 16, lr: 0.02}
  finetune: {steps: 4, evaluations: 2, primary_batch: 16}
log_every: 2
checkpoint_every: 3
"""
