"""The flat vector of gradients: the order of its parts, and the memory format of its views."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from attittud import Eta, Guide
from attittud.autograd.layout import EVERYTHING, Layout, Share
from tests.helpers.on_gpu import DEVICE, NEEDS_GPU, Convolutions
from tests.helpers.zoo import problem

NOTHING = Eta(0, 0, 0)


def test_gradients_follow_a_new_memory_format():
    p = problem("cnn_batch_norm")
    guide = Guide(p.model, eta=NOTHING, rank=3)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    p.model.zero_grad()
    p.model.to(memory_format=torch.channels_last)
    guide.backward(primary=p.losses(), auxiliary=p.loss(), refresh=False)
    assert all(x.grad.stride() == x.stride() for x in guide.shared_parameters.values())


def test_a_layout_recognises_the_parameters_it_was_made_from():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Linear(3, 2))
    layout = Layout(model.named_parameters())
    assert layout.describes(list(model.named_parameters()))
    assert not layout.describes(list(model.named_parameters())[:-1])
    assert not layout.describes(
        [(f"x.{name}", parameter) for name, parameter in model.named_parameters()]
    )
    model.to(memory_format=torch.channels_last)
    assert not layout.describes(list(model.named_parameters()))


class TestFlattenAndView:
    @pytest.mark.parametrize("device", ["cpu", pytest.param(DEVICE, marks=NEEDS_GPU)])
    @pytest.mark.parametrize("missing", [False, True])
    def test_the_vector_holds_every_gradient_and_the_views_are_the_layouts(self, device, missing):
        model = Convolutions().to(device)
        layout = Layout(model.named_parameters())
        gradients = [torch.randn_like(p) for p in layout.parameters]
        gradients[0] = gradients[0].contiguous()  # another order of memory than the parameter's
        wanted = list(gradients)
        if missing:
            gradients[1], wanted[1] = None, torch.zeros_like(gradients[1])
        flat, views = layout.flatten_and_view(gradients)
        assert all(map(torch.equal, layout.views(flat), wanted))
        assert (views is None) == (
            device == "cpu"
        )  # on a CPU the vector is made without views, or they are not kept
        if views is not None:
            for view, want in zip(views, layout.views(flat), strict=True):
                assert (view.data_ptr(), view.shape, view.stride()) == (
                    want.data_ptr(),
                    want.shape,
                    want.stride(),
                )

    @pytest.mark.parametrize("device", ["cpu", pytest.param(DEVICE, marks=NEEDS_GPU)])
    def test_a_sparse_gradient_is_refused_by_name(self, device):
        layout = Layout(nn.Embedding(5, 3, device=device).named_parameters())
        with pytest.raises(ValueError, match="'weight' has a sparse gradient"):
            layout.flatten_and_view([torch.ones(5, 3, device=device).to_sparse()])


@pytest.mark.parametrize("device", ["cpu", pytest.param(DEVICE, marks=NEEDS_GPU)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@given(examples=st.integers(1, 5000))
@settings(deadline=None, max_examples=30)
def test_weights_of_the_mean_are_to_the_bit_the_gradient_of_the_mean(device, dtype, examples):
    losses = torch.ones(examples, device=device, dtype=dtype, requires_grad=True)
    (wanted,) = torch.autograd.grad(losses.mean(), losses)
    assert torch.equal(EVERYTHING.weights(losses), wanted)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@given(examples=st.integers(0, 40), others=st.integers(0, 40), factor=st.integers(1, 8))
@settings(deadline=None, max_examples=30)
def test_weights_of_one_of_several_workers_are_the_gradient_of_its_part_of_the_mean(
    dtype, examples, others, factor
):
    losses, total = (
        torch.ones(examples, dtype=dtype, requires_grad=True),
        torch.tensor(examples + others),
    )
    part = losses.sum() * (factor / total.clamp(min=1).to(dtype))
    (wanted,) = torch.autograd.grad(part, losses)
    assert torch.equal(Share(others, total, factor).weights(losses), wanted)


def test_a_single_number_and_no_number_have_weights():
    assert EVERYTHING.weights(torch.tensor(3.0)) == 1.0
    assert EVERYTHING.weights(torch.zeros(0)).shape == (0,)
