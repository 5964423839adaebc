"""What changed between two candidates: recall by class, single examples, and confusions."""

from typing import Any

import pytest
import torch

from attittud_lab.report.changes import EXAMPLES, changes

WORTH = {"worth": {"best": "pooled", "reference": "alone"}}


def kept_of(targets: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> dict[str, Any]:
    candidates = {"alone": before, "pooled": after}
    return {
        "rows": torch.arange(len(targets)),
        "targets": targets,
        "candidates": candidates,
        "model": after,
    }


def tables(kept: dict[str, Any], classes: list[str]) -> list[list[list[str]]]:
    return [[row["cells"] for row in table["rows"]] for table in changes(WORTH, kept, classes)]


def test_gained_and_lost_labels_add_up_to_the_difference_of_two_recalls():
    targets = torch.randint(3, (90,))
    before, after = torch.randn(90, 3), torch.randn(90, 3)
    by_class, _ = tables(kept_of(targets, before, after), ["a", "b", "c"])
    for label, count, was, now, change, gained, lost in by_class:
        members = targets == "abc".index(label)
        assert int(count) == members.sum()
        for outputs, cell in ((before, was), (after, now)):
            recall = (outputs.argmax(1) == targets)[members].double().mean()
            assert cell == f"{100 * recall:.1f} %"
        found = float(change)
        assert found == pytest.approx(100 * (int(gained) - int(lost)) / int(count), abs=0.051)
    order = [float(row[4]) for row in by_class]
    assert order == sorted(order, reverse=True)


def test_examples_that_changed_most_come_first_and_last():
    targets = torch.arange(40) % 2
    before, after = torch.randn(40, 2), torch.randn(40, 2)
    kept = kept_of(targets, before, after) | {"names": [f"photo {n}" for n in range(40)]}
    _, examples = tables(kept, ["a", "b"])
    right = torch.arange(40), targets
    change = after.double().softmax(1)[right] - before.double().softmax(1)[right]
    order = change.argsort(descending=True).tolist()
    found = [row[0] for row in examples]
    assert found == [f"photo {n}" for n in order[:EXAMPLES] + order[-EXAMPLES:]]
    for row in examples:
        number = int(row[0].removeprefix("photo "))
        assert float(row[4]) == pytest.approx(100 * float(change[number]), abs=0.051)
        assert row[1] == "ab"[targets[number]]
        assert row[5] == "ab"[after[number].argmax()]
