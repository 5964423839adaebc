"""The network that a configuration names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches

import torch
from torch import Tensor, nn

from attittud.recipes.config import DataConfig, ModelConfig
from attittud.recipes.data.prepare import Prepared
from attittud.recipes.errors import InputError
from attittud.recipes.models.network import Network, statistics
from attittud.recipes.models.residual import ResNet18, WideResNet
from attittud.recipes.models.text import HashingTokenizer, TextCNN
from attittud.recipes.models.vision import MLP, SmallCNN
from attittud.recipes.tasks import mix

NAMES = ("mlp", "small-cnn", "resnet-18", "wideresnet-22-4", "text-cnn", "hf:FOLDER", "timm:NAME")
_WIDE = re.compile(r"wideresnet-(\d{1,3})-(\d{1,2})")
_IMAGE: dict[str, Callable[[tuple[int, ...], ModelConfig], nn.Module]] = {
    "mlp": lambda shape, config: MLP(shape, config.width, config.dropout),
    "small-cnn": lambda shape, config: SmallCNN(shape, config.width, config.dropout),
    "resnet-18": lambda shape, config: ResNet18(shape, config.dropout),
}


def tokenizer(model: ModelConfig, data: DataConfig) -> Callable[[Sequence[str]], Tensor] | None:
    """What turns texts into token numbers for this model; None for image models."""
    if model.name == "text-cnn":
        return HashingTokenizer(data.max_length)
    if model.name.startswith("hf:"):
        from attittud.recipes.models.huggingface import hf_tokenizer

        return hf_tokenizer(model.name.removeprefix("hf:"), data.max_length)
    return None


def build_model(config: ModelConfig, data: Prepared, seed: int) -> Network:
    """A network with heads for all tasks of `data`. Its initial weights depend on the seed alone, not on the strategy."""
    inputs = data.primary.examples.inputs
    shape = tuple(inputs.shape[1:])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix(seed, "model"))
        body = _body(config, shape, data.kind)
        if config.name.startswith(("hf:", "timm:")):
            body.features = _tried(body, config.name, inputs[:2].cpu(), data.kind)  # type: ignore[assignment]
        outputs = {task.head: _width(body, task.classes) for task in (data.primary, *data.auxiliary.values())}
        normalise = None
        if data.kind == "image":
            everything = [data.primary, *data.auxiliary.values()]
            normalise = statistics(max((task.examples.inputs for task in everything), key=len))
        network = Network(body, outputs, normalise=normalise, head_init=config.head_init)
    if config.weights is not None:
        from attittud.recipes.weights import load_body

        load_body(network, config.weights.replace("{seed}", str(seed)))
    return network


def _tried(body: nn.Module, name: str, inputs: Tensor, kind: str) -> int:
    """Features of a network that others have made, from a look at two examples: better now than in the first step."""
    size = "x".join(map(str, inputs.shape[1:]))
    body.eval()
    try:
        with torch.no_grad():
            features: Tensor = body(inputs.float() / 255 if kind == "image" else inputs)
        if features.ndim != 2:
            raise ValueError(f"it gives {features.ndim - 1}-dimensional features")
    except Exception as error:  # each library has its own
        cure = "data.image_size" if kind == "image" else "data.max_length"
        raise InputError(
            f"model {name} cannot read {kind}s of size {size} ({' '.join(str(error).split())[:200]}); set {cure} to what it was "
            "made for, or choose another model"
        ) from None
    body.train()
    return int(features.shape[1])


def _width(body: nn.Module, classes: list[str]) -> int:
    return len(classes) if classes else int(body.vocabulary)  # type: ignore[arg-type]


def _body(config: ModelConfig, shape: tuple[int, ...], kind: str) -> nn.Module:
    name = config.name
    if name.startswith("hf:"):
        from attittud.recipes.models.huggingface import hf_body

        return hf_body(name.removeprefix("hf:"), kind, config)
    image = name in _IMAGE or name.startswith(("timm:", "wideresnet-"))
    if image and kind == "text":
        raise InputError(f"model {name!r} reads images, but the data are texts; use text-cnn or hf:FOLDER")
    if name == "text-cnn":
        if kind != "text":
            raise InputError("model 'text-cnn' reads texts, but the data are images; use small-cnn or wideresnet-22-4")
        return TextCNN(8192, config.width, config.dropout)
    if name in _IMAGE:
        return _IMAGE[name](shape, config)
    wide = _WIDE.fullmatch(name)
    if wide:
        return WideResNet(shape[0], int(wide[1]), int(wide[2]), config.dropout)
    if name.startswith("timm:"):
        from attittud.recipes.models.timm import timm_body

        return timm_body(name.removeprefix("timm:"), shape, config)
    near = get_close_matches(name, NAMES, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise InputError(f"model.name: there is no model {name!r}.{hint} Choose one of {', '.join(NAMES)}.")
