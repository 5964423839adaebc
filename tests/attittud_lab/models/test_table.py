"""The network for tables: its sizes, and examples that do not depend on each other."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attittud import Eta, Guide
from attittud_lab.config.schema import ModelConfig
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import Examples, Task
from attittud_lab.errors import InputError
from attittud_lab.models.network import Network, build_model


def rows(features: int = 7) -> Prepared:
    torch.manual_seed(0)
    examples = Examples(torch.randn(12, features), torch.randint(3, (12,)))
    primary = Task("primary", "classify", ["a", "b", "c"], examples)
    return Prepared(
        "table",
        primary,
        examples,
        examples,
        {"other": Task("other", "classify", ["d", "e"], examples)},
    )


def built(name: str, features: int = 7, **more: float) -> Network:
    return build_model(ModelConfig(name=name, width=16, **more), rows(features), 0)


@pytest.mark.parametrize(("name", "blocks"), [("table-mlp", 2), ("table-mlp-12", 12)])
def test_the_name_sets_the_number_of_blocks(name: str, blocks: int) -> None:
    model = built(name)
    assert len(model.body.blocks) == blocks
    assert model(torch.randn(4, 7), head="primary").shape == (4, 3)
    assert not any("BatchNorm" in type(module).__name__ for module in model.modules())


@pytest.mark.parametrize("name", ["table-mlp-0"])
def test_wrong_numbers_of_blocks_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"unknown model.*Did you mean 'table-mlp'"):
        built(name)


def test_image_models_refuse_tables() -> None:
    with pytest.raises(
        InputError, match="reads images, but the data are tables; use one of mlp, table-mlp"
    ):
        built("small-cnn")
    assert built("mlp")(torch.randn(4, 7), head="primary").shape == (4, 3)


def test_an_example_does_not_depend_on_the_others() -> None:
    model, inputs = built("table-mlp"), torch.randn(5, 7)
    together = model(inputs, head="primary")
    torch.testing.assert_close(together[2:3], model(inputs[2:3], head="primary"))


def test_hooks_give_the_gradients_of_the_loop() -> None:
    data, found = rows(), []
    for name in ("loop", "hooks"):
        model = built("table-mlp")
        guide = Guide(model, eta=Eta(neutral=1, helpful=0, harmful=-1), rank=4, engine=name)

        def losses(network: nn.Module = model) -> torch.Tensor:
            examples = data.primary.examples
            return F.cross_entropy(
                network(examples.inputs, head="primary"), examples.targets, reduction="none"
            )

        inputs, targets = data.auxiliary["other"].examples.take(torch.arange(12))
        auxiliary = F.cross_entropy(model(inputs, head="other"), targets % 2)
        guide.backward(primary=losses, auxiliary=auxiliary)
        found.append([parameter.grad for parameter in model.parameters()])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4)
