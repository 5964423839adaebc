"""Models by name. A model is a file with its network, and an entry here that says what it reads and how it is built.

Networks are imported when they are built, so that names can be listed and checked without torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from attittud_lab.errors import InputError, unknown

if TYPE_CHECKING:
    from torch import nn

    from attittud_lab.config.schema import ModelConfig
    from attittud_lab.data.tokens import Words

Kind = Literal["image", "text"]


@dataclass(frozen=True)
class Wanted:
    """What a body is built for."""

    config: ModelConfig
    shape: tuple[int, ...]
    """The shape of one example: C x H x W of an image, L of a text."""
    kind: Kind


@dataclass(frozen=True)
class Entry:
    """A registered model."""

    about: str
    build: Callable[..., nn.Module]
    """Makes the shared body from a `Wanted` and from what `pattern` found in the name."""
    reads: tuple[Kind, ...]
    pattern: str
    """A regular expression for the names that it stands for; what its groups match is handed to `build` and `words`."""
    words: Callable[..., Words | None] | None = None
    """What turns texts into token numbers; None for a model of images."""
    packs: bool = False
    """Whether a row may hold several texts."""
    foreign: bool = False
    """Made by another library: tried on two examples, which show the number of its features."""


_ENTRIES: dict[str, Entry] = {}


def register(
    name: str, about: str, *reads: Kind, pattern: str | None = None, **more: Any
) -> Callable[[Callable[..., nn.Module]], Callable[..., nn.Module]]:
    """Decorate what builds a body from a `Wanted`. Without a pattern the model has this one name; see `Entry` for the rest."""

    def add(build: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        if name in _ENTRIES:
            raise ValueError(f"there is a model {name!r} already; choose another name")
        _ENTRIES[name] = Entry(about, build, reads, pattern or re.escape(name), **more)
        return build

    return add


def names() -> dict[str, str]:
    """Every model, or an example of its names, with one line about it."""
    return {name: entry.about for name, entry in _ENTRIES.items()}


def find(name: str) -> tuple[Entry, tuple[str, ...]]:
    """The entry of a name, and the variable parts of the name. Whether a folder exists is seen when it is opened."""
    for entry in _ENTRIES.values():
        match = re.fullmatch(entry.pattern, name, re.DOTALL)
        if match:
            return entry, match.groups()
    raise unknown("model", name, _ENTRIES)


def check_kind(name: str, kind: Kind) -> None:
    """Refuse a model that does not read data of this kind."""
    entry, _ = find(name)
    if kind not in entry.reads:
        others = [other for other, found in _ENTRIES.items() if kind in found.reads]
        raise InputError(
            f"model {name!r} reads {entry.reads[0]}s, but the data are {kind}s; use {', '.join(others[:-1])} or {others[-1]}"
        )


@register("mlp", "two hidden layers of model.width units", "image")
def _mlp(wanted: Wanted) -> nn.Module:
    from attittud_lab.models.vision import MLP

    return MLP(wanted.shape, wanted.config.width, wanted.config.dropout)


@register("small-cnn", "three convolutions of model.width channels with GroupNorm", "image")
def _small_cnn(wanted: Wanted) -> nn.Module:
    from attittud_lab.models.vision import SmallCNN

    return SmallCNN(wanted.shape, wanted.config.width, wanted.config.dropout)


@register("resnet-18", "He et al. 2016, with a smaller stem for small images", "image")
def _resnet(wanted: Wanted) -> nn.Module:
    from attittud_lab.models.vision import ResNet18

    return ResNet18(wanted.shape, wanted.config.dropout)


@register(
    "wideresnet-22-4",
    "Zagoruyko and Komodakis 2016, the paper's network; any wideresnet-DEPTH-WIDTH",
    "image",
    pattern=r"wideresnet-(\d{1,3})-(\d{1,2})",
)
def _wide_resnet(wanted: Wanted, depth: str, width: str) -> nn.Module:
    from attittud_lab.models.vision import WideResNet

    return WideResNet(wanted.shape[0], int(depth), int(width), wanted.config.dropout)


def _hashed_words() -> Words:
    from attittud_lab.models.text import HashedWords

    return HashedWords()


# Not packed: its convolutions would look over the end of a text into the next one.
@register("text-cnn", "two convolutions of model.width channels over hashed words", "text", words=_hashed_words)
def _text_cnn(wanted: Wanted) -> nn.Module:
    from attittud_lab.models.text import TextCNN

    return TextCNN(8192, wanted.config.width, wanted.config.dropout)


def _hf_words(folder: str) -> Words | None:
    from attittud_lab.models.huggingface import hf_words

    return hf_words(folder)


@register(
    "hf:FOLDER",
    "an image or text network of transformers, from a folder or the cache",
    "text",
    "image",
    pattern="hf:(.*)",
    words=_hf_words,
    packs=True,
    foreign=True,
)
def _hf(wanted: Wanted, folder: str) -> nn.Module:
    from attittud_lab.models.huggingface import hf_body

    return hf_body(folder, wanted.kind, wanted.config)


@register("timm:NAME", "an image network of timm", "image", pattern="timm:(.*)", foreign=True)
def _timm(wanted: Wanted, name: str) -> nn.Module:
    from attittud_lab.models.timm import timm_body

    return timm_body(name, wanted.shape, wanted.config)
