"""Texts by a frozen sentence encoder, all-MiniLM-L6-v2, whose weights come with a package."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from importlib.metadata import version
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from torch import Tensor

from attittud_lab.features.base import FeatureMap, Plain
from attittud_lab.features.encoder_hf import TOKENS, TextEncoder, folder_checksum, precision
from attittud_lab.features.weights import check_same
from attittud_lab.models.huggingface import HFFolder
from attittud_lab.models.minilm import PACKAGE, package_folder
from attittud_lab.output.progress import Progress


class MiniLMFeatures(FeatureMap):
    """The mean of the last hidden states of all-MiniLM-L6-v2, divided by its length."""

    name = "minilm"
    reads = "text"
    worth_keeping = True

    def __init__(self) -> None:
        self._device = "cpu"

    def to(self, device: str) -> None:
        self._device = device

    def transform(self, inputs: Any, progress: Progress | None = None) -> npt.NDArray[np.float32]:
        return self._encoder.encode(inputs, self._device, progress)

    @property
    def network(self) -> Any:
        return self._encoder.network

    @cached_property
    def _folder(self) -> HFFolder:
        return HFFolder(package_folder("features 'minilm'"))

    @cached_property
    def _encoder(self) -> TextEncoder:
        return TextEncoder(self._folder)

    def plain(self) -> Plain:
        return {
            "package": PACKAGE,
            "version": version(PACKAGE),
            "tokens": TOKENS,
            "precision": precision(self._device),
            "sha256": self._sha256,
        }

    @cached_property
    def _sha256(self) -> str:
        return folder_checksum(self._folder)

    @classmethod
    def restore(cls, plain: Mapping[str, Any], _: Mapping[str, Tensor]) -> Self:
        feature_map = cls()
        check_same(cls.name, plain, feature_map.plain())
        return feature_map
