"""How many functions a plain step calls: eager training is bound by Python between the kernels."""

import pytest

from benchmarks.calls import calls


def test_a_plain_step_calls_as_many_functions_of_ours_for_any_number_of_tensors():
    own, every = calls(198)
    assert own <= 150 and every <= 2_000
    assert calls(774)[0] == own


@pytest.mark.parametrize("tensors", [198, 774])
def test_three_verbs_call_hardly_more(tensors):
    assert calls(tensors, verbs=True)[0] <= 170
