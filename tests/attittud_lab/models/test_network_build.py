"""Networks by name: their initial weights, and networks that memory cannot hold."""

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

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


def test_every_seed_starts_from_its_own_weights_with_the_heads_it_shares(tmp_path: Path) -> None:
    data, config = images(), model_config("{name: mlp, width: 8}").model
    sources = {seed: build_model(config, data, 10 + seed) for seed in (0, 1)}
    for seed, source in sources.items():
        save_file(source.state_dict(), tmp_path / f"{seed}.safetensors")
    job = model_config(f'{{name: mlp, width: 8, weights: "{tmp_path}/{{seed}}.safetensors"}}').model
    for seed, source in sources.items():
        model, wanted = build_model(job, data, seed).state_dict(), source.state_dict()
        assert torch.equal(model["body.layers.1.weight"], wanted["body.layers.1.weight"])
        assert torch.equal(model["heads.other.weight"], wanted["heads.other.weight"])
        assert not torch.equal(model["heads.primary.weight"], wanted["heads.primary.weight"])
    data.auxiliary["other"] = replace(data.primary, name="other", classes=["a", "b", "c", "d", "e"])
    assert build_model(job, data, 0).heads["other"].weight.shape == (
        5,
        8,
    )  # another task gets its own head
