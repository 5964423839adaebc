"""`hf:FOLDER`: any Hugging Face image or text network from a local folder or the cache, as a shared body.

Only safetensors weights are read, and no code that comes with a model is run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attittud.recipes.config import ModelConfig
from attittud.recipes.errors import InputError, needs


def _transformers(folder: str) -> Any:
    try:
        import transformers
    except ImportError:
        raise needs("transformers", "transformers", f"model 'hf:{folder}'") from None
    return transformers


def _failed(folder: str, what: str, error: Exception) -> InputError:
    place = "the folder" if Path(folder).exists() else "no such folder here, and the cache"
    return InputError(
        f"model hf:{folder}: {what} cannot be loaded from {place} ({' '.join(str(error).split())[:200]}); give a folder with "
        "config.json and model.safetensors (and the tokenizer's files for text)"
    )


def hf_tokenizer(folder: str, max_length: int) -> Callable[[Sequence[str]], Tensor] | None:
    """Texts to token numbers, padded to `max_length`; None for a folder without a tokenizer (an image network)."""
    transformers = _transformers(folder)
    try:
        found = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # what it raises depends on the library's version
        raise _failed(folder, "its configuration", error) from None
    if not hasattr(found, "vocab_size"):
        return None
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise _failed(folder, "its tokenizer", error) from None
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        # What transformers makes where there are no files: every word would be unknown.
        raise _failed(folder, "its tokenizer", ValueError("it knows no words"))

    def tokenize(texts: Sequence[str]) -> Tensor:
        encoded = tokenizer(
            list(texts), truncation=True, padding="max_length", max_length=max_length, return_tensors="pt"
        )
        numbers: Tensor = encoded["input_ids"]
        return numbers.to(torch.int32)

    return tokenize


def hf_body(folder: str, kind: str, config: ModelConfig) -> nn.Module:
    transformers = _transformers(folder)
    arguments = {"local_files_only": True, "trust_remote_code": False}
    try:
        settings = transformers.AutoConfig.from_pretrained(folder, **arguments)
        if config.dropout and hasattr(settings, "hidden_dropout_prob"):
            settings.hidden_dropout_prob = config.dropout
        if config.pretrained:
            model = transformers.AutoModel.from_pretrained(folder, config=settings, use_safetensors=True, **arguments)
        else:
            model = transformers.AutoModel.from_config(settings)
        if kind == "image":
            return HFImageBody(model.float())
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **arguments)
    except Exception as error:  # what it raises depends on the library's version
        raise _failed(folder, "the network", error) from None
    return HFTextBody(model.float(), tokenizer)


class HFTextBody(nn.Module):
    """An encoder whose last hidden states are averaged over the tokens."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        super().__init__()
        self.model = model
        _drop_pooler(model)
        self.features = int(model.config.hidden_size)
        self.vocabulary = int(model.config.vocab_size)
        self.pad = int(tokenizer.pad_token_id or 0)
        self.mask = self.pad if tokenizer.mask_token_id is None else int(tokenizer.mask_token_id)
        self.special = tuple(int(token) for token in tokenizer.all_special_ids)

    def tokens(self, inputs: Tensor) -> Tensor:
        present = (inputs != self.pad).long()
        states: Tensor = self.model(input_ids=inputs.long(), attention_mask=present).last_hidden_state
        return states

    def forward(self, inputs: Tensor) -> Tensor:
        present = (inputs != self.pad).unsqueeze(-1)
        return (self.tokens(inputs) * present).sum(1) / present.sum(1).clamp(min=1)


class HFImageBody(nn.Module):
    """An image network: its pooled output, or the mean over positions."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        sizes = getattr(model.config, "hidden_sizes", None)
        self.features = int(sizes[-1] if sizes else model.config.hidden_size)

        self.channels = int(getattr(model.config, "num_channels", 3))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] == 1:
            x = x.expand(-1, self.channels, -1, -1)  # grey pictures for a network of colours
        output = self.model(pixel_values=x)
        pooled = getattr(output, "pooler_output", None)
        states: Tensor = pooled if pooled is not None else output.last_hidden_state
        if states.ndim == 4:
            return states.mean((2, 3))
        return states.mean(1) if states.ndim == 3 else states


def _drop_pooler(model: Any) -> None:
    """Its output is not used here; parameters that no loss reaches would only be weighed in counts."""
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
