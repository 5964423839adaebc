"""Problems, targets and losses."""

import numpy as np

from attittud_lab.uses.problem import SourceData, log_loss, soft_targets


def test_missing_labels_give_no_target_and_no_loss():
    np.testing.assert_array_equal(soft_targets(np.array([1, -1]), 3), [[0, 1, 0], [0, 0, 0]])
    targets = soft_targets(np.array([[1, -1], [0, 1]]), 2)
    np.testing.assert_array_equal(targets, [[1, np.nan], [0, 1]])
    scores = np.log(np.array([[0.5, 0.5], [0.9, 0.1]]))
    assert log_loss(scores, np.array([0, -1])) == -np.log(0.5)
    assert log_loss(np.zeros((2, 2)), np.array([[1, -1], [0, 1]])) == np.log(2)


def test_rows_without_any_label_leave_a_source():
    features = np.arange(8, dtype=np.float32).reshape(4, 2)
    one = SourceData("one", features, np.array([0, -1, 1, -1]), ["a", "b"]).labelled
    np.testing.assert_array_equal(one.features, features[[0, 2]])
    labels = np.array([[0, -1], [-1, -1], [1, 1], [-1, 0]])
    several = SourceData("more", features, labels, ["a", "b"]).labelled
    np.testing.assert_array_equal(several.features, features[[0, 2, 3]])
    assert several.several
