"""Bad input raises at the call that made it, and the message names the culprit and the cure."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn

import attittud
from attittud import Eta, Guide
from tests.helpers.zoo import Checkpointed, TwoHeads, mlp, problem

BAD_INPUT = (ValueError, TypeError, RuntimeError)


@contextmanager
def complains(*words: str):
    """An error of ours whose message has all these words."""
    with pytest.raises(BAD_INPUT) as caught:
        yield
    message = str(caught.value)
    missing = [word for word in words if word.lower() not in message.lower()]
    assert not missing, f"{missing} not in: {message}"


@pytest.fixture
def p():
    found = problem("mlp")
    yield found
    assert all(g is None for g in found.grads().values())  # a refused call leaves nothing behind


def guide_for(p, **options) -> Guide:
    return Guide(p.model, **{"eta": Eta(1, 1, -1), "rank": 3} | options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rank": 0}, ("rank", "0")),
        ({"rank": -2}, ("rank", "-2")),
        ({"rank": 2.5}, ("rank", "2.5")),
        ({"refresh_every": 0}, ("refresh_every", "0")),
        ({"refresh_every": 1.5}, ("refresh_every", "1.5")),
        (
            {"basis": "sketchy"},
            (
                "basis",
                "sketchy",
                "'sketch'",
                "'svd'",
                "'exact'",
                "'mean'",
                "'random'",
                "'canonical'",
            ),
        ),
        ({"engine": "looop"}, ("engine", "looop", "'loop'", "'batched'", "'auto'")),
        ({"batch_norm": "half"}, ("batch_norm", "half", "'batch'", "'frozen'")),
        ({"primary_weight": float("nan")}, ("primary_weight", "nan")),
        ({"primary_weight": float("inf")}, ("primary_weight", "inf")),
        ({"primary_weight": "1"}, ("primary_weight",)),
        ({"auxiliary_weight": float("nan")}, ("auxiliary_weight", "nan")),
        ({"auxiliary_weight": {"a": float("nan")}}, ("auxiliary_weight", "a", "nan")),
        ({"eta": (1, 1)}, ("eta", "Eta(")),
        ({"eta": "flop"}, ("eta", "flip")),
        ({"eta": "pcgrad"}, ("eta", "preset('pcgrad')")),
        ({"rank": 10**9}, ("rank=1000000000", "parameters")),
        ({"eta": None}, ("eta", "Eta(")),
        ({"eta": {"a": 1.0}}, ("eta", "'a'", "Eta(")),
        ({"eta": {}}, ("eta",)),
        ({"basis_dtype": torch.int32}, ("basis_dtype", "int32")),
        ({"seed": 1.5}, ("seed", "1.5")),
        ({"parameters": [nn.Parameter(torch.ones(3))]}, ("parameters", "model")),
        ({"parameters": []}, ("parameters",)),
        ({"parameters": lambda name, _: name == "nobody"}, ("parameters",)),
        ({"parameters": ["body.0.weight"]}, ("parameters", "str")),
    ],
    ids=lambda x: str(x)[:40],
)
def test_wrong_arguments_of_guide_are_refused(p, options, words):
    with complains(*words):
        guide_for(p, **options)


def test_a_model_that_is_no_module_is_refused():
    with complains("model", "nn.Module"):
        Guide([nn.Parameter(torch.ones(2))], eta=Eta(1, 1, 1))


def test_wrong_etas_are_refused():
    with complains("neutral", "nan"):
        Eta(float("nan"), 1, 1)


def test_an_unknown_preset_is_refused():
    with complains("flop", "'flip'", "'pcgrad'"):
        attittud.preset("flop")


@pytest.mark.parametrize(
    ("primary", "words"),
    [
        (lambda p: p.losses().mean(), ("primary", "scalar", "reduction='none'", "vector")),
        (lambda p: p.losses()[:, None], ("primary", "(6, 1)", "vector")),
        (lambda p: p.losses()[:0], ("primary", "empty")),
        (lambda p: p.losses().detach(), ("primary", "graph")),
        (lambda p: p.losses().tolist(), ("primary", "list")),
        (lambda p: p.losses(slice(1)), ("refresh", "2", "example")),
        (lambda p: torch.ones(4, requires_grad=True) * 2, ("primary", "parameter")),
    ],
    ids=["scalar", "matrix", "empty", "no graph", "list", "one example", "foreign graph"],
)
def test_wrong_primary_losses_are_refused(p, primary, words):
    guide = guide_for(p)
    with complains(*words):
        guide.backward(primary=primary(p), auxiliary=p.loss())


@pytest.mark.parametrize(
    ("auxiliary", "words"),
    [
        (lambda p: p.model(p.xa, "auxiliary"), ("auxiliary", "scalar", "(8, 4)")),
        (lambda p: p.loss().detach(), ("auxiliary", "graph")),
        (lambda p: p.loss().item(), ("auxiliary", "float")),
        (lambda p: {}, ("auxiliary", "empty")),
        (lambda p: {"a": p.loss(), "b": p.loss().detach()}, ("'b'", "graph")),
        (lambda p: {"a": p.loss(), "b": p.losses()[:, None]}, ("'b'", "scalar")),
        (lambda p: torch.ones((), requires_grad=True) * 2, ("auxiliary", "parameter")),
    ],
    ids=[
        "matrix",
        "no graph",
        "float",
        "empty",
        "named without graph",
        "named matrix",
        "foreign graph",
    ],
)
def test_wrong_auxiliary_losses_are_refused(p, auxiliary, words):
    guide = guide_for(p)
    with complains(*words):
        guide.backward(primary=p.losses(), auxiliary=auxiliary(p))


@pytest.mark.parametrize(
    ("basis_losses", "words"),
    [
        (lambda p: p.losses(), ("basis_losses", "call")),
        (lambda p: lambda: p.losses().mean(), ("basis_losses", "scalar", "reduction='none'")),
        (lambda p: lambda: p.losses().detach(), ("basis_losses", "graph")),
        (lambda p: lambda: None, ("basis_losses", "None")),
        (lambda p: lambda: p.losses(slice(1)), ("refresh", "2", "example")),
    ],
    ids=["a tensor", "scalar", "no graph", "nothing", "one example"],
)
def test_wrong_basis_losses_are_refused(p, basis_losses, words):
    guide = guide_for(p)
    with complains(*words):
        guide.backward(primary=p.losses(), auxiliary=p.loss(), basis_losses=basis_losses(p))


class Normalised(nn.Module):
    """BatchNorm, over rows or over maps of one pixel."""

    def __init__(self, maps: bool) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 3), nn.BatchNorm2d(3) if maps else nn.BatchNorm1d(3)
        self.maps = maps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.layer(x)
        return (
            (self.norm(found[..., None, None])[..., 0, 0] if self.maps else self.norm(found))
            .square()
            .mean(1)
        )


@pytest.mark.parametrize("maps", [False, True], ids=["rows", "maps"])
@pytest.mark.parametrize(
    ("which", "cure"),
    [
        ("primary", "eval()"),
        ("basis_losses", "preferably of many"),
        ("judge", "batch_norm='frozen'"),
    ],
)
def test_one_example_under_batch_norm_is_refused(which, cure, maps):
    model = Normalised(maps)
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    more = {"eta": "auto"} if which == "judge" else {"eta": Eta(1, 1, -1)}
    given = {"primary": lambda: model(x)} | (
        {"judge": lambda: model(x)} if which == "judge" else {}
    )
    with complains(f"{which}: one example is too few for BatchNorm", "at least two", cure):
        Guide(model, rank=2, **more).backward(
            auxiliary=model(x).mean(), **given | {which: lambda: model(x[:1])}
        )
    assert (
        all(p.grad is None for p in model.parameters())
        and model.training
        and model.norm.track_running_stats
    )
    if which == "judge":
        frozen = Guide(model, rank=2, batch_norm="frozen", **more)
        frozen.backward(auxiliary=model(x).mean(), **given | {which: lambda: model(x[:1])})
        assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("which", ["primary", "basis_losses"])
def test_a_users_own_error_is_passed_on(p, which):
    def mine():
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$"):
        guide_for(p).backward(**{"primary": p.losses(), "auxiliary": p.loss()} | {which: mine})


@pytest.mark.parametrize(
    ("options", "auxiliary", "words"),
    [
        ({"eta": {"a": Eta(1, 1, 1)}}, lambda p: {"a": p.loss(), "b": p.loss()}, ("eta", "'b'")),
        ({"eta": {"a": Eta(1, 1, 1)}}, lambda p: p.loss(), ("eta", "'a'")),
        (
            {"auxiliary_weight": {"a": 1.0}},
            lambda p: {"a": p.loss(), "b": p.loss()},
            ("auxiliary_weight", "'b'"),
        ),
    ],
    ids=["no eta of its own", "names expected", "no weight of its own"],
)
def test_wrong_names_of_losses_are_refused(p, options, auxiliary, words):
    guide = guide_for(p, **options)
    with complains(*words):
        guide.backward(primary=p.losses(), auxiliary=auxiliary(p))


def test_calls_in_a_wrong_order_are_refused(p):
    guide = guide_for(p)
    with complains("combine", "primary"):
        guide.combine()
    guide.primary(p.losses())
    with complains("combine", "auxiliary"):
        guide.combine()


def test_backward_inside_an_unfinished_step_is_refused(p):
    guide = guide_for(p)
    guide.primary(p.losses())
    with complains("combine"):
        guide.backward(primary=p.losses(), auxiliary=p.loss())


def test_an_error_does_not_spoil_the_next_step():
    one, other = problem("mlp"), problem("mlp")
    guide = guide_for(one)
    for bad in (
        lambda: guide.backward(primary=one.losses(), auxiliary=one.losses()[:, None]),
        lambda: guide.backward(primary=one.losses().mean(), auxiliary=one.loss()),
        guide.combine,
    ):
        with pytest.raises(BAD_INPUT):
            bad()
    guide.backward(primary=one.losses(), auxiliary=one.loss())
    guide_for(other).backward(primary=other.losses(), auxiliary=other.loss())
    assert all(torch.equal(g, other.grads()[name]) for name, g in one.grads().items())


class Elsewhere(torch.autograd.Function):
    """Stands for a model over two devices: a parameter on another device takes part in the
    graph.
    """

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad, torch.zeros_like(ctx.saved_tensors[0])


def test_parameters_on_two_devices_are_refused(p):
    p.model.body[1] = nn.Identity()
    p.model.far = nn.Parameter(torch.ones(2, device="meta"))
    p.model.body.register_forward_hook(lambda module, args, out: Elsewhere.apply(out, p.model.far))
    guide = guide_for(p)
    with complains("'far'", "meta", "cpu", "device"):
        guide.backward(primary=p.losses(), auxiliary=p.loss())


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_sparse_gradients_are_refused(engine):
    model = TwoHeads(nn.Sequential(nn.Embedding(9, 3, sparse=True), nn.Flatten()), 12)
    x = torch.arange(8).reshape(2, 4)
    guide = Guide(model, eta=Eta(1, 1, -1), rank=2, engine=engine)
    with complains("body.0.weight", "sparse=False"):
        guide.backward(
            primary=model(x, "primary").square().mean(1), auxiliary=model(x, "auxiliary").mean()
        )


class FunctionalEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(9, 3))

    def forward(self, x):
        return nn.functional.embedding(x, self.table, sparse=True).flatten(1)


@pytest.mark.parametrize("basis", ["sketch", "mean"])
@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_sparse_gradients_of_a_function_are_refused(engine, basis):
    model = TwoHeads(FunctionalEmbedding(), 12)
    x = torch.arange(8).reshape(2, 4)
    guide = Guide(model, eta=Eta(1, 1, -1), rank=2, engine=engine, basis=basis)
    with complains("body.table", "sparse=False"):
        guide.backward(
            primary=model(x, "primary").square().mean(1), auxiliary=model(x, "auxiliary").mean()
        )


@pytest.mark.parametrize("verb", ["primary", "auxiliary"])
def test_reentrant_checkpointing_between_refreshes_is_refused(verb):
    model = TwoHeads(Checkpointed(), 6)
    x = torch.randn(4, 5)
    guide = Guide(model, eta=Eta(1, 1, -1), rank=2)
    guide.backward(
        primary=model(x, "primary").square().mean(1), auxiliary=model(x, "auxiliary").mean()
    )
    model.body.use_reentrant = True
    with complains("use_reentrant=False"):
        getattr(guide, verb)(model(x, verb).square().mean(1))


@pytest.mark.parametrize("which", ["both", "auxiliary", "basis_losses"])
def test_reentrant_checkpointing_is_refused(which):
    """Such a graph hides parameters: they must not pass for unused."""
    hidden = TwoHeads(Checkpointed(use_reentrant=True), 6)
    x = torch.randn(4, 5)

    def losses(reentrant: bool, head: str):
        hidden.body.use_reentrant = reentrant
        return hidden(x, head).square().mean(1)

    guide = Guide(hidden, eta=Eta(1, 1, -1), rank=2)
    with complains("use_reentrant=False"):
        guide.backward(
            primary=losses(which == "both", "primary"),
            auxiliary=losses(which != "basis_losses", "auxiliary").mean(),
            basis_losses=(lambda: losses(True, "primary")) if which == "basis_losses" else None,
        )
    assert all(x.grad is None for x in hidden.parameters())


def trained_state(body: nn.Module | None = None, **options) -> dict:
    q = problem("mlp")
    if body is not None:
        q.model.body = body
    guide = guide_for(q, **options)
    guide.backward(primary=q.losses(), auxiliary=q.loss())
    return guide.state_dict()


def test_the_state_of_another_model_is_refused(p):
    guide = guide_for(p)
    with complains("body.0", "model"):
        guide.load_state_dict(trained_state(body=mlp(hidden=7)))


def test_the_state_of_a_model_with_other_names_is_refused(p):
    body = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Tanh(), nn.Linear(6, 6))
    guide = guide_for(p)
    with complains("body.", "model"):
        guide.load_state_dict(trained_state(body=body))


def test_values_that_are_not_a_state_are_refused(p):
    guide = guide_for(p)
    with pytest.raises((KeyError, *BAD_INPUT)) as caught:
        guide.load_state_dict({"weights": 1})
    assert "state" in str(caught.value)


def test_refused_state_changes_nothing():
    one, other = problem("mlp"), problem("mlp")
    guides = [guide_for(one), guide_for(other)]
    with pytest.raises(BAD_INPUT):
        guides[0].load_state_dict(trained_state(body=mlp(hidden=7)))
    for q, guide in zip((one, other), guides, strict=True):
        guide.backward(primary=q.losses(), auxiliary=q.loss())
    assert all(torch.equal(g, other.grads()[name]) for name, g in one.grads().items())


def test_two_names_with_the_same_text_are_refused(p):
    with complains("[1, '1']", "rename"):
        guide_for(p).backward(primary=p.losses(), auxiliary={1: p.loss(), "1": p.loss()})


def test_numbers_of_numpy_are_numbers(p):
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    made = guide_for(
        p, rank=numpy.int64(2), refresh_every=numpy.int32(3), primary_weight=numpy.float32(0.5)
    )
    assert (made.rank, made.refresh_every, made.primary_weight) == (2, 3, 0.5)
