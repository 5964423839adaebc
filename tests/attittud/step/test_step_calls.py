"""How many functions a step calls: eager training is bound by Python between the kernels."""

from torch import nn

from benchmarks.calls import calls


def test_a_plain_step_calls_the_same_number_of_our_functions_for_any_number_of_tensors():
    few = calls(198)[0]
    assert few == calls(774)[0] <= 150


def test_apart_from_the_list_of_parameters_a_plain_step_looks_at_no_single_tensor(monkeypatch):
    """A step that looks at each node of its graphs without need takes more than 600 calls."""
    lists, listed = {}, nn.Module.named_parameters

    def listed_once(model, **options):
        if model not in lists:
            lists[model] = list(listed(model, **options))
        return lists[model]

    monkeypatch.setattr(nn.Module, "named_parameters", listed_once)
    few = calls(198)[1]
    many = calls(774)[1]
    # Not equal: some calls are made only if another test has loaded torch's CUDA graph trees.
    assert abs(many - few) < 100
    assert many <= 600


def test_a_refresh_by_loop_calls_the_same_number_of_our_functions_for_any_number_of_tensors():
    own = calls(198, refresh=True)[0]
    assert own <= 300  # 12 of them only if another test has loaded torch's CUDA graph trees
    assert calls(774, refresh=True)[0] == own
