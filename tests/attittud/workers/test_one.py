"""A process that trains alone must have examples."""

import pytest

from tests.helpers.scenarios import World


def test_without_other_workers_there_must_be_examples():
    w = World("one")
    with pytest.raises(TypeError, match="primary"):
        w.guide().backward(primary=None, auxiliary=w.problem.loss())
    with pytest.raises(TypeError, match="auxiliary 'b'"):
        w.guide().backward(primary=w.problem.losses(), auxiliary={"a": w.problem.loss(), "b": None})
    with pytest.raises(ValueError, match="report_norms"):
        w.guide(report_norms="never")
