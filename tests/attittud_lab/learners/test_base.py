"""What all learners share."""

import numpy as np

from attittud_lab.learners.base import LOWEST, floored_log, log_softmax, sigmoid


def test_large_numbers_do_not_overflow():
    logits = np.array([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]])
    scores = log_softmax(logits)
    np.testing.assert_allclose(np.exp(scores).sum(axis=1), 1)
    np.testing.assert_allclose(scores[1], -np.log(3))
    np.testing.assert_array_equal(sigmoid(np.array([-1e4, 0.0, 1e4])), [0, 0.5, 1])


def test_no_probability_is_zero():
    scores = floored_log(np.array([[1.0, 0.0]]))
    np.testing.assert_allclose(np.exp(scores), [[1 - LOWEST / 2, LOWEST / 2]])
