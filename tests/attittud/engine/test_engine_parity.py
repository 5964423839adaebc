"""Every engine gives the products ΠJ, Jv and JJᵀ of one backward pass per example."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attittud import Eta, Guide
from attittud.autograd.layout import Layout
from attittud.engine import UnsupportedError, make_engine
from tests.helpers.comparing import compare, reached
from tests.helpers.layers import LAYERS, LIMITS, M, layer
from tests.helpers.oracle import error, expected_for, trainable
from tests.helpers.zoo import SEPARABLE, ZOO, problem


# torch on even kernels with padding="same": the side that gets more padding is what is tested.
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("name", LAYERS)
def test_products_are_right_for_every_layer(name):
    given = layer(name)
    compare("hooks", given.model, given.losses)


@pytest.mark.parametrize("name", SEPARABLE)
def test_products_are_right_for_odd_architectures(name):
    p = problem(name, torch.float64)
    p.model.eval()
    compare("hooks", p.model, p.losses)


@pytest.mark.parametrize("name", LIMITS)
def test_unsupported_architectures_are_refused_by_name(name):
    given = layer(name)
    engine = make_engine("hooks")
    layout = Layout((n, trainable(given.model)[n]) for n in reached(given.losses(), given.model))
    with pytest.raises(UnsupportedError) as caught, engine.watch(given.model):
        engine.jacobian(given.losses(), layout)
    assert LIMITS[name][2] in str(caught.value)


TINY = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
TINY |= {"vocab_size": 30, "max_position_embeddings": 20, "num_labels": 3, "pad_token_id": 1}


def hugging_face(name: str) -> nn.Module:
    t = pytest.importorskip("transformers", reason="needs the extra 'transformers'")
    builders = {
        "bert": lambda: t.BertForSequenceClassification(t.BertConfig(**TINY)),
        "roberta": lambda: t.RobertaForMaskedLM(t.RobertaConfig(**TINY)),
        "gpt2": lambda: t.GPT2LMHeadModel(
            t.GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=30, n_positions=20)
        ),
        "llama": lambda: t.LlamaForSequenceClassification(
            t.LlamaConfig(num_key_value_heads=1, **TINY)
        ),
    }
    return builders[name]().double().eval()


@pytest.mark.parametrize(
    ("name", "checkpointing"),
    [("bert", False), ("roberta", True), ("gpt2", False), ("llama", True)],
)
def test_products_are_right_for_transformers(name, checkpointing):
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
        options = {} if name == "bert" else {"use_cache": False}
        logits = model(input_ids=x, attention_mask=mask, **options).logits
        if logits.ndim == 3:
            return F.cross_entropy(logits.mT, x.flip(1), reduction="none").mean(1)
        return F.cross_entropy(logits, y, reduction="none")

    # Llama's normalisation is float32 whatever the model is.
    compare("hooks", model, losses, tolerance=1e-6 if name == "llama" else 1e-11)


@pytest.mark.parametrize(
    ("name", "basis"),
    [
        ("mlp", "mean"),
        ("reused", "svd"),
        ("checkpointed", "exact"),
        ("cnn_group_norm", "sketch"),
        ("tied_function", "exact"),
        ("transformer", "sketch"),
    ],
)
def test_hooks_gives_the_update_of_loop(name, basis):
    grads = []
    for engine in ("loop", "hooks"):
        p = problem(name, torch.float64)
        guide = Guide(
            p.model,
            eta=Eta(*WEIGHTS),
            basis=basis,
            rank=3,
            engine=engine,
            primary_weight=0.1,
            refresh_every=2,
        )
        for _ in range(3):
            guide.backward(primary=p.losses, auxiliary=p.loss())
        grads.append(p.grads())
    assert error(grads[1], grads[0]) < 1e-11


WEIGHTS = (1, 0.5, -1)


@pytest.mark.parametrize(
    ("name", "basis", "engine"),
    [
        *((name, "sketch", "loop") for name in ZOO),
        *((name, "exact", "auto") for name in ("mlp", "cnn_batch_norm", "lstm", "transformer")),
        *(("mlp", basis, "loop") for basis in ("svd", "exact")),
    ],
)
def test_every_engine_equals_the_oracle_on_every_architecture(name, basis, engine):
    p = problem(name, torch.float64)
    want = expected_for(p, eta=WEIGHTS, basis=basis, rank=3, primary_weight=0.1)
    assert want.margin > 1e-9
    guide = Guide(
        p.model, eta=Eta(*WEIGHTS), basis=basis, rank=3, primary_weight=0.1, engine=engine
    )
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    assert error(p.grads(), want.grads) <= 1e-10
    assert set(guide.shared_parameters) == set(want.names)


@pytest.mark.parametrize("name", ["cnn_batch_norm", "transformer"])
def test_auto_gives_the_update_of_the_loop_under_autocast(name):
    grads = []
    for kind in ("loop", "auto"):
        p = problem(name)
        guide = Guide(p.model, eta=Eta(*WEIGHTS), rank=3, engine=kind)
        with torch.autocast("cpu", torch.bfloat16):
            primary, auxiliary = p.losses(), p.loss()
        guide.backward(primary=primary, auxiliary=auxiliary)
        grads.append(p.grads())
    assert error(*grads) < 2e-2
