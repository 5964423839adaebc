"""How many functions a step calls: eager training is bound by Python between the kernels."""

import pytest

from benchmarks.calls import calls


def test_a_plain_step_calls_the_same_number_of_our_functions_for_any_number_of_tensors():
    (few, every_few), (many, every_many) = calls(198), calls(774)
    assert few == many <= 150
    # The goal is 2,000. A step that looks at each node of its graphs without need takes more than
    # 600.
    assert every_few <= 600 and every_many <= 600


def test_under_autocast_a_plain_step_calls_hardly_more_of_our_functions():
    own, every = calls(198, half=True)
    # A step looks at each node of its graphs. Some calls are made only if another test has loaded
    # torch's CUDA graph trees.
    assert own <= 165 and every <= 6_000
    assert calls(774, half=True)[0] == own


@pytest.mark.parametrize("tensors", [198, 774])
def test_primary_auxiliary_combine_call_hardly_more_functions(tensors):
    assert calls(tensors, verbs=True)[0] <= 170


def test_a_refresh_by_loop_calls_the_same_number_of_our_functions_for_any_number_of_tensors():
    own = calls(198, refresh=True)[0]
    assert own <= 300  # 12 of them only if another test has loaded torch's CUDA graph trees
    assert calls(774, refresh=True)[0] == own


@pytest.mark.parametrize(
    ("engine", "most", "most_in_all"), [("batched", 8, 60), ("hooks", 50, 220)]
)
def test_a_refresh_by_other_engines_calls_a_fixed_number_of_functions_for_each_tensor(
    engine, most, most_in_all
):
    few, many = (calls(tensors, engine=engine, refresh=True) for tensors in (198, 774))
    own, every = ((b - a) / (774 - 198) for a, b in zip(few, many, strict=True))
    assert own <= most and every <= most_in_all
