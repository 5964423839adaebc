"""How many functions a step calls: eager training is bound by Python between the kernels."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import attittud
from attittud import Eta, Guide

SOURCE = str(Path(attittud.__file__).parent)


def network(tensors):
    blocks = (nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range((tensors - 4) // 2))
    return nn.ModuleDict(
        {"body": nn.Sequential(*blocks), "primary": nn.Linear(16, 3), "other": nn.Linear(16, 2)}
    )


def calls(tensors, *, refresh=False):
    """How many of our own functions, and how many of all functions, a step calls."""
    model = network(tensors)
    guide = Guide(model, eta=Eta(1, 1, 0), rank=5, engine="loop")
    x, y = torch.randn(8, 16), torch.randint(3, (8,))
    ours = every = 0

    def watch(frame, event, _):
        nonlocal ours, every
        ours += event == "call" and frame.f_code.co_filename.startswith(SOURCE)
        every += event in ("call", "c_call")

    for number in range(4):
        model.zero_grad()
        features = model["body"](x)
        losses = F.cross_entropy(model["primary"](features), y, reduction="none")
        loss = model["other"](model["body"](x)).square().mean()
        sys.setprofile(watch if number == 3 else None)
        guide.backward(losses, loss, refresh=refresh or None)
        sys.setprofile(None)
    return ours, every


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
