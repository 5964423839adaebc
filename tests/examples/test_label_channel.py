"""The example of the label channel: labels that are all wrong help once they are translated."""

import re

import label_channel
import pytest

from tests.helpers.pages import DOCS, blocks


def test_translated_labels_help_where_their_plain_sum_hurts(capsys):
    accuracies = label_channel.main(seed=0)
    assert accuracies["plain sum"] < accuracies["primary alone"] - 0.1
    assert accuracies["label channel"] > accuracies["primary alone"] + 0.05
    assert accuracies["label channel and guide"] > accuracies["primary alone"] + 0.05
    (shown,) = blocks((DOCS / "translated-labels.md").read_text(), "text")
    for line in shown.splitlines():
        name, percent = re.fullmatch(r"(.*\w) +([\d.]+)%", line).groups()
        assert 100 * accuracies[name] == pytest.approx(float(percent), abs=3)
    lines = capsys.readouterr().out.splitlines()
    for digit in range(10):
        assert lines[1 + digit].startswith(f"a {digit} is called {(digit + 1) % 10} ")
