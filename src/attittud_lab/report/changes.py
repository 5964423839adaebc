"""What the auxiliary data changed: classes and single examples, out of fold; and the confusions of
the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from attittud_lab.portfolio.choose import probabilities, right_answers
from attittud_lab.portfolio.translations import LISTED, MOST_NAMES
from attittud_lab.report.cells import bar, difference, percent

EXAMPLES = 4
"""Single examples that gained most, and as many that lost most."""


def changes(
    board: Mapping[str, Any], out_of_fold: Mapping[str, Any], classes: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield tables of the classes and examples that differ most between the two candidates of the
    worth.
    """
    worth = board["worth"]
    if worth is None:
        return
    pair = Pair(
        before=out_of_fold["candidates"][worth["reference"]],
        after=out_of_fold["candidates"][worth["best"]],
        targets=out_of_fold["targets"],
        reference=worth["reference"],
        best=worth["best"],
    )
    yield pair.by_class(classes)
    names = out_of_fold.get("names")
    if not names:
        names = [f"example {row + 1}" for row in out_of_fold["rows"].tolist()]
    yield pair.by_example(classes, names)


@dataclass(frozen=True)
class Pair:
    """Out-of-fold scores of two candidates, and the true labels."""

    before: Tensor
    """Scores of the `reference`, n x classes."""
    after: Tensor
    """Scores of the `best` candidate."""
    targets: Tensor
    reference: str
    best: str

    def by_class(self, classes: Sequence[str]) -> dict[str, Any]:
        """Return the recall of each class with both candidates, from the largest gain to the
        largest loss.
        """
        truth = true_labels(self.targets, len(classes))
        before = predicted_labels(self.before, self.targets)
        after = predicted_labels(self.after, self.targets)
        rows = []
        for number, label in enumerate(classes):
            members = truth[:, number]
            if members.any():
                rows.append(class_row(label, before[members, number], after[members, number]))
        rows.sort(key=lambda row: row["interval"]["mean"], reverse=True)
        shown = rows
        left_out = ""
        if len(rows) > 2 * LISTED:
            shown = rows[:LISTED] + rows[-LISTED:]
            left_out = f" The {len(rows) - len(shown)} classes between these are left out."
        return {
            "title": f"Which classes gained, and which lost, against {self.reference}?",
            "about": f"Out-of-fold recall of {self.best} and of {self.reference}. Gained: labels that "
            f"only {self.best} predicts correctly. Lost: labels that only {self.reference} predicts "
            f"correctly. A class with few labels proves nothing.{left_out}",
            "columns": [
                "class",
                "labels",
                "recall without",
                "recall with",
                "difference",
                "gained",
                "lost",
            ],
            "rows": shown,
        }

    def by_example(self, classes: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
        """Return the examples whose true class (or labels) became much more, or much less,
        probable.
        """
        answer = "the true class"
        heading = "true class"
        if self.targets.ndim == 2:
            answer = "the right answer (the mean over the labels of an example)"
            heading = "true labels"
        was = true_probability(self.before, self.targets)
        now = true_probability(self.after, self.targets)
        order = torch.argsort(was - now, stable=True).tolist()
        if len(order) > 2 * EXAMPLES:
            order = order[:EXAMPLES] + order[-EXAMPLES:]
        truth = true_labels(self.targets, len(classes))
        after = predicted_labels(self.after, self.targets)
        rows = []
        for number in order:
            cells = [
                names[number],
                label_words(truth[number], classes),
                percent(float(was[number])),
                percent(float(now[number])),
                difference(float(now[number] - was[number])),
                label_words(after[number], classes),
            ]
            rows.append({"cells": cells, "interval": None})
        return {
            "title": "Which examples changed most?",
            "about": f"The out-of-fold probability of {answer}, with {self.reference} (before) and "
            f"{self.best} (after). Rows are counted from 1.",
            "columns": ["example", heading, "before", "after", "change", "predicted after"],
            "rows": rows,
        }


def class_row(label: str, was_right: Tensor, now_right: Tensor) -> dict[str, Any]:
    """Return the row of a class. The two masks over its examples say which ones the reference and
    the best candidate predict correctly.
    """
    before = float(was_right.double().mean())
    after = float(now_right.double().mean())
    cells = [
        label,
        str(len(was_right)),
        percent(before),
        percent(after),
        difference(after - before),
        str(int((now_right & ~was_right).sum())),
        str(int((was_right & ~now_right).sum())),
    ]
    return {"cells": cells, "interval": bar({"difference": after - before})}


def true_labels(targets: Tensor, classes: int) -> Tensor:
    """Return which labels each example has, n x classes; one class is one label."""
    if targets.ndim == 2:
        return targets == 1
    return one_hot(targets, classes).bool()


def predicted_labels(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return which labels are predicted from outputs, both n x classes."""
    if targets.ndim == 2:
        return outputs > 0
    return one_hot(outputs.argmax(1), outputs.shape[1]).bool()


def true_probability(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the probability of each example's class; with several labels at once, of the right
    answer, as a mean over the labels.
    """
    likely = probabilities(outputs, several=targets.ndim == 2)
    return torch.from_numpy(right_answers(likely, targets.numpy())).mean(1)


def label_words(labels: Tensor, classes: Sequence[str]) -> str:
    """Name the labels of an example."""
    return " + ".join(compress(classes, labels.tolist())) or "none"


def confusions(out_of_fold: Mapping[str, Any], classes: Sequence[str]) -> dict[str, Any]:
    """Return how often the model predicts which class for which true class, out of fold.

    With several labels at once there are four counts for each label. With many classes there is a
    list of the most frequent confusions instead of a matrix.
    """
    targets = out_of_fold["targets"]
    outputs = out_of_fold["model"]
    if targets.ndim == 2:
        predicted = predicted_labels(outputs, targets)
        positive = true_labels(targets, len(classes))
        hits = (positive & predicted).sum(0)
        missed = (positive & ~predicted).sum(0)
        false_alarms = (~positive & predicted).sum(0)
        absent = (~positive & ~predicted).sum(0)
        counts = torch.stack([hits, missed, false_alarms, absent], 1).tolist()
        columns = ["label", "found", "missed", "false alarm", "correctly absent"]
        return {"kind": "labels", "columns": columns, "names": list(classes), "counts": counts}
    total = len(classes)
    # Cell t · total + p counts the examples with true class t and predicted class p.
    cells = torch.bincount(targets * total + outputs.argmax(1), minlength=total * total)
    table = cells.reshape(total, total)
    if total <= MOST_NAMES:
        names = list(classes)
        return {"kind": "matrix", "columns": names, "names": names, "counts": table.tolist()}
    wrong = table.clone().fill_diagonal_(0).flatten()
    order = wrong.argsort(descending=True, stable=True)[:LISTED].tolist()
    pairs = []
    for cell in order:
        if wrong[cell]:
            pairs.append([classes[cell // total], classes[cell % total], int(wrong[cell])])
    columns = ["true class", "predicted", "labels"]
    return {"kind": "pairs", "columns": columns, "names": [], "counts": pairs}
