"""What all learners share."""

import numpy as np
from scipy import sparse

from attittud_lab.learners.base import (
    LOWEST,
    floored_log,
    log_softmax,
    sigmoid,
    stack_columns,
    stack_rows,
)


def test_rows_and_columns_are_stacked_in_either_form():
    first = np.arange(6, dtype=np.float32).reshape(2, 3)
    second = first + 1
    rows = np.concatenate([first, second])
    columns = np.concatenate([first, second], axis=1)
    for left, right in (
        (first, second),
        (sparse.csr_matrix(first), second),
        (first, sparse.csr_matrix(second)),
    ):
        np.testing.assert_array_equal(stack_rows([left, right]), rows)
    both_sparse = [sparse.csr_matrix(first), sparse.csr_matrix(second)]
    assert sparse.issparse(stack_rows(both_sparse))
    np.testing.assert_array_equal(stack_rows(both_sparse).toarray(), rows)
    np.testing.assert_array_equal(stack_columns(both_sparse).toarray(), columns)
    np.testing.assert_array_equal(
        stack_columns([sparse.csr_matrix(first), second]).toarray(), columns
    )
    assert stack_columns([sparse.csr_matrix(first), second]).dtype == np.float32


def test_large_numbers_do_not_overflow():
    logits = np.array([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]])
    scores = log_softmax(logits)
    np.testing.assert_allclose(np.exp(scores).sum(axis=1), 1)
    np.testing.assert_allclose(scores[1], -np.log(3))
    np.testing.assert_array_equal(sigmoid(np.array([-1e4, 0.0, 1e4])), [0, 0.5, 1])


def test_no_probability_is_zero():
    scores = floored_log(np.array([[1.0, 0.0]]))
    np.testing.assert_allclose(np.exp(scores), [[1 - LOWEST / 2, LOWEST / 2]])
