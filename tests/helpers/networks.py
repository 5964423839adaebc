"""Small image and text jobs for networks by name."""

import json
from pathlib import Path
from typing import Any

import torch

from attittud_lab.config.load import loads
from attittud_lab.config.schema import Config
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import Examples, Task


def images(channels: int = 3, size: int = 16, classes: int = 2, others: int = 8) -> Prepared:
    """A handful of random images for two tasks."""

    def task(name: str, count: int) -> Task:
        inputs = torch.randint(256, (6, channels, size, size), dtype=torch.uint8)
        return Task(
            name,
            "classify",
            [str(c) for c in range(count)],
            Examples(inputs, torch.arange(6) % count),
        )

    primary = task("primary", classes)
    return Prepared(
        "image", primary, primary.examples, primary.examples, {"other": task("other", others)}
    )


def model_config(text: str) -> Config:
    return loads(f"model: {text}")


class Payload:
    """Pickled, it makes a file where it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


# -------------------------------------------------------------------------------------------- texts

TEXTS = ["a good film", "a bad film, really", "good good good", "what a bad, bad, bad story"] * 6


def two_texts_job(folder: Path, model: str) -> Config:
    rows = [
        json.dumps({"text": f"{text} {n}", "label": "bad" if "bad" in text else "good"})
        for n, text in enumerate(TEXTS)
    ]
    (folder / "texts.jsonl").write_text("\n".join(rows))
    more = [json.dumps({"text": f"{text} again {n}"}) for n, text in enumerate(TEXTS)]
    (folder / "more.jsonl").write_text("\n".join(more))
    return loads(
        f"""
        data:
          primary: {{path: {folder}/texts.jsonl}}
          auxiliary: {{lm: {{path: {folder}/more.jsonl, objective: masked_lm}}}}
          max_length: 12
        model: {{name: "{model}", width: 8}}
        training:
          guided: {{steps: 3, evaluations: 1, primary_batch: 4, batch_size: 4}}
          finetune: {{steps: 2, evaluations: 1, primary_batch: 4}}
        strategy: {{name: flip, rank: 2, refresh_every: 2}}
        """
    )
