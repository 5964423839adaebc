"""`hf:FOLDER`: a frozen text or image encoder of transformers, from a folder or the cache of the
hub.

A text becomes the mean of the last hidden states over its tokens, scaled to norm 1, as
sentence encoders are trained. An image becomes the pooled output. Only safetensors weights are
read, and no code that comes with an encoder is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from attittud_lab.errors import InputError, listed
from attittud_lab.features.base import Plain
from attittud_lab.features.frozen import (
    FrozenFeatures,
    Preparation,
    cannot_encode,
    checksum,
    encode_images,
    ready,
)
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
_ERRORS = (AttributeError, IndexError, RuntimeError, TypeError, ValueError)


def precision(device: str) -> str:
    """Return how precisely texts are encoded: bfloat16 on CPUs that multiply it natively, else
    float32.

    There it takes a third of the time; rows of length 1 change by about 0.001, and accuracies by
    nothing.
    """
    capabilities_of_cpu = getattr(torch.cpu, "get_capabilities", dict)  # older torch cannot tell
    capabilities: Mapping[str, Any] = capabilities_of_cpu()
    native = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")
    if device == "cpu" and native:
        return "bfloat16"
    return "float32"


class EncoderFeatures(FrozenFeatures):
    """What the encoder in a folder makes of texts or images."""

    name = "hf"
    arguments: ClassVar[tuple[str, ...]] = ("folder", "place")

    def __init__(self, folder: str, place: str | None = None) -> None:
        """`folder` is what a job calls the encoder; `place` is where it was when a model was
        trained on it.
        """
        self.folder = HFFolder(folder, place)
        settings = self.folder.load("its configuration", "AutoConfig")
        self.reads = "text" if hasattr(settings, "vocab_size") else "image"

    def load(self) -> Any:
        """Return the network of the folder without its heads; refuses a folder that lacks some of
        its weights.
        """
        more = {"use_safetensors": True, "output_loading_info": True}
        network, loaded = self.folder.load("the network", "AutoModel", **more)
        lacking = []
        for name in sorted(loaded["missing_keys"]):
            if name.startswith("pooler."):
                network.pooler = None  # transformers has drawn its weights at random
            else:
                lacking.append(name)
        if lacking:
            raise self.folder.failed("the network", f"its file lacks {listed(lacking, 3)}")
        network = network.float()
        if self.reads == "image":
            return HFImageBody(network)
        return network

    def transform(self, inputs: Any, progress: Progress | None = None) -> npt.NDArray[np.float32]:
        """Return n x width for texts or images; a network that does not read them is refused."""
        network = ready(self.network, self.device)
        try:
            if self.reads == "text":
                return self._encode_texts(network, inputs, progress)
            return encode_images(network, inputs, self._preparation(), self.device, progress)
        except _ERRORS as error:
            raise cannot_encode(f"hf:{self.folder.name}", error) from None

    # ---------------------------------------------------------------------------------------- texts

    @cached_property
    def _tokenizer(self) -> Any:
        return self.folder.tokenizer()

    def _encode_texts(
        self, network: Any, texts: Sequence[str], progress: Progress | None
    ) -> npt.NDArray[np.float32]:
        """Return n x width, in the order of `texts`. Texts of similar length share a batch, so few
        tokens are padding.
        """
        rows = np.empty((len(texts), int(network.config.hidden_size)), dtype=np.float32)
        if not texts:
            return rows
        tokens = self._tokens(list(map(str, texts)))
        order = sorted(range(len(texts)), key=lambda position: len(tokens[position]))
        batch = ON_CPU if self.device == "cpu" else ON_GPU
        in_bfloat16 = precision(self.device) == "bfloat16"
        for start in range(0, len(order), batch):
            positions = order[start : start + batch]
            batch_tokens = [tokens[position] for position in positions]
            with torch.autocast("cpu", torch.bfloat16, enabled=in_bfloat16):
                features = self._batch(network, batch_tokens)
            rows[positions] = features.float().cpu().numpy()
            if progress is not None:
                progress.advance(len(positions), {})
        return rows

    def _tokens(self, texts: list[str]) -> list[list[int]]:
        """Return the numbers of the first tokens of each text, special tokens included."""
        # Some folders pad every text to a fixed length; these arguments overrule their settings.
        settings = {"padding": False, "truncation": True, "max_length": self._most_tokens()}
        return list(self._tokenizer(texts, verbose=False, **settings)["input_ids"])

    def _most_tokens(self) -> int:
        """Return how many tokens of a text are read: `TOKENS`, or fewer if the encoder has fewer
        positions.
        """
        config = self.network.config
        positions = getattr(config, "max_position_embeddings", None) or TOKENS
        if positions < TOKENS + 2:
            # RoBERTa counts positions from behind the number of its padding token.
            positions -= (getattr(config, "pad_token_id", None) or 0) + 1
        return min(TOKENS, positions, int(self._tokenizer.model_max_length))

    @torch.inference_mode()
    def _batch(self, network: Any, tokens: Sequence[list[int]]) -> Tensor:
        """Return n x width for the token numbers of n texts: the mean of the last hidden states over
        the tokens of each text, scaled to norm 1.
        """
        longest = max(1, *map(len, tokens))
        inputs = torch.full((len(tokens), longest), self._tokenizer.pad_token_id or 0)
        mask = torch.zeros(len(tokens), longest)
        for number, row in enumerate(tokens):
            inputs[number, : len(row)] = torch.tensor(row, dtype=torch.long)
            mask[number, : len(row)] = 1
        mask = mask.to(self.device)
        output = network(input_ids=inputs.to(self.device), attention_mask=mask.long())
        states = output.last_hidden_state
        total = (states.float() * mask.unsqueeze(2)).sum(1)
        return F.normalize(total / mask.sum(1, keepdim=True).clamp(min=1))

    # --------------------------------------------------------------------------------------- images

    def _preparation(self) -> Preparation:
        """Return the size and the colours that the folder names; else those that most networks are
        trained on.
        """
        path = self.folder.path / "preprocessor_config.json"
        settings = {}
        if path.is_file():
            settings = read_json(path)
        usual = getattr(self.network.model.config, "image_size", None)
        if not isinstance(usual, int):
            usual = _USUAL_SIZE
        size = settings.get("crop_size") or settings.get("size") or usual
        if isinstance(size, dict):
            size = size.get("height") or size.get("shortest_edge") or usual
        mean = settings.get("image_mean") or [0.5] * 3
        scale = settings.get("image_std") or [0.5] * 3
        try:
            return Preparation.of_fractions(size, mean, scale)
        except (TypeError, ValueError) as error:
            problem = f"{path}: does not describe images of three colours ({error})"
            raise InputError(f"{problem}; correct size, image_mean and image_std") from None

    # ------------------------------------------------------------------------------------- identity

    def settings(self) -> Plain:
        """The folder and, for texts, what else changes the last bits of the rows."""
        plain: Plain = {"folder": self.folder.name}
        if self.reads == "text":
            plain |= {"tokens": TOKENS, "precision": precision(self.device)}
        return plain

    def stored(self) -> Plain:
        stored = self.plain()
        if "place" in self.arguments and self.folder.place is not None:
            stored["place"] = self.folder.place
        return stored

    @cached_property
    def sha256(self) -> str:
        files = [path for path in self.folder.path.iterdir() if path.suffix in _READ]
        return checksum(files)
