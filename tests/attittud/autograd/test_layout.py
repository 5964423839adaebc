"""The flat vector of gradients: the order of its parts, and the memory format of its views."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from attittud import Eta, Guide
from attittud.autograd.layout import EVERYTHING, Layout, Share, written_into
from tests.helpers.on_gpu import DEVICE, Convolutions
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
    @pytest.mark.parametrize("device", ["cpu", pytest.param(DEVICE, marks=pytest.mark.gpu)])
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
        # on a CPU the vector is made without views, or they are not kept
        assert (views is None) == (device == "cpu")
        if views is not None:
            for view, want in zip(views, layout.views(flat), strict=True):
                expected = (want.data_ptr(), want.shape, want.stride())
                assert (view.data_ptr(), view.shape, view.stride()) == expected

    @pytest.mark.parametrize("device", ["cpu", pytest.param(DEVICE, marks=pytest.mark.gpu)])
    def test_a_sparse_gradient_is_refused_by_name(self, device):
        layout = Layout(nn.Embedding(5, 3, device=device).named_parameters())
        with pytest.raises(ValueError, match="'weight' has a sparse gradient"):
            layout.flatten_and_view([torch.ones(5, 3, device=device).to_sparse()])


@pytest.mark.parametrize("device", ["cpu", pytest.param(DEVICE, marks=pytest.mark.gpu)])
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
    losses = torch.ones(examples, dtype=dtype, requires_grad=True)
    total = torch.tensor(examples + others)
    part = losses.sum() * (factor / total.clamp(min=1).to(dtype))
    (wanted,) = torch.autograd.grad(part, losses)
    assert torch.equal(Share(others, total, factor).weights(losses), wanted)


def test_a_single_number_and_no_number_have_weights():
    assert EVERYTHING.weights(torch.tensor(3.0)) == 1.0
    assert EVERYTHING.weights(torch.zeros(0)).shape == (0,)


def test_gradients_are_written_into_a_vector():
    """Also for parameters that the loss does not reach; autograd returns them without memory."""
    model = nn.ModuleDict({"reached": nn.Linear(3, 2), "not": nn.Linear(3, 2)})
    layout, x = Layout(model.named_parameters()), torch.randn(4, 3)
    flat = torch.full((layout.size,), torch.nan)
    parameters = list(model.parameters())
    with written_into(layout, flat):
        found = torch.autograd.grad(
            model["reached"](x).square().sum(), parameters, allow_unused=True
        )
    assert all(gradient is None or gradient.untyped_storage().nbytes() == 4 for gradient in found)
    want = torch.autograd.grad(model["reached"](x).square().sum(), parameters, allow_unused=True)
    assert torch.equal(flat, layout.flatten(want))
    assert not any(p._backward_hooks for p in parameters)


@pytest.mark.parametrize("waiting", [0, 5])
def test_autograd_may_return_small_gradients(waiting, monkeypatch):
    """They need no hook; all are written, some at a time, and what is missing becomes zero."""
    model = nn.ModuleDict(
        {"reached": nn.Linear(3, 2), "also": nn.Linear(2, 2), "not": nn.Linear(3, 2)}
    )
    layout, x = Layout(model.named_parameters()), torch.randn(4, 3)
    flat = torch.full((layout.size,), torch.nan)
    monkeypatch.setattr("attittud.autograd.layout.WAITING", waiting)

    def gradients():
        loss = model["also"](model["reached"](x)).square().sum()
        return torch.autograd.grad(loss, layout.parameters, allow_unused=True)

    with written_into(layout, flat, returned=True) as writing:
        writing.keep(gradients())
    want = torch.zeros(layout.size)
    layout.add_(want, gradients(), fresh=False)
    assert torch.equal(flat, want)
    assert not any(p._backward_hooks for p in layout.parameters)


class WithoutGradient(torch.autograd.Function):
    """Uses a parameter, but returns no gradient for it."""

    @staticmethod
    def forward(x, weight):
        return x * weight.sum()

    @staticmethod
    def setup_context(ctx, inputs, output):  # noqa: ARG004 - torch passes it
        ctx.factor = inputs[1].detach().sum()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


@pytest.mark.parametrize(
    ("engine", "tasks", "judged"),
    [("loop", 1, False), ("loop", 2, False), ("hooks", 2, True)],
)
def test_a_parameter_for_which_a_function_returns_no_gradient_gets_zeros(engine, tasks, judged):
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {"body": nn.Linear(4, 4), "primary": nn.Linear(4, 2), "auxiliary": nn.Linear(4, 2)}
    )
    model.register_parameter("weight", nn.Parameter(torch.ones(64) / 64))
    x = torch.randn(5, 4)

    def losses(head):
        return model[head](WithoutGradient.apply(model["body"](x), model.weight)).square().mean(1)

    guide = Guide(
        model, eta="auto" if judged else Eta(1, 1, 1), rank=2, engine=engine, judge_every=1
    )
    for _ in range(2):
        model.zero_grad()
        auxiliary = {str(at): losses("auxiliary").mean() for at in range(tasks)}
        guide.backward(
            lambda: losses("primary"),
            auxiliary,
            judge=(lambda: losses("primary")) if judged else None,
        )
    assert torch.equal(model.weight.grad, torch.zeros(64))
    if judged:  # the weights are not all 1
        return
    want = sum(
        times * torch.autograd.grad(losses(head).mean(), model["body"].weight)[0]
        for head, times in (("primary", 1), ("auxiliary", tasks))
    )
    assert torch.allclose(model["body"].weight.grad, want, rtol=1e-5)
