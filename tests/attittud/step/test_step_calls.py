"""How many functions a step calls: eager training is bound by Python between the kernels."""

from benchmarks.calls import calls


def test_a_plain_step_calls_the_same_number_of_our_functions_for_any_number_of_tensors():
    (few, every_few), (many, every_many) = calls(198), calls(774)
    assert few == many <= 150
    # The goal is 2,000. A step that looks at each node of its graphs without need takes more than
    # 600.
    assert every_few <= 600 and every_many <= 600


def test_a_refresh_by_loop_calls_the_same_number_of_our_functions_for_any_number_of_tensors():
    own = calls(198, refresh=True)[0]
    assert own <= 300  # 12 of them only if another test has loaded torch's CUDA graph trees
    assert calls(774, refresh=True)[0] == own
