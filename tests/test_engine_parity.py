"""Every engine says the same of J, whatever the architecture: ΠJ, Jv and JJᵀ against one backward pass per example.

What an engine cannot do is a strict expected failure here and a row of the table in docs/engines.md.
"""

import logging

import pytest
import torch
import torch.nn.functional as F
from comparing import compare, reached
from layers import LAYERS, LIMITS, Layer, M, conv, layer
from oracle import error, trainable
from torch import Tensor, nn
from zoo import ZOO, problem

from attittud import Eta, Guide
from attittud.autograd.layout import Layout
from attittud.engine import UnsupportedError, make_engine
from attittud.engine.auto import HOOKS_FROM

ENGINES = ["loop", "batched", "hooks"]
ETA = Eta(neutral=1, helpful=0.5, harmful=-1)


def test_what_was_overwritten_is_an_error():
    """And not a gradient of other numbers."""
    model = nn.Linear(3, 2)
    engine, layout = make_engine("hooks"), Layout(model.named_parameters())
    with engine.watch(model):
        x = torch.randn(4, 3).clone()
        losses = model(x).square().sum(1)
        x.add_(1)
        with pytest.raises(
            UnsupportedError, match=r"weight, bias in linear.* was overwritten in place, .*engine='loop'"
        ):
            engine.jacobian(losses, layout)


@pytest.mark.parametrize("name", ["embedding", "embedding_padding"])
def test_large_tables(name, monkeypatch):
    """Not formed as products of matrices."""
    monkeypatch.setattr("attittud.engine.rules.SMALL_TABLE", 0)
    given = layer(name)
    compare("hooks", given.model, given.losses)


# torch on even kernels with padding="same": the side that gets more padding is what is tested.
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, engine):
    given = layer(name)
    compare(engine, given.model, given.losses)


@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize(
    "name", ["linear", "linear_over_sequences", "conv2d_channels_last", "conv2d_grouped", "attention"]
)
def test_every_order_of_contraction(name, rows):
    given = layer(name)
    compare("hooks", given.model, given.losses, rows)


@pytest.mark.parametrize("name", ZOO)
def test_the_zoo(name):
    p = problem(name, torch.float64)
    p.model.eval()
    compare("hooks", p.model, p.losses)


@pytest.mark.parametrize("name", LIMITS)
def test_limits(name, request):
    request.applymarker(pytest.mark.xfail(raises=UnsupportedError, strict=True, reason="a limit of 'hooks'"))
    given = layer(name)
    compare("hooks", given.model, given.losses)


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("name", LIMITS)
def test_limits_of_hooks_are_none_of_the_others(name, engine):
    if name == "random_numbers_beside_a_parameter":
        pytest.skip("the oracle's forward pass draws other numbers")
    given = layer(name)
    compare(engine, given.model, given.losses)


@pytest.mark.parametrize("name", LIMITS)
def test_limits_are_named_with_a_cure(name):
    given = layer(name)
    engine = make_engine("hooks")
    layout = Layout((n, trainable(given.model)[n]) for n in reached(given.losses(), given.model))
    with pytest.raises(UnsupportedError) as caught, engine.watch(given.model):
        engine.jacobian(given.losses(), layout)
    assert LIMITS[name][2] in str(caught.value)
    assert "engine='loop'" in str(caught.value)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["lstm", "lstm_cell", "gru_positions_first", "gru_cell"])
def test_recurrent_layers_in_float32(name, training):
    """torch has kernels of their own for them."""
    given = layer(name, torch.float32)
    given.model.train(training)
    compare("hooks", given.model, given.losses, tolerance=1e-5)


