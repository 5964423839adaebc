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
        was_right = is_right(self.before, self.targets)
        now_right = is_right(self.after, self.targets)
        rows = []
        for number, label in enumerate(classes):
            row = self._class_row(number, label, was_right, now_right)
            if row is not None:
                rows.append(row)
        rows.sort(key=lambda row: row["interval"]["mean"], reverse=True)
        shown = rows
        left = ""
        if len(rows) > 2 * LISTED:
            shown = rows[:LISTED] + rows[-LISTED:]
            left = f" The {len(rows) - len(shown)} classes between these are left out."
        return {
            "title": f"Which classes gained, and which lost, against {self.reference}?",
            "about": f"Out-of-fold recall of {self.best} and of {self.reference}. Gained: labels that "
            f"only {self.best} predicts correctly. Lost: labels that only {self.reference} predicts "
            f"correctly. A class with few labels proves nothing.{left}",
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

    def _class_row(
        self, number: int, label: str, was_right: Tensor, now_right: Tensor
    ) -> dict[str, Any] | None:
        """Return the row of a class; None if it has no examples."""
        if self.targets.ndim == 1:
            members = self.targets == number
            was = was_right[members]
            now = now_right[members]
        else:
            members = self.targets[:, number] == 1
            was = was_right[members, number]
            now = now_right[members, number]
        if not members.any():
            return None
        before = float(was.double().mean())
        after = float(now.double().mean())
        gained = int((now & ~was).sum())
        lost = int((was & ~now).sum())
        cells = [
            label,
            str(int(members.sum())),
            percent(before),
            percent(after),
            difference(after - before),
            str(gained),
            str(lost),
        ]
        return {"cells": cells, "interval": bar({"difference": after - before})}

    def by_example(self, classes: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
        """Return the examples whose true class (or labels) became much more, or much less,
        probable.
        """
        answer = "the true class"
        heading = "true class"
        several = self.targets.ndim == 2
        if several:
            answer = "the right answer (the mean over the labels of an example)"
            heading = "true labels"
        was = true_probability(self.before, self.targets)
        now = true_probability(self.after, self.targets)
        order = torch.argsort(was - now, stable=True).tolist()
        if len(order) > 2 * EXAMPLES:
            order = order[:EXAMPLES] + order[-EXAMPLES:]
        rows = []
        for number in order:
            truth = self.targets[number]
            predicted = self.after[number].argmax()
            if several:
                truth = truth == 1
                predicted = self.after[number] > 0
            cells = [
                names[number],
                label_words(truth, classes),
                percent(float(was[number])),
                percent(float(now[number])),
                difference(float(now[number] - was[number])),
                label_words(predicted, classes),
            ]
            rows.append({"cells": cells, "interval": None})
        return {
            "title": "Which examples changed most?",
            "about": f"The out-of-fold probability of {answer}, with {self.reference} (before) and "
            f"{self.best} (after). Rows are counted from 1.",
            "columns": ["example", heading, "before", "after", "change", "predicted after"],
            "rows": rows,
        }


def is_right(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return which predictions are right: n, or n x labels."""
    if targets.ndim == 1:
        return outputs.argmax(1) == targets
    return (outputs > 0) == (targets == 1)


def true_probability(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the probability of each example's class; with several labels at once, the mean over
    its labels.
    """
    likely = probabilities(outputs, several=targets.ndim == 2)
    return torch.from_numpy(right_answers(likely, targets.numpy())).mean(1)


def label_words(labels: Tensor, classes: Sequence[str]) -> str:
    """Name a class by its number, or all labels that are true."""
    if labels.ndim == 0:
        return classes[int(labels)]
    return " + ".join(compress(classes, labels.tolist())) or "none"


def confusions(out_of_fold: Mapping[str, Any], classes: Sequence[str]) -> dict[str, Any]:
    """Count true and predicted classes; with several labels at once, return the four counts of each
    label.
    """
    targets = out_of_fold["targets"]
    outputs = out_of_fold["model"]
    if targets.ndim == 2:
        predicted = outputs > 0
        positive = targets == 1
        hits = (positive & predicted).sum(0)
        missed = (positive & ~predicted).sum(0)
        false_alarms = (~positive & predicted).sum(0)
        absent = (~positive & ~predicted).sum(0)
        counts = torch.stack([hits, missed, false_alarms, absent], 1).tolist()
        columns = ["label", "found", "missed", "false alarm", "correctly absent"]
        return {"kind": "labels", "columns": columns, "names": list(classes), "counts": counts}
    total = len(classes)
    cells = torch.bincount(targets * total + outputs.argmax(1), minlength=total * total)
    table = cells.reshape(total, total)
    if total <= MOST_NAMES:
        names = list(classes)
        return {"kind": "matrix", "columns": names, "names": names, "counts": table.tolist()}
    wrong = table.clone().fill_diagonal_(0).flatten()
    order = wrong.argsort(descending=True, stable=True)[:LISTED].tolist()
    pairs = []
    for place in order:
        if wrong[place]:
            pairs.append([classes[place // total], classes[place % total], int(wrong[place])])
    columns = ["true class", "predicted", "labels"]
    return {"kind": "pairs", "columns": columns, "names": [], "counts": pairs}
