"""Models and data of the benchmarks: random weights and inputs, since only time and memory are
measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 10
TINY = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
"""Sizes of a transformer for a check that all of it runs."""


@dataclass(frozen=True)
class Spec:
    """Sizes of one workload; `m` primary examples build the basis."""

    name: str
    k: int
    m: int
    auxiliary: int
    build: Callable[[bool], tuple[nn.Module, tuple[int, ...], int]]
    """From whether it is tiny to the body, the shape of one example, and the number of features
    that the body computes.
    """
    vocabulary: int | None = None
    """Examples are token numbers below it; else images."""
    parameters: Callable[[str, nn.Parameter], bool] | None = None
    """Which parameters are decomposed, as `parameters=` of a Guide."""

    def tiny(self) -> Spec:
        """Sizes for a check that all of it runs."""
        return replace(self, k=2, m=4, auxiliary=4, vocabulary=self.vocabulary and 64)

    @property
    def images(self) -> bool:
        return self.vocabulary is None


class TwoHeads(nn.Module):
    """A body with a linear layer for each task."""

    def __init__(self, body: nn.Module, features: int) -> None:
        super().__init__()
        self.body = body
        self.primary = nn.Linear(features, CLASSES)
        self.auxiliary = nn.Linear(features, CLASSES)

    def forward(self, x: Tensor, head: str) -> Tensor:
        return getattr(self, head)(self.body(x))


class Pooled(nn.Module):
    """A transformer of Hugging Face's; its features are the last hidden state of one token."""

    def __init__(self, model: nn.Module, token: int) -> None:
        super().__init__()
        self.model = model
        self.token = token

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(input_ids=tokens).last_hidden_state[:, self.token]


class Workload:
    """A model on a device with its two batches and an optimizer that all methods share."""

    def __init__(self, spec: Spec, *, device: str, tiny: bool) -> None:
        torch.manual_seed(0)
        if tiny:
            spec = spec.tiny()
        self.spec = spec
        self.device = torch.device(device)
        with self.device:  # drawing a billion weights takes a CPU half a minute
            body, shape, features = spec.build(tiny)
        self.model = TwoHeads(body, features).to(self.device)
        if spec.images:
            self.model = self.model.to(memory_format=torch.channels_last)
        self.model.train()
        self.batches = {
            "primary": self.batch(spec.m, shape),
            "auxiliary": self.batch(spec.auxiliary, shape),
        }
        """Inputs and labels by head."""
        self.on_gpu = self.device.type == "cuda"
        options = {"fused": self.on_gpu, "capturable": self.on_gpu}
        trained = [p for p in self.model.parameters() if p.requires_grad]
        # The step is so small that the weights stay finite however often it is repeated.
        self.optimizer = torch.optim.Adam(trained, lr=1e-6, **options)

    def batch(self, count: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Draw examples and their labels."""
        if self.spec.vocabulary is None:
            x = torch.randn(count, *shape, device=self.device)
            x = x.to(memory_format=torch.channels_last)
        else:
            # Not 0 to 3: some models take these for padding and the like.
            x = torch.randint(4, self.spec.vocabulary, (count, *shape), device=self.device)
        return x, torch.randint(CLASSES, (count,), device=self.device)

    def losses(self, head: str) -> Tensor:
        """Per-example losses of a head's batch, on a GPU in half precision."""
        x, y = self.batches[head]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_gpu):
            logits = self.model(x, head)
        return F.cross_entropy(logits.float(), y, reduction="none")

    def shared(self) -> dict[str, nn.Parameter]:
        """The parameters of the body that are trained and decomposed: both losses reach them."""
        shared = {}
        for name, parameter in self.model.named_parameters():
            if name.startswith("body.") and parameter.requires_grad:
                if self.spec.parameters is None or self.spec.parameters(name, parameter):
                    shared[name] = parameter
        return shared


def _wide_resnet(tiny: bool) -> tuple[nn.Module, tuple[int, ...], int]:
    """WRN-22-4 for images of 32 pixels."""
    from attittud_lab.models.vision import WideResNet

    if tiny:
        body = WideResNet(3, 10, 1, 0.0)
        return body, (3, 8, 8), body.features
    body = WideResNet(3, 22, 4, 0.0)
    return body, (3, 32, 32), body.features


def _resnet18(tiny: bool) -> tuple[nn.Module, tuple[int, ...], int]:
    """ResNet-18 for images of 224 pixels."""
    from attittud_lab.models.vision import ResNet18

    if tiny:
        return _wide_resnet(tiny)
    body = ResNet18((3, 224, 224), 0.0)
    return body, (3, 224, 224), body.features


def _unmasked_attention() -> str:
    """Register torch's attention under a new name, for which Transformers builds no mask.

    Our batches have no padding. Under the usual name Transformers looks at the tokens to see that
    nothing has to be masked. It cannot do so inside of a CUDA graph, and masks all the same there,
    with kernels that take twice as long: graphs could not be compared with eager.
    """
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register("unmasked", sdpa_attention_forward)
    return "unmasked"


def _roberta(length: int) -> Callable[[bool], tuple[nn.Module, tuple[int, ...], int]]:
    """RoBERTa-base's sizes, for texts of `length` tokens."""

    def build(tiny: bool) -> tuple[nn.Module, tuple[int, ...], int]:
        from transformers import RobertaConfig, RobertaModel

        # Hugging Face's defaults are the other sizes of RoBERTa base.
        sizes: dict[str, Any] = {
            "vocab_size": 50265,
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
        }
        shape = (length,)
        if tiny:
            sizes |= TINY
            shape = (8,)
        config = RobertaConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        config._attn_implementation = _unmasked_attention()
        body = Pooled(RobertaModel(config, add_pooling_layer=False), 0)
        return body, shape, config.hidden_size

    return build


def _decoder(tiny: bool) -> tuple[nn.Module, tuple[int, ...], int]:
    """A decoder with TinyLlama's sizes (1.1 billion parameters) but no word head, with LoRA of rank
    16 on queries and values, for texts of 256 tokens. Features are those of the last token.
    """
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaModel

    sizes = {
        "vocab_size": 32000,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
    }
    sizes |= {"num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 2048}
    shape = (256,)
    rank = 16
    if tiny:
        sizes |= TINY | {"num_key_value_heads": 1}
        shape = (8,)
        rank = 2
    config = LlamaConfig(**sizes, use_cache=False)
    config._attn_implementation = _unmasked_attention()
    lora = LoraConfig(r=rank, target_modules=["q_proj", "v_proj"])
    model = get_peft_model(LlamaModel(config), lora)
    return Pooled(model, -1), shape, sizes["hidden_size"]


def _without_word_embeddings(name: str, _: nn.Parameter) -> bool:
    """Leave word embeddings out, as the paper does for RoBERTa."""
    return "word_embeddings" not in name


_SPECS = (
    Spec("wrn22", 5, 64, 128, _wide_resnet),
    Spec("resnet18", 10, 32, 64, _resnet18),
    Spec("roberta128", 10, 32, 32, _roberta(128), 50265, _without_word_embeddings),
    Spec("roberta512", 10, 32, 32, _roberta(512), 50265, _without_word_embeddings),
    Spec("decoder_lora", 10, 32, 16, _decoder, 32000),
)
SPECS = {spec.name: spec for spec in _SPECS}
