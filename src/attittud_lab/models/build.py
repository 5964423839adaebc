"""The network that a configuration names."""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from attittud_lab.config.data import DataConfig
from attittud_lab.config.schema import ModelConfig
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.source import free_memory
from attittud_lab.data.tasks import Task, mix
from attittud_lab.data.texts import Reader
from attittud_lab.errors import InputError, one_line
from attittud_lab.models.network import Network, load_body, matching, statistics
from attittud_lab.models.registry import Wanted, call, find, names
from attittud_lab.models.text import TextBody

BYTES = 20
"""Memory that training needs for each parameter, without activations."""


def reader(model: ModelConfig, data: DataConfig, cache: Path | None) -> Reader | None:
    """What turns texts into token numbers for this model; None for image models."""
    entry, parts = find(model.name)
    with _tensors_alone():
        words = None if entry.words is None else call(entry.words, *parts)
    return None if words is None else Reader(words, data.max_length, pack=data.pack and entry.packs, cache=cache)


def build_model(config: ModelConfig, data: Prepared, seed: int) -> Network:
    """A network with heads for all tasks of `data`. Its initial weights depend on the seed alone, not on the strategy."""
    entry, parts = find(config.name)
    if data.kind not in entry.reads:
        raise InputError(
            f"model {config.name!r} reads {entry.reads[0]}s, but the data are {data.kind}s; use one of "
            f"{', '.join(names(data.kind))}"
        )
    wanted = Wanted(config, tuple(data.primary.examples.inputs.shape[1:]), data.kind)
    with torch.random.fork_rng(devices=[]):
        if not entry.foreign:
            _check_size(config, lambda smaller: call(entry.build, replace(wanted, config=smaller), *parts))
        torch.manual_seed(mix(seed, "model"))
        with _tensors_alone():
            body: nn.Module = call(entry.build, wanted, *parts)
        if data.kind == "text":
            _check_vocabulary(cast(TextBody, body), config.name, data)
        if entry.foreign:
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
        load_body(network, config.weights.replace("{seed}", str(seed)))
    for parameter in matching(network, config.freeze, "model.freeze"):
        parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise InputError(f"model.freeze: {', '.join(config.freeze)} leaves nothing to train; freeze less")
    return network


@contextmanager
def _tensors_alone() -> Iterator[None]:
    """Inside, `torch.load` unpickles nothing but tensors, whatever a library that calls it asks for."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _check_size(config: ModelConfig, build: Callable[[ModelConfig], nn.Module]) -> None:
    """Refuse a network that memory cannot hold before any of it is allocated."""

    def parameters(width: int) -> float:
        try:
            with torch.device("meta"):
                return sum(parameter.numel() for parameter in build(replace(config, width=width)).parameters())
        except RuntimeError:  # more than torch can count
            return math.inf

    wanted, most = parameters(config.width), free_memory() / BYTES
    if wanted <= most:
        return
    narrower = bisect_right(range(1, config.width), most, key=parameters) if parameters(1) < wanted else 0
    cure = f"lower model.width from {config.width} to at most {narrower}" if narrower else "choose a smaller model"
    count = "over 1e18" if wanted == math.inf else f"{wanted:.3g}"
    raise InputError(
        f"model {config.name} would have {count} parameters, and the free memory is enough to train about {most:.3g} ({BYTES} "
        f"bytes for each: the weight, its gradient, two moments and the best model so far); {cure}"
    )


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
