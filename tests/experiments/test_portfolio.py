"""The third round of never regret: its declaration, its examples, its runner in miniature, its statistics, and its page."""

import hashlib
from collections import Counter

import numpy as np
import pytest

from experiments.portfolio import declare, examples, pairs

FROZEN = "8ec086408701b94750d3aacb9637b49ef80b34242a6ea3db7e17185070753743"
"""The declaration was committed with this checksum before anything was run on its pairs; it must never change."""


def test_the_declaration_has_not_changed_since_it_was_made():
    assert hashlib.sha256(declare.DECLARATION.read_bytes()).hexdigest() == FROZEN


def test_the_declaration_has_what_was_asked_for():
    declared = declare.read()
    assert declared.keys() == pairs.MAKERS.keys() and len(declared) >= 16
    assert min(Counter(pair.kind for pair in declared.values()).values()) >= 4
    assert {pair.kind for pair in declared.values()} == {"image", "text", "table"}
    assert 3 * sum(pair.built_to == declare.HURTS for pair in declared.values()) >= len(declared)
    assert sum(len(pair.auxiliary) > 1 for pair in declared.values()) >= 4
    assert sum(pair.shares for pair in declared.values()) >= 8
    for pair in declared.values():
        assert 500 <= pair.test <= 1000 and 20 <= sum(pair.labels.values()) <= 400
        assert pair.pool >= sum(pair.labels.values()) and pair.about and pair.why


@pytest.mark.parametrize("name", ["rules_random", "friedman_other"])
def test_generated_pairs_are_the_declared_ones(name, tmp_path):
    built = pairs.MAKERS[name](examples.Folder(tmp_path))
    declare.check(declare.read()[name], built)
    with pytest.raises(SystemExit, match="was declared before anything was run"):
        declare.check(declare.read()[name], examples.Built(built.pool, built.test.take(range(10)), built.auxiliary))


def test_parts_are_balanced_and_share_no_row():
    labels = np.array([0, 1, 2, -1] * 30)
    first, second, rest = examples.balanced(labels, [30, 15], "test")
    assert Counter(labels[first].tolist()) == {0: 10, 1: 10, 2: 10} and len(second) == 15 and len(rest) == 45
    assert len({*first, *second, *rest}) == 90
    with pytest.raises(ValueError, match="cannot be taken in equal parts"):
        examples.balanced(labels, [93], "test")


def test_labels_are_wrong_as_often_as_said():
    labels = np.arange(1000) % 4
    part = examples.Part([str(row) for row in range(1000)], ["text"] * 1000, labels, ("a", "b", "c", "d"))
    assert (examples.shifted(part, 0.6, "test").labels != labels).sum() == 600
    assert np.array_equal(examples.shifted(part, 1.0, "test").labels, (labels + 1) % 4)
    assert 700 < (examples.randomised(part, 1.0, "test").labels != labels).sum() < 800
    assert (examples.randomised(part, 0.3, "test").labels != labels).sum() <= 300