# Channels and groups of which eight bytes are copied at a time, in one convolution or the other.
CONVOLUTIONS = {
    "wide": lambda: conv(nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 4, 3, stride=2, padding=(1, 2))),
    "grouped": lambda: conv(nn.Conv2d(8, 16, 3, groups=2, padding="same"), nn.Conv2d(16, 8, 2, groups=4, padding=1)),
    "narrow": lambda: conv(nn.Conv2d(8, 3, (1, 3), padding=(0, 1)), nn.Conv2d(3, 2, 3, dilation=2, padding=2)),
    "reflect": lambda: conv(nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"), nn.Conv2d(8, 8, 3, padding=1)),
    "volumes": lambda: conv(nn.Conv3d(8, 4, 3, padding=1), nn.Conv3d(4, 8, (1, 2, 1), padding=1, groups=2)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("size", [(6, 5), (1, 4)], ids=["", "one_row"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_in_channels_last_in_float32(name, size):
    """Where float64, in which everything else is compared, has no eight bytes to put together."""
    size = {"volumes": (3, *size), "reflect": (2, size[1])}.get(name, size)
    layout = torch.channels_last_3d if name == "volumes" else torch.channels_last
    model, x = CONVOLUTIONS[name]().to(memory_format=layout), torch.randn(M, 8, *size).to(memory_format=layout)
    compare("hooks", model, Layer(model, x).losses, tolerance=1e-5)


# ------------------------------------------------------------------------------------------------ Hugging Face


TINY = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
TINY |= {"vocab_size": 30, "max_position_embeddings": 20, "num_labels": 3, "pad_token_id": 1}


def hugging_face(name: str) -> nn.Module:
    t = pytest.importorskip("transformers", reason="needs the extra 'transformers'")
    builders = {
        "bert": lambda: t.BertForSequenceClassification(t.BertConfig(**TINY)),
        "roberta": lambda: t.RobertaForMaskedLM(t.RobertaConfig(**TINY)),
        "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=30, n_positions=20)),
        "llama": lambda: t.LlamaForSequenceClassification(t.LlamaConfig(num_key_value_heads=1, **TINY)),
        "t5": lambda: t.T5ForConditionalGeneration(
            t.T5Config(
                d_model=8,
                d_kv=4,
                d_ff=12,
                num_layers=1,
                num_heads=2,
                vocab_size=30,
                decoder_start_token_id=0,
                dropout_rate=0.0,
            )
        ),
    }
    return builders[name]().double().eval()


@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "llama", "t5"])
def test_transformers(name, checkpointing):
    model = hugging_face(name)
    if checkpointing:
        model.train()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    x, y = torch.randint(3, 30, (M, 6)), torch.randint(3, (M,))
    mask = torch.ones_like(x)
    mask[:2, 4:] = 0

    def losses() -> Tensor:
        more = {"decoder_input_ids": x.flip(1)} if name == "t5" else {}
        logits = (
            model(input_ids=x, attention_mask=mask, use_cache=False, **more).logits
            if name != "bert"
            else (model(input_ids=x, attention_mask=mask).logits)
        )
        if logits.ndim == 3:
            return F.cross_entropy(logits.mT, x.flip(1), reduction="none").mean(1)
        return F.cross_entropy(logits, y, reduction="none")

    # Llama's normalisation is float32 whatever the model is.
    compare("hooks", model, losses, tolerance=1e-6 if name == "llama" else 1e-11)


# ------------------------------------------------------------------------------------------------ in a Guide


@pytest.mark.parametrize("basis", ["sketch", "svd", "exact", "mean"])
@pytest.mark.parametrize(
    "name", ["mlp", "reused", "checkpointed", "cnn_group_norm", "tied_function", "transformer", "lstm"]
)
def test_same_update_as_loop(name, basis):
    grads = []
    for engine in ("loop", "hooks"):
        p = problem(name, torch.float64)
        guide = Guide(p.model, eta=ETA, basis=basis, rank=3, engine=engine, primary_weight=0.1, refresh_every=2)
        for _ in range(3):
            guide.backward(primary=p.losses, auxiliary=p.loss())
        grads.append(p.grads())
    assert error(grads[1], grads[0]) < 1e-11


@pytest.mark.parametrize("name", ["cnn_batch_norm", "channels_last", "transformer"])
def test_same_update_from_basis_losses(name):
    grads = []
    for engine in ("loop", "hooks"):
        p = problem(name, torch.float64)
        guide = Guide(p.model, eta=ETA, rank=3, engine=engine, batch_norm="frozen")
        guide.backward(primary=p.losses(), auxiliary=p.loss(), basis_losses=p.losses)
        grads.append(p.grads())
    assert error(grads[1], grads[0]) < 1e-11


def test_accumulation_of_callables():
    grads = []
    for engine in ("loop", "hooks"):
        p = problem("transformer", torch.float64)
        guide = Guide(p.model, eta=ETA, rank=3, engine=engine)
        for half in (slice(0, 3), slice(3, None)):
            guide.primary(lambda half=half: p.losses(half) / 2)  # noqa: B023 - called at once
        guide.auxiliary(p.loss())
        guide.combine()
        grads.append(p.grads())
    assert error(grads[1], grads[0]) < 1e-11


@pytest.mark.parametrize("engine", ["loop", "hooks", "auto"])
def test_a_callable_runs_once_in_every_step(engine):
    p = problem("mlp")
    calls = []
    p.model.body.register_forward_hook(lambda *_: calls.append(1))
    guide = Guide(p.model, eta=ETA, rank=3, engine=engine, refresh_every=2)
    for _ in range(4):
        auxiliary = p.loss()
        calls.clear()
        guide.backward(primary=p.losses, auxiliary=auxiliary)
        assert len(calls) == 1


def test_a_refresh_is_one_backward_pass():
    """After the check of the first refresh: one pass for ΠJ, one for the mean gradient."""
    p = problem("mlp")
    guide = Guide(p.model, eta=ETA, rank=3, engine="hooks", refresh_every=1)
    guide.backward(primary=p.losses, auxiliary=p.loss())
    passes = []

    def losses() -> Tensor:
        out = p.losses()
        out.register_hook(lambda _: passes.append(1))
        return out

    guide.backward(primary=losses, auxiliary=p.loss())
    assert len(passes) == 2


def test_nothing_stays_behind():
    p = problem("cnn_group_norm")
    before = {name: vars(module).copy() for name, module in p.model.named_modules()}
    guide = Guide(p.model, eta=ETA, rank=3, engine="hooks")
    guide.backward(primary=p.losses, auxiliary=p.loss())
    assert guide.engine.record is None
    for name, module in p.model.named_modules():
        assert vars(module).keys() == before[name].keys()
        assert not module._forward_hooks and not module._forward_pre_hooks and not module._backward_hooks
    assert all(parameter._backward_hooks is None for parameter in p.model.parameters())


def test_an_error_in_the_callable_leaves_the_guide_usable():
    p = problem("mlp")
    guide = Guide(p.model, eta=ETA, rank=3, engine="hooks")

    def broken() -> Tensor:
        p.losses()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        guide.backward(primary=broken, auxiliary=p.loss())
    assert guide.engine.record is None
    assert guide.backward(primary=p.losses, auxiliary=p.loss()).refreshed


def test_hooks_needs_a_callable():
    p = problem("mlp")
    with pytest.raises(UnsupportedError, match=r"(?s)callable.*basis_losses.*engine='loop'"):
        Guide(p.model, eta=ETA, rank=3, engine="hooks").backward(primary=p.losses(), auxiliary=p.loss())


def test_batch_statistics_are_refused_by_name():
    p = problem("cnn_batch_norm")
    with pytest.raises(UnsupportedError, match=r"(?s)'body\.1' \(BatchNorm2d\).*batch_norm='frozen'.*engine='loop'"):
        Guide(p.model, eta=ETA, rank=3, engine="hooks").backward(
            primary=p.losses(), auxiliary=p.loss(), basis_losses=p.losses
        )


# ------------------------------------------------------------------------------------------------ auto


def wide(*layers: nn.Module) -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(nn.Linear(20, 150), *layers, nn.Linear(150, 50))
    assert sum(p.numel() for p in model.parameters()) > HOOKS_FROM
    return model, torch.randn(8, 20)


def test_auto_takes_hooks_where_it_can_and_says_so(caplog):
    model, x = wide(nn.Tanh())
    guide = Guide(model, eta=ETA, rank=3, refresh_every=1)
    with caplog.at_level(logging.INFO, logger="attittud"):
        for _ in range(3):
            guide.backward(primary=lambda: model(x).square().mean(1), auxiliary=model(-x).mean())
    assert [r.message for r in caplog.records if r.message.startswith("engine:")] == [
        "engine: 'hooks', because it saw the forward pass and the examples do not influence each other"
    ]


@pytest.mark.parametrize("coupling", ["module", "function"])
def test_auto_takes_another_engine_and_says_why(caplog, coupling):
    model, x = wide(nn.BatchNorm1d(150) if coupling == "module" else nn.Tanh())

    def losses() -> Tensor:
        out = model(x).square().mean(1)
        return out - 0.5 * out.mean() if coupling == "function" else out

    grads = []
    for engine in ("loop", "auto"):
        model.zero_grad()
        guide = Guide(model, eta=ETA, rank=3, refresh_every=1, engine=engine)
        with caplog.at_level(logging.INFO, logger="attittud"):
            guide.backward(primary=losses, auxiliary=model(-x).mean())
        grads.append({name: p.grad.clone() for name, p in model.named_parameters()})
    assert error(grads[1], grads[0]) < 1e-5
    assert "engine: 'batched'" in caplog.text
    assert ("'1' (BatchNorm1d)" if coupling == "module" else "examples influence each other") in caplog.text
