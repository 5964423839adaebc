"""How many functions a step calls: eager training is bound by Python between the kernels."""

import pytest

from benchmarks.calls import calls


def test_a_plain_step_calls_the_same_number_of_our_functions_for_any_number_of_tensors():
    own, every = calls(198)
    assert own <= 150 and every <= 2_000
    assert calls(774)[0] == own


@pytest.mark.parametrize("tensors", [198, 774])
def test_primary_auxiliary_combine_call_hardly_more_functions(tensors):
    assert calls(tensors, verbs=True)[0] <= 170


def test_a_refresh_by_loop_calls_the_same_number_of_our_functions_for_any_number_of_tensors():
    own = calls(198, refresh=True)[0]
    assert own <= 270
    assert calls(774, refresh=True)[0] == own


@pytest.mark.parametrize(("engine", "most"), [("batched", 8), ("hooks", 40)])
def test_a_refresh_by_other_engines_calls_a_fixed_number_of_functions_for_each_tensor(engine, most):
    few, many = (calls(tensors, engine=engine, refresh=True)[0] for tensors in (198, 774))
    assert (many - few) / (774 - 198) <= most
