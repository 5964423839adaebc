"""Small images, and configurations of networks by name."""

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
