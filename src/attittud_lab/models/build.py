"""The network that a configuration names, before its first step or from the weights of a run."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from attittud_lab.config.schema import DataConfig, Kind, ModelConfig
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.source import free_memory
from attittud_lab.data.tasks import mix
from attittud_lab.data.texts import Reader
from attittud_lab.errors import InputError, one_line
from attittud_lab.files import make_folder
from attittud_lab.models import Wanted, call, find, names
from attittud_lab.models.network import Network, scaled, statistics
from attittud_lab.models.parameters import matching
from attittud_lab.models.text import TextBody
from attittud_lab.models.weights import load_body, predicts, tensors_alone

DESCRIPTION = "network"
"""The subfolder of a run folder with the files that describe a network of another library."""
BYTES = 20
"""Memory that training needs for each parameter, without activations."""


def build_model(config: ModelConfig, data: Prepared, seed: int) -> Network:
    """A network with heads for all tasks of `data`. Its initial weights depend on the seed alone,
    not on the strategy.
    """
    entry, parts = find(config.name)
    if data.kind not in entry.reads:
        problem = f"model {config.name!r} reads {entry.reads[0]}s, but the data are {data.kind}s"
        raise InputError(f"{problem}; use one of {', '.join(names(data.kind))}")
    request = Wanted(config, tuple(data.primary.examples.inputs.shape[1:]), data.kind)
    tasks = (data.primary, *data.auxiliary.values())
    with torch.random.fork_rng(devices=[]):
        if not entry.foreign:
            _check_size(
                config, lambda smaller: call(entry.build, replace(request, config=smaller), *parts)
            )
        torch.manual_seed(mix(seed, "model"))
        with tensors_alone():
            body: nn.Module = call(entry.build, request, *parts)
        if data.kind == "text":
            _check_texts(cast(TextBody, body), config.name, data)
        features = None
        if entry.foreign:
            features = _tried(body, config, data)
        normalise = None
        if data.kind == "image":
            largest = max((task.examples.inputs for task in tasks), key=len)
            normalise = getattr(body, "normalise", None) or statistics(largest)
        network = Network(
            body,
            # A task without classes predicts masked words.
            {task.head: len(task.classes) or None for task in tasks},
            features=features,
            normalise=normalise,
            head_init=config.head_init,
            size=config.image_size,
        )
    if config.weights is not None:
        load_body(network, config.weights.replace("{seed}", str(seed)))
    for parameter in matching(network, config.freeze, "model.freeze"):
        parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise InputError(
            f"model.freeze: {', '.join(config.freeze)} leaves nothing to train; freeze less"
        )
    return network


def trained_model(
    config: ModelConfig, kind: Kind, shape: Sequence[int], weights: Mapping[str, Tensor]
) -> Network:
    """Load the network of a finished run, with the primary head alone. Raises torch's errors if the
    weights do not fit.
    """
    entry, parts = find(config.name)
    count, width = weights["heads.primary.weight"].shape
    normalise = None
    if kind == "image":
        normalise = (weights["mean"], weights["std"])
    request = Wanted(replace(config, pretrained=False), tuple(shape), kind)
    with torch.random.fork_rng(devices=[]), tensors_alone():
        body: nn.Module = call(entry.build, request, *parts)
        network = Network(
            body,
            {"primary": count},
            features=width if entry.foreign else None,
            normalise=normalise,
            size=config.image_size,
        )
    network.load_state_dict({name: tensor for name, tensor in weights.items() if predicts(name)})
    return network


def reader(model: ModelConfig, data: DataConfig, cache: Path | None) -> Reader | None:
    """The tokenizer of this model; None for image models."""
    entry, parts = find(model.name)
    if entry.words is None:
        return None
    with tensors_alone():
        words = call(entry.words, *parts)
    if words is None:  # the folder of an image network
        return None
    return Reader(words, data.max_length, pack=data.pack and entry.packs, cache=cache)


def keep_description(config: ModelConfig, folder: Path, name: str = DESCRIPTION) -> str | None:
    """Copy what another library needs to build the network again; the name of its folder, None if
    nothing is needed.
    """
    entry, parts = find(config.name)
    if entry.keeps is None:
        return None
    make_folder(folder / name)
    call(entry.keeps, folder / name, *parts)
    return name


def files_read(config: ModelConfig, seed: int) -> dict[str, Path]:
    """Return the files and folders that `build_model` reads, under the names that it uses."""
    entry, parts = find(config.name)
    files: dict[str, Path] = {}
    if entry.folder is not None:
        files[parts[0]] = call(entry.folder, *parts)
    if config.weights is not None:
        weights = config.weights.replace("{seed}", str(seed))
        files[weights] = Path(weights)
    return files


def _check_size(config: ModelConfig, build: Callable[[ModelConfig], nn.Module]) -> None:
    """Refuse a network that memory cannot hold before any of it is allocated.

    `build` makes it for a configuration. The error names the largest model.width that fits, if the
    size depends on the width and any fits.
    """

    def parameters(width: int) -> float:
        """Count the parameters of the network with another width; `meta` allocates no memory."""
        try:
            with torch.device("meta"):
                body = build(replace(config, width=width))
        except RuntimeError:  # more than torch can count
            return math.inf
        return sum(parameter.numel() for parameter in body.parameters())

    needed = parameters(config.width)
    most = free_memory() / BYTES
    if needed <= most:
        return
    narrower = 0
    if parameters(1) < needed:
        # How many of the widths 1, 2, ... below the present one fit, so the largest of them.
        narrower = bisect_right(range(1, config.width), most, key=parameters)
    advice = "choose a smaller model"
    if narrower:
        advice = f"lower model.width from {config.width} to at most {narrower}"
    count = "over 1e18" if needed == math.inf else f"{needed:.3g}"
    raise InputError(
        f"model {config.name} would have {count} parameters, and the free memory is enough to "
        f"train about {most:.3g} ({BYTES} bytes for each: the weight, its gradient, two moments "
        f"and the best model so far); {advice}"
    )


def _tried(body: nn.Module, config: ModelConfig, data: Prepared) -> int:
    """Find the number of features of another library's network on two examples, so that errors show
    before training.
    """
    inputs = max((part.inputs for part in data.all_examples), key=lambda part: part.shape[-1])
    inputs = inputs[:2].cpu()
    if data.kind == "image":
        inputs = scaled(inputs.float() / 255, config.image_size)
    body.eval()
    try:
        with torch.no_grad():
            features: Tensor = body(inputs)
        if features.ndim != 2:
            raise ValueError(f"it gives {features.ndim - 1}-dimensional features")
    except Exception as error:  # each library raises its own errors
        size = "x".join(map(str, inputs.shape[1:]))
        setting = "image_size" if data.kind == "image" else "max_length"
        problem = f"model {config.name} cannot read {data.kind}s of size {size}"
        raise InputError(
            f"{problem} ({one_line(error, 200)}); set data.{setting} to what it was made for, or "
            "choose another model"
        ) from None
    body.train()
    return int(features.shape[1])


def _check_texts(body: TextBody, name: str, data: Prepared) -> None:
    """Refuse a tokenizer of another network, and packed texts that a network would mix up."""
    vocabulary = len(body.table)
    largest = max(int(part.inputs.max()) for part in data.all_examples)
    if largest >= vocabulary:
        raise InputError(
            f"model {name}: its tokenizer gave the number {largest} to a word, but the network "
            f"knows only {vocabulary} words; the two do not belong together, so give a folder with "
            "the tokenizer that the network was trained with"
        )
    if any(task.packed for task in data.auxiliary.values()) and not getattr(body, "packs", False):
        raise InputError(
            f"model {name} cannot keep several texts in one block of language modelling apart (it "
            "takes no attention masks or positions from outside, or marks no beginning of a text); "
            "set data.pack=false"
        )
