"""Networks by name: their initial weights, and networks that memory cannot hold."""

import torch

from attittud_lab.models.network import build_model
from tests.helpers.networks import images, model_config


def test_initial_weights_depend_on_the_seed_alone() -> None:
    data, config = images(), model_config("{name: small-cnn, width: 8}").model
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second, other = (build_model(config, data, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["heads.primary.weight"], other["heads.primary.weight"])
