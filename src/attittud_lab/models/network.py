"""The network that a configuration names: a shared body with one head per task, its parameters by
name, and its weights.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn import functional as F

from attittud_lab.config.schema import DataConfig, Kind, ModelConfig
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.source import free_memory
from attittud_lab.data.tasks import mix
from attittud_lab.data.texts import Reader
from attittud_lab.errors import InputError, one_line
from attittud_lab.files import local, make_folder, write_atomically
from attittud_lab.models import Wanted, call, find, names
from attittud_lab.models.text import MaskedHead, TextBody, hide, masked_losses

DESCRIPTION = "network"
"""The subfolder of a run folder with the files that describe a network of another library."""
BYTES = 20
"""Memory that training needs for each parameter, without activations."""


class Network(nn.Module):
    """`model(inputs, head="primary")`; images come as uint8, texts as token numbers, tables as
    features.

    The body is a module with a number of `features`, which is passed in for a body of another
    library. A head without a number of outputs predicts masked words.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        body: nn.Module,
        heads: Mapping[str, int | None],
        *,
        features: int | None = None,
        normalise: tuple[Tensor, Tensor] | None = None,
        head_init: Literal["default", "kaiming", "zero"] = "default",
        size: int | None = None,
    ) -> None:
        """Build the heads. `normalise` has the mean and the standard deviation of pixels in [0, 1];
        images are scaled to `size` pixels.
        """
        super().__init__()
        self.body = body
        self.head_init = head_init
        self.images = normalise is not None
        self.size = size
        wide: Any = body.features if features is None else features
        layers = {
            _head_key(name): nn.Linear(wide, count) if count else _masked_head(body, wide)
            for name, count in heads.items()
        }
        self.heads = nn.ModuleDict(layers)
        for head in self.heads.values():
            if isinstance(head, nn.Linear):
                self.reset_head(head)
        mean, std = normalise or (torch.zeros(1), torch.ones(1))
        # Stored in the weights file, which then says how images have to be prepared.
        self.register_buffer("mean", mean.view(1, -1, 1, 1))
        self.register_buffer("std", std.view(1, -1, 1, 1))

    def reset_head(self, head: nn.Linear) -> None:
        """Initialise a head again."""
        head.reset_parameters()
        if self.head_init == "kaiming":
            nn.init.kaiming_normal_(head.weight, mode="fan_out")
            nn.init.zeros_(head.bias)
        elif self.head_init == "zero":
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)

    def forward(self, inputs: Tensor, head: str, detach: bool = False) -> Tensor:
        if self.images:
            inputs = scaled((inputs.float() / 255 - self.mean) / self.std, self.size)
        features = self.body(inputs)
        layer = self.heads[_head_key(head)]
        return layer(features.detach() if detach else features)  # type: ignore[no-any-return]  # modules return Any

    def masked_losses(self, inputs: Tensor, head: str) -> Tensor:
        """Per-example loss of predicting hidden words; each call draws which ones are hidden."""
        body = cast(TextBody, self.body)
        layer = cast(MaskedHead, self.heads[_head_key(head)])
        return masked_losses(body, layer, hide(inputs, body))


_RESERVED = frozenset(dir(nn.ModuleDict()))


def _head_key(name: str) -> str:
    """Return the name of a head as a key of a ModuleDict, which refuses names of its own
    attributes, such as `train`.
    """
    # No source can have a name with this sign.
    return f"{name}@" if name in _RESERVED else name


def scaled(images: Tensor, size: int | None) -> Tensor:
    """Return images (n x C x H x W) of this height and width; None leaves them as they are."""
    if size is None or images.shape[2:] == (size, size):
        return images
    return F.interpolate(images, (size, size), mode="bilinear", antialias=size < images.shape[-1])


def _masked_head(body: nn.Module, features: int) -> MaskedHead:
    """A new head for masked words, or the head that came with the body."""
    head = MaskedHead(features, cast(TextBody, body).table, getattr(body, "eps", 1e-5))
    stored = getattr(body, "stored_head", {})
    if stored:
        head.load_state_dict(stored)
    return head


