"""From the examples of a job to a problem with one kind of features.

The portfolio and the strategy `channel` call this.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from attittud_lab.data.prepare import PRIMARY, Prepared
from attittud_lab.data.tasks import OBJECTIVES, Task, can_share, share_head
from attittud_lab.features.base import Matrix
from attittud_lab.uses.problem import LabelNumbers, Problem, SourceData

Rows = Mapping[str, npt.NDArray[np.int64]]
"""Numbers of examples, by source."""


def labelled_rows(data: Prepared) -> dict[str, npt.NDArray[np.int64]]:
    """Return the row numbers of all examples of each auxiliary source with labels."""
    rows = {}
    for name, task in data.auxiliary.items():
        if OBJECTIVES[task.objective].labelled:
            rows[name] = np.arange(len(task.examples))
    return rows


def joined_inputs(data: Prepared, rows: Rows) -> Any:
    """Return the inputs of all primary examples, then those of the chosen `rows` of each source.

    They are an array, rows x columns, for a table, and a list for texts and images.
    """
    parts = [data.inputs(PRIMARY)]
    for name, numbers in rows.items():
        inputs = data.inputs(name)
        if isinstance(inputs, np.ndarray):
            parts.append(inputs[numbers])
        else:
            parts.append([inputs[row] for row in numbers.tolist()])
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return list(chain.from_iterable(parts))


def problem_of(data: Prepared, rows: Rows, features: Matrix, *, aligned: bool) -> Problem:
    """Return the problem whose `features` were computed from `joined_inputs(data, rows)`.

    With `aligned`, a source that has the primary classes gets them in the primary order, so that
    its labels can be used like primary ones.
    """
    primary = data.primary
    start = len(primary.examples)  # of the next source among the rows of `features`
    primary_features = features[:start]
    sources = {}
    for name, numbers in rows.items():
        task = data.auxiliary[name]
        same_classes = aligned and can_share(task, primary)
        if same_classes:
            task = share_head(task, primary)
        part = features[start : start + len(numbers)]
        start += len(numbers)
        labels = _labels(task)[numbers]
        sources[name] = SourceData(name, part, labels, list(task.classes), same_classes)
    classes = list(primary.classes)
    return Problem(primary_features, _labels(primary), classes, primary.several, sources)


def _labels(task: Task) -> LabelNumbers:
    """Return the labels of all examples of a task, in main memory."""
    assert task.examples.targets is not None
    return task.examples.targets.cpu().numpy()
