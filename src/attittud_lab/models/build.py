"""The network that a configuration names."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from attittud_lab.config.data import DataConfig
from attittud_lab.config.schema import ModelConfig
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import Task, mix
from attittud_lab.data.texts import Reader
from attittud_lab.errors import InputError, one_line
from attittud_lab.models.masked import TextBody
from attittud_lab.models.network import Network, statistics
from attittud_lab.models.patterns import matching
from attittud_lab.models.residual import ResNet18, WideResNet
from attittud_lab.models.text import HashedWords, TextCNN
from attittud_lab.models.vision import MLP, SmallCNN

NAMES = ("mlp", "small-cnn", "resnet-18", "wideresnet-22-4", "text-cnn", "hf:FOLDER", "timm:NAME")
_WIDE = re.compile(r"wideresnet-(\d{1,3})-(\d{1,2})")
_IMAGE: dict[str, Callable[[tuple[int, ...], ModelConfig], nn.Module]] = {
    "mlp": lambda shape, config: MLP(shape, config.width, config.dropout),
    "small-cnn": lambda shape, config: SmallCNN(shape, config.width, config.dropout),
    "resnet-18": lambda shape, config: ResNet18(shape, config.dropout),
}


def reader(model: ModelConfig, data: DataConfig, cache: Path | None) -> Reader | None:
    """What turns texts into token numbers for this model; None for image models."""
    if model.name == "text-cnn":
        # Its convolutions would look over the end of a text into the next one.
        return Reader(HashedWords(), data.max_length, pack=False, cache=cache)
    if model.name.startswith("hf:"):
        from attittud_lab.models.huggingface import hf_words

        words = hf_words(model.name.removeprefix("hf:"))
        return None if words is None else Reader(words, data.max_length, pack=data.pack, cache=cache)
    return None


def build_model(config: ModelConfig, data: Prepared, seed: int) -> Network:
    """A network with heads for all tasks of `data`. Its initial weights depend on the seed alone, not on the strategy."""
    shape = tuple(data.primary.examples.inputs.shape[1:])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix(seed, "model"))
        body = _body(config, shape, data.kind)
        if data.kind == "text":
            _check_vocabulary(cast(TextBody, body), config.name, data)
        if config.name.startswith(("hf:", "timm:")):
            widest = max((part.inputs for part in data.all_examples), key=lambda inputs: inputs.shape[-1])
            body.features = _tried(body, config.name, widest[:2].cpu(), data.kind)  # type: ignore[assignment]  # a number, where Module expects tensors and modules
        tasks = (data.primary, *data.auxiliary.values())
        _check_packed(body, config.name, tasks)
        outputs = {task.head: len(task.classes) or None for task in tasks}
        normalise = None
        if data.kind == "image":
            normalise = statistics(max((task.examples.inputs for task in tasks), key=len))
        network = Network(body, outputs, normalise=normalise, head_init=config.head_init)
    if config.weights is not None:
        from attittud_lab.models.weights import load_body

        load_body(network, config.weights.replace("{seed}", str(seed)))
    for parameter in matching(network, config.freeze, "model.freeze"):
        parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise InputError(f"model.freeze: {', '.join(config.freeze)} leaves nothing to train; freeze less")
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
            f"model {name} cannot read {kind}s of size {size} ({one_line(error, 200)}); set {cure} to what it was "
            "made for, or choose another model"
        ) from None
    body.train()
    return int(features.shape[1])


def _check_vocabulary(body: TextBody, name: str, data: Prepared) -> None:
    known, largest = len(body.table), max(int(part.inputs.max()) for part in data.all_examples)
    if largest >= known:
        raise InputError(
            f"model {name}: its tokenizer gave the number {largest} to a word, but the network knows only {known} words; the "
            "two do not belong together, so give a folder with the tokenizer that the network was trained with"
        )


def _check_packed(body: nn.Module, name: str, tasks: tuple[Task, ...]) -> None:
    if any(task.packed for task in tasks) and not getattr(body, "packs", False):
        raise InputError(
            f"model {name} cannot be kept from mixing several texts in one block of language modelling (it takes no attention "
            "masks or positions from outside, or marks no beginning of a text); set data.pack=false"
        )


def _body(config: ModelConfig, shape: tuple[int, ...], kind: str) -> nn.Module:
    name = config.name
    if name.startswith("hf:"):
        from attittud_lab.models.huggingface import hf_body

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
        from attittud_lab.models.timm import timm_body

        return timm_body(name.removeprefix("timm:"), shape, config)
    raise _unknown(name)


def check_name(name: str) -> None:
    """Refuse what is no model; whether a folder or a name of timm exists is seen when it is opened."""
    if not (name in NAMES or name.startswith(("hf:", "timm:")) or _WIDE.fullmatch(name)):
        raise _unknown(name)


def _unknown(name: str) -> InputError:
    near = get_close_matches(name, NAMES, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return InputError(f"there is no model {name!r}.{hint} Choose one of {', '.join(NAMES)}.")
