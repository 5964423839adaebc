"""`hf:FOLDER`: a frozen text or image encoder of transformers, from a folder or the cache of the
hub.

A text becomes the mean of the last hidden states over its tokens, divided by its length, as
sentence encoders are trained. An image becomes the pooled output. Only safetensors weights are
read, and no code that comes with an encoder is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from attittud_lab.errors import InputError, listed
from attittud_lab.features.base import FeatureMap, Plain
from attittud_lab.features.images import Preparation, cannot_encode, encode_images, frozen
from attittud_lab.features.weights import check_same, checksum
from attittud_lab.files import read_json
from attittud_lab.models.huggingface import HFFolder, HFImageBody
from attittud_lab.output.progress import Progress

TOKENS = 128
"""The most tokens of a text that are read; the time grows with them."""
ON_CPU = 32
"""Texts of a batch."""
ON_GPU = 256
_READ = (".json", ".txt", ".model", ".safetensors")
"""The files of a folder that decide the features."""
_USUAL_SIZE = 224


def precision(device: str) -> str:
    """Return how precisely texts are encoded: bfloat16 on CPUs that multiply it natively, else
    float32.

    There it takes a third of the time; rows of length 1 change by about 0.001, and accuracies by
    nothing.
    """
    capabilities_of_cpu = getattr(torch.cpu, "get_capabilities", dict)  # older torch cannot tell
    capabilities: Mapping[str, Any] = capabilities_of_cpu()
    native = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")
    return "bfloat16" if device == "cpu" and native else "float32"


class TextEncoder:
    """The network and the tokenizer of a folder, loaded when the first text is encoded."""

    def __init__(self, folder: HFFolder) -> None:
        self._folder = folder

    @cached_property
    def network(self) -> Any:
        return load_network(self._folder)

    @cached_property
    def _tokenizer(self) -> Any:
        return self._folder.tokenizer()

    def encode(
        self, texts: Sequence[str], device: str, progress: Progress | None
    ) -> npt.NDArray[np.float32]:
        """Return n x width. Texts of similar length share a batch, so few tokens are padding."""
        network = frozen(self.network, device)
        rows = np.empty((len(texts), int(network.config.hidden_size)), dtype=np.float32)
        if not texts:
            return rows
        tokens = self._tokens([str(text) for text in texts])
        order = sorted(range(len(texts)), key=lambda position: len(tokens[position]))
        batch = ON_CPU if device == "cpu" else ON_GPU
        rounded = precision(device) == "bfloat16"
        for start in range(0, len(order), batch):
            positions = order[start : start + batch]
            batch_tokens = [tokens[position] for position in positions]
            with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
                features = self._batch(network, batch_tokens, device)
            rows[positions] = features.float().cpu().numpy()
            if progress is not None:
                progress.advance(len(positions), {})
        return rows

    def _tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the numbers of the first tokens of each text, special tokens included."""
        # Some folders pad every text to a fixed length; these arguments overrule their settings.
        settings = {"padding": False, "truncation": True, "max_length": self._room()}
        return list(self._tokenizer(list(texts), verbose=False, **settings)["input_ids"])

    def _room(self) -> int:
        """Return how many tokens the encoder reads; RoBERTa numbers positions from after its
        padding token.
        """
        config = self.network.config
        positions = getattr(config, "max_position_embeddings", None) or TOKENS
        if positions < TOKENS + 2:
            positions -= (getattr(config, "pad_token_id", None) or 0) + 1
        return min(TOKENS, positions, int(self._tokenizer.model_max_length))

    @torch.inference_mode()
    def _batch(self, network: Any, tokens: Sequence[list[int]], device: str) -> Tensor:
        longest = max(1, *(len(row) for row in tokens))
        inputs = torch.full((len(tokens), longest), self._tokenizer.pad_token_id or 0)
        mask = torch.zeros(len(tokens), longest)
        for number, row in enumerate(tokens):
            inputs[number, : len(row)] = torch.tensor(row, dtype=torch.long)
            mask[number, : len(row)] = 1
        inputs, mask = inputs.to(device), mask.to(device)
        try:
            states = network(input_ids=inputs, attention_mask=mask.long()).last_hidden_state
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            raise cannot_encode(f"hf:{self._folder.name}", error) from None
        total = (states.float() * mask.unsqueeze(2)).sum(1)
        return F.normalize(total / mask.sum(1, keepdim=True).clamp(min=1))


