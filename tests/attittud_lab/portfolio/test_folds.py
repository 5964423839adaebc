"""Folds: every label is held out once, groups stay whole, rare classes always train."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attittud_lab.config.schema import PortfolioConfig
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import Examples, Task
from attittud_lab.errors import InputError
from attittud_lab.portfolio.folds import NEVER, assign, fold_data, make_folds, rare_examples

LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=80)


def prepared(labels: list[int] | np.ndarray, groups: list[str] | None = None) -> Prepared:
    targets = torch.as_tensor(np.array(labels))
    inputs = torch.arange(len(targets), dtype=torch.float32)[:, None]
    objective = "multi_label" if targets.ndim == 2 else "classify"
    count = targets.shape[1] if targets.ndim == 2 else int(targets.max()) + 1
    task = Task("primary", objective, [f"c{i}" for i in range(count)], Examples(inputs, targets))
    empty = Examples(inputs[:0], targets[:0])
    return Prepared("table", task, empty, empty, {}, groups=groups)


@given(LABELS, st.integers(2, 5), st.integers(0, 99))
def test_classes_are_in_proportion_and_rare_ones_always_train(labels, count, seed):
    found = np.array(labels)
    rare = rare_examples(found, None, count)
    of = assign(found, None, rare, count, seed)
    sizes = Counter(labels)
    assert all((of[i] == NEVER) == (sizes[label] < count) for i, label in enumerate(labels))
    for label in sizes:
        if sizes[label] >= count:
            each = [int(((of == fold) & (found == label)).sum()) for fold in range(count)]
            assert max(each) - min(each) <= 1 and min(each) >= 1
    totals = [int((of == fold).sum()) for fold in range(count)]
    assert max(totals) - min(totals) <= 1


@given(st.data(), LABELS, st.integers(2, 4), st.integers(0, 99))
def test_groups_are_never_split(data, labels, count, seed):
    groups = data.draw(
        st.lists(st.sampled_from("abcdefghij"), min_size=len(labels), max_size=len(labels))
    )
    found = np.array(labels)
    rare = rare_examples(found, groups, count)
    of = assign(found, groups, rare, count, seed)
    for group in set(groups):
        assert len({int(of[i]) for i in range(len(labels)) if groups[i] == group}) == 1
    assert all(of[rare] == NEVER)
    for label in set(labels):  # a class that is held out is also there to be learned
        for fold in range(count):
            held = (of == fold) & (found == label)
            if held.any() and not (found[of != fold] == label).any():
                pytest.fail(f"class {label} is only in fold {fold}")


@given(LABELS.filter(lambda labels: max(Counter(labels).values()) > 1), st.integers(0, 99))
def test_every_label_is_held_out_once(labels, seed):
    data = prepared(labels)
    folds = make_folds(data, PortfolioConfig(), seed)
    held = folds.validated
    assert len(set(held.tolist())) == len(held) and folds.count in (2, 3)
    for fold in range(folds.count):
        part = fold_data(data, folds, fold)
        train = part.primary.examples.inputs[:, 0].tolist()
        validation = part.validation.inputs[:, 0].tolist()
        assert sorted(train + validation) == list(range(len(labels)))
        assert validation == folds.held_out(fold).tolist() and len(train) >= folds.smallest
        assert {labels[int(row)] for row in train} == set(labels)
    missing = {label for label in labels if f"c{label}" in folds.not_validated}
    assert missing == set(labels) - {labels[row] for row in held}


def test_the_seed_decides_the_folds():
    of = [make_folds(prepared([0, 1] * 20), PortfolioConfig(), seed).fold_of for seed in (0, 0, 1)]
    assert (of[0] == of[1]).all() and (of[0] != of[2]).any()


def test_few_labels_get_fewer_folds():
    assert make_folds(prepared([0, 0, 1, 1, 2, 2]), PortfolioConfig(), 0).count == 2
    found = make_folds(prepared([0] * 6 + [1] * 6 + [2]), PortfolioConfig(), 0).not_validated
    assert found == ["c2"]
    with pytest.raises(InputError, match="no class has two examples"):
        make_folds(prepared([0, 1, 2]), PortfolioConfig(), 0)
    for one_split_above in (10_000, 3):
        config = PortfolioConfig(one_split_above=one_split_above)
        with pytest.raises(InputError, match="in two groups"):
            make_folds(prepared([0, 0, 1, 1], list("aabb")), config, 0)


@given(st.integers(0, 99))
def test_folds_balance_several_labels_per_example(seed):
    labels = (np.random.default_rng(seed).random((60, 4)) < [0.5, 0.3, 0.1, 0.0]).astype(np.int64)
    labels[:2, 3] = 1
    folds = make_folds(prepared(labels), PortfolioConfig(), seed)
    assert "c3" in folds.not_validated and (folds.fold_of[:2] == NEVER).all()
    for fold in range(3):
        assert len(folds.held_out(fold)) in range(15, 21)
    assert (
        fold_data(prepared(labels), folds, None).primary.examples.inputs[:, 0] == torch.arange(60)
    ).all()
