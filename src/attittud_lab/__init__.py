"""Data, models and training loops behind the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from attittud_lab.predict.model import Model

__all__ = ["load"]


def load(run: str | os.PathLike[str], device: str = "auto") -> Model:
    """The trained model in the folder of a run, with `predict`, `predict_proba`, `classes` and
    `module`.

    >>> model = attittud_lab.load("runs/attittud/auto/seed-0")  # doctest: +SKIP
    >>> model.predict(["a/picture.png"])  # doctest: +SKIP
    ['cat']
    """
    from attittud_lab.predict import restore  # here, since it imports torch

    return restore.load(run, device)