def load_network(folder: HFFolder) -> Any:
    """Return the network of a folder without its heads; refuses a folder that lacks some of its
    weights.
    """
    more = {"use_safetensors": True, "output_loading_info": True}
    network, loaded = folder.load("the network", "AutoModel", **more)
    missing = sorted(loaded["missing_keys"])
    if any(name.startswith("pooler.") for name in missing):
        network.pooler = None  # transformers has drawn its weights at random
    lacking = [name for name in missing if not name.startswith("pooler.")]
    if lacking:
        raise folder.failed("the network", f"its file lacks the weights {listed(lacking, 3)}")
    return network.float()


class EncoderFeatures(FeatureMap):
    """What the encoder in a folder makes of texts or images."""

    name = "hf"
    worth_keeping = True

    def __init__(self, folder: str) -> None:
        self._folder = HFFolder(folder)
        settings = self._folder.load("its configuration", "AutoConfig")
        self.reads = "text" if hasattr(settings, "vocab_size") else "image"
        self._texts = TextEncoder(self._folder)
        self._device = "cpu"

    def to(self, device: str) -> None:
        self._device = device

    def transform(self, inputs: Any, progress: Progress | None = None) -> npt.NDArray[np.float32]:
        if self.reads == "text":
            return self._texts.encode(inputs, self._device, progress)
        network = frozen(self._image_network, self._device)
        preparation = self._preparation()
        try:
            return encode_images(network, inputs, preparation, self._device, progress)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            raise cannot_encode(f"hf:{self._folder.name}", error) from None

    @property
    def network(self) -> Any:
        return self._texts.network if self.reads == "text" else self._image_network

    @cached_property
    def _image_network(self) -> HFImageBody:
        return HFImageBody(load_network(self._folder))

    def _preparation(self) -> Preparation:
        """Return the size and the colours that the folder names; else those that most networks are
        trained on.
        """
        path = self._folder.path / "preprocessor_config.json"
        settings = read_json(path) if path.is_file() else {}
        size = settings.get("crop_size") or settings.get("size") or self._image_size()
        if isinstance(size, dict):
            size = size.get("height") or size.get("shortest_edge") or self._image_size()
        mean = settings.get("image_mean") or [0.5, 0.5, 0.5]
        scale = settings.get("image_std") or [0.5, 0.5, 0.5]
        try:
            red, green, blue = (255 * float(value) for value in mean)
            red_scale, green_scale, blue_scale = (255 * float(value) for value in scale)
            return Preparation(int(size), (red, green, blue), (red_scale, green_scale, blue_scale))
        except (TypeError, ValueError) as error:
            problem = f"{path}: does not describe images of three colours ({error})"
            raise InputError(f"{problem}; correct size, image_mean and image_std") from None

    def _image_size(self) -> int:
        size = getattr(self._image_network.model.config, "image_size", None)
        return size if isinstance(size, int) else _USUAL_SIZE

    def plain(self) -> Plain:
        plain: Plain = {"folder": self._folder.name, "sha256": self._sha256}
        if self.reads == "text":
            plain |= {"tokens": TOKENS, "precision": precision(self._device)}
        return plain

    @cached_property
    def _sha256(self) -> str:
        return folder_checksum(self._folder)

    @classmethod
    def restore(cls, plain: Mapping[str, Any], _: Mapping[str, Tensor]) -> Self:
        feature_map = cls(str(plain["folder"]))
        check_same(f"hf:{plain['folder']}", plain, feature_map.plain())
        return feature_map


def folder_checksum(folder: HFFolder) -> str:
    """Return a checksum of the files that decide the features: network, tokenizer and their
    settings.
    """
    return checksum(path for path in folder.path.iterdir() if path.suffix in _READ)
