"""`hf:FOLDER`: any Hugging Face image or text network from a local folder or the cache, as a shared
body.

Only safetensors weights are read, and no code that comes with a model is run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from attittud_lab.errors import InputError, one_line, optional
from attittud_lab.files import local, write_atomically
from attittud_lab.models.text import TextBody

if TYPE_CHECKING:
    from attittud_lab.models import Wanted


FAR = -1e4
"""Added to the attention of tokens that must not be seen: its exp is exactly 0 in every
floating-point type.
"""
TRIED = 256
"""Tokens of a trial: more than the attention window of encoders (128 in ModernBERT)."""

_BERT = "cls.predictions"
_HEADS = (
    (f"{_BERT}.transform.dense", f"{_BERT}.transform.LayerNorm", f"{_BERT}.bias"),
    ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),  # RoBERTa
    ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),  # DistilBERT
)
"""Stored masked-word heads by family: the layer, its norm and the bias. All have the form of
`MaskedHead`.
"""


class HFWords:
    """A Hugging Face tokenizer without its own settings for padding and truncation."""

    def __init__(self, tokenizer: Any) -> None:
        """Find the tokens that frame every text, by encoding a word with and without them."""
        self._tokenizer = tokenizer
        self.vocabulary = len(tokenizer)
        self.pad = int(tokenizer.pad_token_id)
        # The tokens that it puts before and after every text.
        self.prefix: list[int] = []
        self.suffix: list[int] = []
        (framed,) = self.encode(["a"], special=True)
        (bare,) = self.encode(["a"])
        for start in range(len(framed) - len(bare) + 1):
            end = start + len(bare)
            if framed[start:end] == bare:
                self.prefix = framed[:start]
                self.suffix = framed[end:]
                break

    def encode(self, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
        """Return the token numbers of each text; `special`: with those that frame a text."""
        # Some folders pad and cut every text to a fixed length; here the data decide the length.
        settings = {
            "add_special_tokens": special,
            "padding": False,
            "truncation": False,
            "verbose": False,
        }
        return list(self._tokenizer(list(texts), **settings)["input_ids"])

    @cached_property
    def fingerprint(self) -> str:
        """A checksum that names the tokenizer in a cache of token numbers."""
        tokenizer = self._tokenizer
        if getattr(tokenizer, "is_fast", False):
            settings = json.loads(tokenizer.backend_tokenizer.to_str())
            del settings["truncation"], settings["padding"]  # changed by every call
        else:
            settings = {"kind": type(tokenizer).__name__, "words": tokenizer.get_vocab()}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


class Encoder(TextBody):
    """An encoder whose last hidden states are averaged over the tokens."""

    def __init__(self, model: Any, tokenizer: Any, stored: dict[str, Tensor] | None = None) -> None:
        """Wrap a network of transformers, whose pooler is removed.

        `stored` are the weights of a masked-word head that came with it.
        """
        super().__init__()
        self.model = model
        if getattr(model, "pooler", None) is not None:
            # The pooler's output is not used here; its parameters would only be counted although no
            # loss reaches them.
            model.pooler = None
        words = HFWords(tokenizer)
        self.features = int(model.config.hidden_size)
        self.vocabulary = int(model.config.vocab_size)
        self.eps = float(getattr(model.config, "layer_norm_eps", 1e-12))
        self.pad = words.pad
        self.mask = self.pad  # for a tokenizer without a mask
        if tokenizer.mask_token_id is not None:
            self.mask = int(tokenizer.mask_token_id)
        self.special = tuple(map(int, tokenizer.all_special_ids))
        self.stored_head = stored or {}
        # The tokens at the borders of every text; None where the tokenizer marks no border.
        self.starts = next(iter(words.prefix), None)
        self.ends = next(reversed(words.suffix), None)
        self.first = _first_position(model, self.pad, set(self.special))
        """Number of the first position; None where the encoder does not take our positions and
        masks.
        """

    @property
    def table(self) -> Tensor:
        return self.model.get_input_embeddings().weight  # type: ignore[no-any-return]  # modules return Any

    @property
    def packs(self) -> bool:
        """Whether the network can keep several texts of one row apart."""
        return self.first is not None and (self.starts is not None or self.ends is not None)

    def segments(self, inputs: Tensor) -> Tensor:
        """Number the texts of each row by the tokens that frame them: n x L, from 1; 0 for padding."""
        if not self.packs:
            return super().segments(inputs)
        if self.starts is not None:
            number = inputs.eq(self.starts).cumsum(1)
        else:
            ends = inputs.eq(self.ends).long()  # type: ignore[arg-type]  # one of the two is there
            number = ends.cumsum(1) - ends + 1  # an end belongs to the text before it
        return torch.where(inputs.ne(self.pad), number, 0)

    def tokens(self, inputs: Tensor, segments: Tensor | None = None) -> Tensor:
        restart = segments is not None  # a row may hold several texts
        if segments is None:
            segments = (inputs != self.pad).long()
        if self.first is None:
            output = self.model(input_ids=inputs.long(), attention_mask=(segments > 0).long())
            states: Tensor = output.last_hidden_state
            return states
        # Positions and a mask are given in full: otherwise transformers would read the mask on the
        # host, and give all rows the same positions.
        positions = _positions(segments, restart=restart) + self.first
        return _states(self.model, inputs.long(), segments, positions)


def _positions(segments: Tensor, *, restart: bool) -> Tensor:
    """Return the position of each token: n x L, counted from 0 in every row, or with `restart` in
    every text of a row.
    """
    index = torch.arange(segments.shape[1], device=segments.device).expand_as(segments)
    if not restart:
        return index
    begins = segments != segments.roll(1, dims=1)  # (in a row of one text nowhere)
    # The index of the latest beginning is subtracted.
    return index - (index * begins).cummax(1).values


def _states(model: Any, inputs: Tensor, segments: Tensor, positions: Tensor) -> Tensor:
    """Return n x L x features, from token numbers, segments and positions (n x L each).

    Tokens attend to their own segment alone.
    """
    is_elsewhere = segments.unsqueeze(1) != segments.unsqueeze(2)
    bias = (is_elsewhere.to(model.dtype) * FAR).unsqueeze(1)  # n x 1 x L x L, for all heads
    return model(input_ids=inputs, attention_mask=bias, position_ids=positions).last_hidden_state  # type: ignore[no-any-return]  # modules return Any


@torch.no_grad()
def _first_position(model: Any, pad: int, special: set[int]) -> int | None:
    """Return the number that the model gives to a text's first position; None if it does not take
    our masks and positions.

    This is found by a trial: two texts in one row, with our masks and positions, must give the same
    as each text alone. `special` are token numbers that the trial avoids.
    """
    words = sorted(set(range(int(model.config.vocab_size))) - {pad, *special})[:4]
    if not words:
        return None
    most = int(getattr(model.config, "max_position_embeddings", None) or TRIED)
    longest = min(TRIED, most - pad - 1)  # RoBERTa's positions begin behind the padding token
    row = torch.tensor([(words * TRIED)[:longest]])
    segments = torch.tensor([[1] * 3 + [2] * (longest - 3)])  # a text of 3 tokens, then the rest
    training = model.training
    model.eval()
    try:
        texts = [model(input_ids=text).last_hidden_state for text in (row[:, :3], row[:, 3:])]
        alone = torch.cat(texts, 1)
        # BERT counts from 0, RoBERTa from the number after its padding token.
        for first in (0, pad + 1):
            together = _states(model, row, segments, _positions(segments, restart=True) + first)
            if torch.allclose(together, alone, rtol=1e-4, atol=1e-4 * float(alone.abs().max())):
                return first
    except Exception:  # encoders refuse such arguments with different errors
        return None
    finally:
        model.train(training)
    return None


def stored_head(path: Path) -> dict[str, Tensor]:
    """The weights of a masked-word head under the names of `MaskedHead`; empty if there is none in
    this file of weights.
    """
    with safe_open(path, "pt") as file:
        names = set(file.keys())
        for dense, norm, bias in _HEADS:
            name_in_file = {
                "dense.weight": f"{dense}.weight",
                "dense.bias": f"{dense}.bias",
                "bias": bias,
                "norm.weight": f"{norm}.weight",
                "norm.bias": f"{norm}.bias",
            }
            if names.issuperset(name_in_file.values()):
                return {
                    entry: file.get_tensor(name).float() for entry, name in name_in_file.items()
                }
    return {}


_CURE = "give a folder with config.json and model.safetensors (and the tokenizer's files for text)"
_DESCRIBING = (".json", ".txt", ".model", ".vocab", ".jinja")
_DROPOUT = ("hidden_dropout_prob", "dropout", "hidden_dropout", "mlp_dropout", "resid_pdrop")
"""Names of the dropout of hidden states by family: BERT, DistilBERT, Funnel, ModernBERT, GPT-2."""


@contextmanager
def quietly() -> Iterator[None]:
    """Hide warnings about unused weights, such as another task's head, and progress bars for each
    of a hundred runs.
    """
    from transformers.utils import logging

    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


class HFFolder:
    """What transformers finds in a folder, or in the cache under a name.

    `place` is the full path of the folder when a model was trained on it. It is read first, because
    a relative name means another folder elsewhere.
    """

    def __init__(self, name: str, place: str | None = None) -> None:
        """Find the folder; an error says what to do if there is none. Nothing is loaded yet."""
        self.name = name
        self.path = local(name).expanduser()
        self.place: str | None = None
        """The full path of a folder; None if the encoder is in the cache."""
        if place is not None and Path(place).is_dir():
            self.path = Path(place)
        if self.path.is_dir():
            self.place = str(self.path.absolute())
        self._transformers = optional("transformers", "transformers", f"model 'hf:{name}'")
        from huggingface_hub import snapshot_download

        if not self.path.exists():
            # Models are loaded by this path: with a name transformers would ask the network for some
            # files.
            try:
                self.path = Path(snapshot_download(name, local_files_only=True))
            except (OSError, ValueError):  # not there, or no name at all
                if place is not None:
                    problem = f"model hf:{name}: its folder is neither in {place}, where it was"
                    problem += f" when the model was trained, nor {self.path.absolute()}"
                    raise InputError(f"{problem}; put it back, or train again") from None
                raise InputError(
                    f"model hf:{name}: cannot be loaded: there is no such folder, and nothing with "
                    f"this name in the Hugging Face cache; {_CURE}, or fetch it from the hub "
                    f"first: hf download {name}"
                ) from None

    def load(self, what: str, kind: str, **more: Any) -> Any:
        """Load an object with the Auto class `kind` of transformers, without the network and without
        running code of the folder.

        `what` names the object in the error for a folder from which it cannot be loaded.
        """
        try:
            with quietly():
                auto = getattr(self._transformers, kind)
                return auto.from_pretrained(
                    self.path, local_files_only=True, trust_remote_code=False, **more
                )
        except Exception as error:  # the type of error depends on the library's version
            raise self.failed(what, one_line(error, 200)) from None

    def network(self, settings: Any, *, pretrained: bool) -> Any:
        """Return the network in float32, with its stored weights if `pretrained`, else with random
        ones. `settings` is its configuration object.
        """
        if pretrained:
            return self.load(
                "the network", "AutoModel", config=settings, use_safetensors=True
            ).float()
        try:
            return self._transformers.AutoModel.from_config(settings).float()
        except Exception as error:  # the type of error depends on the library's version
            raise self.failed("the network", one_line(error, 200)) from None

    def failed(self, what: str, why: str) -> InputError:
        """Return the error for a folder that lacks something."""
        return InputError(
            f"model hf:{self.name}: {what} cannot be loaded from its folder ({why}); {_CURE}"
        )

    def tokenizer(self) -> Any:
        """Return the tokenizer of the folder; refuses an empty one."""
        tokenizer = self.load("its tokenizer", "AutoTokenizer")
        if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
            # Without files transformers makes an empty tokenizer: every word would be unknown.
            raise self.failed("its tokenizer", "it knows no words")
        return tokenizer


def hf_words(name: str) -> HFWords | None:
    """The tokenizer of a folder; None without one (an image network)."""
    folder = HFFolder(name)
    if not hasattr(folder.load("its configuration", "AutoConfig"), "vocab_size"):
        return None
    tokenizer = folder.tokenizer()
    if tokenizer.pad_token_id is None:
        raise InputError(
            f"model hf:{name}: its tokenizer has no padding token, so texts of different lengths "
            "cannot share a batch; set tokenizer.pad_token and save the tokenizer into the folder"
        )
    return HFWords(tokenizer)


def hf_folder(name: str) -> Path:
    """The folder that `hf_body` reads."""
    return HFFolder(name).path


def hf_keep(target: Path, name: str) -> None:
    """Copy the files that describe the network and its tokenizer: no weights, and no code."""
    for path in sorted(HFFolder(name).path.iterdir()):
        if path.suffix in _DESCRIBING and path.is_file() and not path.name.endswith(".index.json"):
            write_atomically(target / path.name, path.read_bytes())


def hf_body(request: Wanted, name: str) -> nn.Module:
    """The network of a folder without its own heads, as a body for images or texts.

    model.dropout, if it is not 0, replaces the dropout of the network's own configuration.
    """
    folder = HFFolder(name)
    config = request.config
    settings = folder.load("the network", "AutoConfig")
    if config.dropout:
        keys = [key for key in _DROPOUT if hasattr(settings, key)]
        if not keys:
            raise InputError(
                f"model hf:{name} has no dropout that could be set; leave model.dropout at 0"
            )
        for key in keys:
            setattr(settings, key, config.dropout)
    model = folder.network(settings, pretrained=config.pretrained)
    if request.kind == "image":
        return HFImageBody(model)
    # If the weights are in several files, no head for masked words is searched.
    weights = folder.path / "model.safetensors"
    stored = {}
    if config.pretrained and weights.exists():
        stored = stored_head(weights)
    return Encoder(model, folder.load("its tokenizer", "AutoTokenizer"), stored)


class HFImageBody(nn.Module):
    """An image network: its pooled output, or the mean over positions; `build_model` finds the
    number of features.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.channels = int(getattr(model.config, "num_channels", 3))

    def forward(self, x: Tensor) -> Tensor:
        """Return n x features for images n x C x H x W."""
        if x.shape[1] == 1:
            x = x.expand(-1, self.channels, -1, -1)  # grey images for a network that needs colours
        output = self.model(pixel_values=x)
        states: Any = getattr(output, "pooler_output", None)
        if states is None:
            states = output.last_hidden_state
        if states.ndim == 4:
            states = states.mean((2, 3))
        elif states.ndim == 3:
            states = states.mean(1)
        return states  # type: ignore[no-any-return]  # modules return Any
