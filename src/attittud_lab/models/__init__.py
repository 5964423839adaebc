"""Networks by name. A model is a file with its network, and an entry here with the data it reads
and its builder.

Networks are imported when they are built, so that names can be listed and checked without torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from attittud_lab.errors import unknown

if TYPE_CHECKING:
    from attittud_lab.config.schema import Kind, ModelConfig


@dataclass(frozen=True)
class Wanted:
    """The data and settings that a body is built for."""

    config: ModelConfig
    shape: tuple[int, ...]
    """The shape of one example: C x H x W of an image, L of a text, F of a row of a table."""
    kind: Kind


@dataclass(frozen=True)
class ModelEntry:
    """A registered model. Functions may be given as "module:name", which is imported when it is
    called.
    """

    about: str
    build: Callable[..., Any] | str
    """Makes the shared body from a `Wanted` and from the matches of the groups of `pattern`."""
    reads: tuple[Kind, ...]
    pattern: str
    """A regular expression for the names of this model."""
    words: Callable[..., Any] | str | None = None
    """Makes the tokenizer from the matches of the groups; None for a model of images."""
    packs: bool = False
    """Whether a row may hold several texts."""
    keeps: Callable[..., Any] | str | None = None
    """Copies what `build` and `words` read, except weights, into a folder that can replace the
    named folder.
    """
    folder: Callable[..., Any] | str | None = None
    """Finds the folder that `build` reads, which the first group names, so that it can be sent to
    other machines.
    """
    foreign: bool = False
    """Whether another library makes it, so that a trial on two examples must show the number of its
    features.
    """


_ENTRIES: dict[str, ModelEntry] = {}


def register(
    name: str,
    about: str,
    build: Callable[..., Any] | str,
    *reads: Kind,
    pattern: str | None = None,
    **more: Any,
) -> None:
    """Add a model. `reads` names the kinds of data that it reads; `pattern` matches its names, by
    default `name` alone.

    See `ModelEntry` for the rest.
    """
    if name in _ENTRIES:
        raise ValueError(f"there is a model {name!r} already; choose another name")
    _ENTRIES[name] = ModelEntry(about, build, reads, pattern or re.escape(name), **more)


def names(kind: Kind | None = None) -> dict[str, str]:
    """Return every model (or an example of its names) that reads data of a kind, with one line
    about it.
    """
    return {name: entry.about for name, entry in _ENTRIES.items() if kind in (None, *entry.reads)}


def pretrained(kind: Kind) -> list[str]:
    """Return the models of other libraries, which come with trained weights, that read data of a
    kind.
    """
    return [name for name, entry in _ENTRIES.items() if entry.foreign and kind in entry.reads]


def find(name: str) -> tuple[ModelEntry, tuple[str, ...]]:
    """Return the entry whose pattern fits a name, and the parts of the name that its groups match.

    A folder in a name need not exist: that shows when it is opened.
    """
    for entry in _ENTRIES.values():
        match = re.fullmatch(entry.pattern, name, re.DOTALL)
        if match:
            return entry, match.groups()
    raise unknown("model", name, _ENTRIES)


def call(function: Callable[..., Any] | str, *arguments: Any) -> Any:
    """Call a function of an entry, importing it if it is given by name."""
    if isinstance(function, str):
        function = resolve_name(f"attittud_lab.models.{function}")
    return function(*arguments)  # type: ignore[operator]  # resolve_name gives Any


register("mlp", "two hidden layers of model.width units", "vision:mlp", "image", "table")
register(
    "small-cnn",
    "three convolutions of model.width channels with GroupNorm",
    "vision:small_cnn",
    "image",
)
register(
    "resnet-18", "He et al. 2016, with a smaller stem for small images", "vision:resnet_18", "image"
)
_WIDE = "Zagoruyko and Komodakis 2016, the paper's network; any wideresnet-DEPTH-WIDTH"
register(
    "wideresnet-22-4",
    _WIDE,
    "vision:wide_resnet",
    "image",
    pattern=r"wideresnet-(\d{1,3})-(\d{1,2})",
)
# Not packed: its convolutions would reach beyond the end of a text into the next one.
_CNN = "two convolutions of model.width channels over hashed words"
register("text-cnn", _CNN, "text:TextCNN", "text", words="text:HashedWords")
_HF = "an image or text network of transformers, from a folder or the cache"
_TEXTS = {
    "words": "huggingface:hf_words",
    "keeps": "huggingface:hf_keep",
    "folder": "huggingface:hf_folder",
    "packs": True,
}
register(
    "hf:FOLDER",
    _HF,
    "huggingface:hf_body",
    "text",
    "image",
    pattern="hf:(.*)",
    foreign=True,
    **_TEXTS,
)
_TABLE = "two residual blocks of model.width units with LayerNorm; any table-mlp-BLOCKS"
register("table-mlp", _TABLE, "table:TableMLP", "table", pattern=r"table-mlp(?:-([1-9]\d?))?")
register(
    "efficientnet-lite0",
    "Liu 2020, trained on ImageNet; needs the extra pretrained",
    "efficientnet:efficientnet_body",
    "image",
    foreign=True,
)
register(
    "minilm",
    "all-MiniLM-L6-v2, a sentence encoder; needs the extra pretrained",
    "minilm:minilm_body",
    "text",
    words="minilm:minilm_words",
    keeps="minilm:minilm_keep",
    packs=True,
    foreign=True,
)
register(
    "timm:NAME",
    "an image network of timm",
    "timm:timm_body",
    "image",
    pattern="timm:(.*)",
    foreign=True,
)
