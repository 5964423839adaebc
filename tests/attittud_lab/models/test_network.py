"""A body with its heads: normalisation, initial weights, and a body from an earlier run."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from attittud_lab.data.tasks import Examples
from attittud_lab.errors import InputError
from attittud_lab.models.build import build_model
from attittud_lab.models.network import Network, statistics
from tests.helpers.networks import images, model_config


@pytest.mark.parametrize(("init", "std"), [("kaiming", 1.0), ("zero", 0.0)])
def test_head_init_sets_the_initial_weights_of_the_head(init, std):
    config = model_config(f"{{name: small-cnn, width: 256, head_init: {init}}}").model
    model = build_model(config, images(), 0)
    head = model.heads["primary"]
    assert isinstance(head, nn.Linear)
    # Fan-out of 2 classes: the standard deviation of 1.0 that the paper's release has.
    assert float(head.weight.detach().std()) == pytest.approx(std, abs=0.1)


def test_inputs_are_normalised_by_statistics_of_the_larger_data_set():
    pixels = torch.randint(256, (50, 3, 4, 4), dtype=torch.uint8)
    mean, std = statistics(pixels)
    torch.testing.assert_close(mean, (pixels / 255).mean((0, 2, 3)))
    torch.testing.assert_close(std, (pixels / 255).std((0, 2, 3), correction=0))
    assert statistics(torch.zeros(2, 1, 4, 4, dtype=torch.uint8))[1] > 0
    data = images()
    more = torch.randint(100, (9, 3, 16, 16), dtype=torch.uint8)
    data.auxiliary["other"].examples = Examples(more, torch.arange(9) % 8)
    network = build_model(model_config("{name: mlp, width: 8}").model, data, 0)
    torch.testing.assert_close(network.mean.flatten(), statistics(more)[0])  # of the larger set


def test_a_body_can_start_from_the_weights_of_an_earlier_run(tmp_path):
    data, config = images(), model_config("{name: mlp, width: 8}").model
    source = build_model(config, data, 1)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    config = replace(config, weights=f"{tmp_path}/w.safetensors")
    model = build_model(config, data, 2)
    assert torch.equal(model.body.layers[1].weight, source.body.layers[1].weight)
    assert not torch.equal(model.heads["primary"].weight, source.heads["primary"].weight)
    with pytest.raises(InputError, match=r"model.weights: .* this model needs"):
        build_model(replace(config, width=9), data, 2)


def test_a_source_may_have_the_name_of_an_attribute_of_a_module():
    # Not dir(): some packages give modules further attributes when they are imported.
    names = ["train", "training", "type", "values", "to", "forward", "pop", "register_buffer"]
    heads = {"primary": 2} | dict.fromkeys(names, 3)
    network = Network(nn.Identity(), heads, features=4)
    inputs = torch.randn(5, 4)
    outputs = [network(inputs, head=name) for name in heads]
    assert [len(one[0]) for one in outputs] == list(heads.values())
    network.eval().load_state_dict(Network(nn.Identity(), heads, features=4).state_dict())
    assert not network.training


def test_initial_weights_depend_on_the_seed_alone():
    data, config = images(), model_config("{name: small-cnn, width: 8}").model
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second, other = (build_model(config, data, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["heads.primary.weight"], other["heads.primary.weight"])


def test_unknown_models_are_refused_with_the_known_names():
    for name, message in {
        "smal-cnn": r"Did you mean 'small-cnn'\?",
        "wideresnet-20-4": "the depth must be 6n",
        "wideresnet-10-0": "the width at least 1",
        "text-cnn": "reads texts, but the data are images",
        "hf:nowhere": r"attittud\[transformers\]|cannot be loaded",
        "timm:nonsense_9": r"attittud\[timm\]|cannot be built",
    }.items():
        with pytest.raises(InputError, match=message):
            build_model(model_config(name).model, images(), 0)
