"""What a pair of tasks is: its examples, and its declaration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .folder import DataFolder

Inputs = np.ndarray | list[str] | dict[str, np.ndarray]
"""Pixels (n x size x size, or x 3), texts, or the columns of a table."""


@dataclass(frozen=True)
class Part:
    """Some examples.

    Labels are numbers of `classes` (shape n), or rows of 0/1 where an example may have several
    (shape n x classes). `ids` name the rows of the data sets that the examples come from.
    """

    ids: list[str]
    inputs: Inputs
    labels: np.ndarray
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Sequence[int] | np.ndarray) -> Part:
        """The examples of some rows, in the order of `rows`."""
        rows = np.asarray(rows, dtype=np.int64)
        inputs: Inputs
        if isinstance(self.inputs, dict):
            inputs = {name: values[rows] for name, values in self.inputs.items()}
        elif isinstance(self.inputs, list):
            inputs = [self.inputs[row] for row in rows]
        else:
            inputs = self.inputs[rows]
        ids = [self.ids[row] for row in rows]
        return Part(ids, inputs, self.labels[rows], self.classes)

    def take_each(self, drawn: Iterable[np.ndarray]) -> list[Part]:
        """A part for each group of rows."""
        return [self.take(rows) for rows in drawn]

    def labelled(self, labels: Any, classes: Sequence[str]) -> Part:
        """The same inputs with labels of another task."""
        return Part(self.ids, self.inputs, np.asarray(labels, dtype=np.int64), tuple(classes))


@dataclass(frozen=True)
class Examples:
    """The examples of a pair. They do not depend on a seed.

    The product draws the labelled examples of a seed from `pool`; all seeds share the rest.
    """

    pool: Part
    test: Part
    auxiliary: dict[str, Part]
    """By name of the source."""

    def parts(self) -> list[Part]:
        return [self.pool, self.test, *self.auxiliary.values()]


@dataclass(frozen=True)
class Pair:
    """A scarce primary task and the auxiliary data that are offered to it, as `pairs.yaml` has
    it.
    """

    name: str
    about: str
    kind: str
    """`image`, `text` or `table`."""
    effect: str
    """What one expects of plain multitask training: `helps`, `hurts` or `open`."""
    labels: tuple[int, int]
    """To train and to validate on; a run with folds gets the sum."""
    rate: float
    """The learning rate of networks from scratch."""
    checksum: str
    """Of the names and labels of all examples."""
    make: Callable[[DataFolder], Examples]
    network: str = ""
    """The network from scratch, if it is not the usual one for the kind."""
    held_out: bool = False
    """Nothing may be tuned on it; `protocol.md` says when it is run."""
    systematic: bool = False
    """Whether a source has the primary classes with labels that are wrong by a rule."""


BUILDERS: dict[str, Callable[[DataFolder], Examples]] = {}


def builder(make: Callable[[DataFolder], Examples]) -> Callable[[DataFolder], Examples]:
    """The decorated function makes the pair of its name."""
    BUILDERS[make.__name__] = make
    return make