def reader(model: ModelConfig, data: DataConfig, cache: Path | None) -> Reader | None:
    """The tokenizer of this model; None for image models."""
    entry, parts = find(model.name)
    with tensors_alone():
        words = None if entry.words is None else call(entry.words, *parts)
    if words is None:
        return None
    return Reader(words, data.max_length, pack=data.pack and entry.packs, cache=cache)


def build_model(config: ModelConfig, data: Prepared, seed: int) -> Network:
    """A network with heads for all tasks of `data`. Its initial weights depend on the seed alone,
    not on the strategy.
    """
    entry, parts = find(config.name)
    if data.kind not in entry.reads:
        problem = f"model {config.name!r} reads {entry.reads[0]}s, but the data are {data.kind}s"
        raise InputError(f"{problem}; use one of {', '.join(names(data.kind))}")
    request = Wanted(config, tuple(data.primary.examples.inputs.shape[1:]), data.kind)
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
        widest = max(
            (part.inputs for part in data.all_examples), key=lambda inputs: inputs.shape[-1]
        )
        features = None
        if entry.foreign:
            tried = widest[:2].cpu()
            if data.kind == "image":
                tried = scaled(tried.float() / 255, config.image_size)
            features = _tried(body, config.name, tried, data.kind)
        tasks = (data.primary, *data.auxiliary.values())
        outputs = {task.head: len(task.classes) or None for task in tasks}
        largest = max((task.examples.inputs for task in tasks), key=len)
        normalise = None
        if data.kind == "image":
            normalise = getattr(body, "normalise", None) or statistics(largest)
        network = Network(
            body,
            outputs,
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


def predicts(name: str) -> bool:
    """Whether a tensor of this name takes part in predictions: all but the heads of auxiliary
    tasks.
    """
    return not name.startswith("heads.") or name.startswith("heads.primary.")


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


def trained_model(
    config: ModelConfig, kind: Kind, shape: Sequence[int], weights: Mapping[str, Tensor]
) -> Network:
    """Load the network of a finished run, with the primary head alone. Raises torch's errors if the
    weights do not fit.
    """
    entry, parts = find(config.name)
    count, features = weights["heads.primary.weight"].shape
    with torch.random.fork_rng(devices=[]), tensors_alone():
        body: nn.Module = call(
            entry.build, Wanted(replace(config, pretrained=False), tuple(shape), kind), *parts
        )
        normalise = (weights["mean"], weights["std"]) if kind == "image" else None
        width = features if entry.foreign else None
        network = Network(
            body, {"primary": count}, features=width, normalise=normalise, size=config.image_size
        )
    network.load_state_dict({name: tensor for name, tensor in weights.items() if predicts(name)})
    return network


@contextmanager
def tensors_alone() -> Iterator[None]:
    """Let `torch.load` unpickle only tensors inside the block, whatever the calling library asks
    for.
    """
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


def _check_size(config: ModelConfig, build: Callable[[ModelConfig], nn.Module]) -> None:
    """Refuse a network that memory cannot hold before any of it is allocated."""

    def parameters(width: int) -> float:
        try:
            with torch.device("meta"):
                return sum(
                    parameter.numel()
                    for parameter in build(replace(config, width=width)).parameters()
                )
        except RuntimeError:  # more than torch can count
            return math.inf

    needed = parameters(config.width)
    most = free_memory() / BYTES
    if needed <= most:
        return
    if parameters(1) < needed:
        narrower = bisect_right(range(1, config.width), most, key=parameters)
    else:
        narrower = 0
    if narrower:
        cure = f"lower model.width from {config.width} to at most {narrower}"
    else:
        cure = "choose a smaller model"
    count = "over 1e18" if needed == math.inf else f"{needed:.3g}"
    raise InputError(
        f"model {config.name} would have {count} parameters, and the free memory is enough to train about {most:.3g} ({BYTES} "
        f"bytes for each: the weight, its gradient, two moments and the best model so far); {cure}"
    )


def _tried(body: nn.Module, name: str, inputs: Tensor, kind: str) -> int:
    """Find the number of features of another library's network on two examples, so that errors show
    before training.
    """
    body.eval()
    try:
        with torch.no_grad():
            features: Tensor = body(inputs)
        if features.ndim != 2:
            raise ValueError(f"it gives {features.ndim - 1}-dimensional features")
    except Exception as error:  # each library raises its own errors
        size = "x".join(map(str, inputs.shape[1:]))
        setting = "image_size" if kind == "image" else "max_length"
        problem = f"model {name} cannot read {kind}s of size {size} ({one_line(error, 200)})"
        raise InputError(
            f"{problem}; set data.{setting} to what it was made for, or choose another model"
        ) from None
    body.train()
    return int(features.shape[1])


def _check_texts(body: TextBody, name: str, data: Prepared) -> None:
    vocabulary = len(body.table)
    largest = max(int(part.inputs.max()) for part in data.all_examples)
    if largest >= vocabulary:
        raise InputError(
            f"model {name}: its tokenizer gave the number {largest} to a word, but the network knows only {vocabulary} words; "
            "the two do not belong together, so give a folder with the tokenizer that the network was trained with"
        )
    if any(task.packed for task in data.auxiliary.values()) and not getattr(body, "packs", False):
        raise InputError(
            f"model {name} cannot keep several texts in one block of language modelling apart (it takes no attention "
            "masks or positions from outside, or marks no beginning of a text); set data.pack=false"
        )


def statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation per channel of uint8 images, in [0, 1]."""
    count = images.numel() / images.shape[1]
    total, square = torch.zeros(2, images.shape[1], dtype=torch.float64, device=images.device)
    for chunk in images.split(1024):
        values = chunk.double() / 255
        total += values.sum((0, 2, 3))
        square += values.square().sum((0, 2, 3))
    mean = total / count
    std = (square / count - mean.square()).clamp(min=0).sqrt()
    return mean.float().cpu(), std.clamp(min=math.sqrt(1e-4)).float().cpu()


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def matching(model: nn.Module, patterns: Sequence[str], where: str) -> list[nn.Parameter]:
    """The parameters whose names fit a pattern; each pattern must fit at least one."""
    named = dict(model.named_parameters())
    for pattern in patterns:
        if not any(matches(name, [pattern]) for name in named):
            problem = f"{where}: no parameter name matches {pattern!r}, where * stands for anything"
            raise InputError(f"{problem}. Examples of names: {', '.join(list(named)[:3])}")
    return [parameter for name, parameter in named.items() if matches(name, patterns)]


def check_shared(model: nn.Module, exclude: Sequence[str], *, head: bool) -> None:
    """Refuse a strategy that has nothing to work on. `head`: some auxiliary source shares the
    primary head.
    """
    shared = ("body.", "heads.primary.") if head else ("body.",)
    if not any(
        parameter.requires_grad and name.startswith(shared) and not matches(name, exclude)
        for name, parameter in model.named_parameters()
    ):
        raise InputError(
            "model.freeze and strategy.exclude leave no parameter that is trained and that the tasks share, so there is nothing "
            "to decompose or to combine; freeze less, or use strategy: multitask or pretrain"
        )


def save_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    tensors = {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in weights.items()
    }
    write_atomically(path, save(tensors))


def load_weights(path: Path) -> dict[str, Tensor]:
    try:
        if not path.is_file():  # a device or a pipe may never end
            raise OSError("there is no such file")
        return load(path.read_bytes())
    except (
        OSError,
        SafetensorError,
        LookupError,
        RuntimeError,
        ValueError,
    ) as error:  # types that torch does not have
        problem = f"{path}: cannot read these weights ({one_line(error)})"
        raise InputError(f"{problem}; give a weights.safetensors of a run") from None


def load_body(network: nn.Module, path: str) -> None:
    """Start from the weights of an earlier run: the body, and heads of auxiliary sources that it
    had under the same name.

    The primary head stays as it is, and so does a head of another shape.
    """
    stored = load_weights(local(path))
    initial = network.state_dict()
    for name in sorted(initial.keys() | stored.keys()):
        shapes = [
            tuple(side[name].shape) if name in side else "nothing" for side in (stored, initial)
        ]
        if shapes[0] != shapes[1] and name.startswith("body."):
            problem = (
                f"model.weights: {path} has {shapes[0]} for {name!r}, this model needs {shapes[1]}"
            )
            raise InputError(f"{problem}; use the model of that run")
        if (
            shapes[0] != shapes[1]
            or name.startswith("heads.primary.")
            or not name.startswith(("body.", "heads."))
        ):
            stored.pop(name, None)
    network.load_state_dict(stored, strict=False)
