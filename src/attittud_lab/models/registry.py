"""Models by name. A model is a file with its network, and an entry here that says what it reads and how it is built.

Networks are imported when they are built, so that names can be listed and checked without torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from attittud_lab.errors import unknown

if TYPE_CHECKING:
    from torch import nn

    from attittud_lab.config.schema import ModelConfig
    from attittud_lab.data.texts import Words

T = TypeVar("T")
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
    build: Callable[..., nn.Module] | str
    """Makes the shared body from a `Wanted` and from what `pattern` found in the name; "module:function" is imported first."""
    reads: tuple[Kind, ...]
    pattern: str
    """A regular expression for the names that it stands for; `build` and `words` are given what its groups match."""
    words: Callable[..., Words | None] | str | None = None
    """Makes what turns texts into token numbers; None for a model of images."""
    packs: bool = False
    """Whether a row may hold several texts."""
    foreign: bool = False
    """Made by another library: tried on two examples, which show the number of its features."""


_ENTRIES: dict[str, Entry] = {}


def register(
    name: str,
    about: str,
    build: Callable[..., nn.Module] | str,
    *,
    reads: Kind | tuple[Kind, ...],
    pattern: str | None = None,
    **more: Any,
) -> None:
    """Add a model; without a pattern it has this one name. See `Entry` for the rest."""
    if name in _ENTRIES:
        raise ValueError(f"there is a model {name!r} already; choose another name")
    kinds = reads if isinstance(reads, tuple) else (reads,)
    _ENTRIES[name] = Entry(about, build, kinds, pattern or re.escape(name), **more)


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


def call(function: Callable[..., T] | str, *arguments: Any) -> T:
    """Call what an entry names."""
    if not isinstance(function, str):
        return function(*arguments)
    module, _, attribute = function.partition(":")
    found: Callable[..., T] = getattr(import_module(module), attribute)
    return found(*arguments)


def reading(kind: Kind) -> list[str]:
    """Names of the models that read data of this kind."""
    return [name for name, entry in _ENTRIES.items() if kind in entry.reads]


_HERE = "attittud_lab.models."
register("mlp", "two hidden layers of model.width units", f"{_HERE}vision:mlp", reads="image")
register(
    "small-cnn", "three convolutions of model.width channels with GroupNorm", f"{_HERE}vision:small_cnn", reads="image"
)
register("resnet-18", "He et al. 2016, with a smaller stem for small images", f"{_HERE}vision:resnet_18", reads="image")
register(
    "wideresnet-22-4",
    "Zagoruyko and Komodakis 2016, the paper's network; any wideresnet-DEPTH-WIDTH",
    f"{_HERE}vision:wide_resnet",
    reads="image",
    pattern=r"wideresnet-(\d{1,3})-(\d{1,2})",
)
# Not packed: its convolutions would look over the end of a text into the next one.
register(
    "text-cnn",
    "two convolutions of model.width channels over hashed words",
    f"{_HERE}text:text_cnn",
    reads="text",
    words=f"{_HERE}text:HashedWords",
)
register(
    "hf:FOLDER",
    "an image or text network of transformers, from a folder or the cache",
    f"{_HERE}huggingface:hf_body",
    reads=("text", "image"),
    pattern="hf:(.*)",
    words=f"{_HERE}huggingface:hf_words",
    packs=True,
    foreign=True,
)
register(
    "timm:NAME",
    "an image network of timm",
    f"{_HERE}timm:timm_body",
    reads="image",
    pattern="timm:(.*)",
    foreign=True,
)
