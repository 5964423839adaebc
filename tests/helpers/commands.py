"""A small job, and commands as a person types them."""

import pytest

from attittud_lab.cli import main

JOB = """
data:
  primary: {path: digits, train: 60, validation: 60, test: 200}
  auxiliary: {more: {path: digits, examples: 300}}
model: {name: mlp, width: 8}
training:
  guided: {steps: 6, evaluations: 1, primary_batch: 16, batch_size: 16}
  finetune: {steps: 4, evaluations: 1, primary_batch: 16}
strategy: {name: auto, rank: 3}
"""


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return int(caught.value.code or 0)
