"""`hf:FOLDER`: any Hugging Face image or text network from a local folder or the cache, as a shared body.

Only safetensors weights are read, and no code that comes with a model is run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from attittud_lab.config.schema import ModelConfig
from attittud_lab.errors import InputError, needs, one_line
from attittud_lab.models.encoder import Encoder, HFWords, stored_head


def _transformers(folder: str) -> Any:
    try:
        import transformers
    except ImportError:
        raise needs("transformers", "transformers", f"model 'hf:{folder}'") from None
    return transformers


_CURE = "give a folder with config.json and model.safetensors (and the tokenizer's files for text)"


def _failed(folder: str, what: str, error: Exception) -> InputError:
    return InputError(f"model hf:{folder}: {what} cannot be loaded from its folder ({one_line(error, 200)}); {_CURE}")


def _place(folder: str) -> Path:
    """The folder, or that of a name in the cache. A name itself would send the library to the network for some files."""
    path = Path(folder).expanduser()
    if path.exists():
        return path
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(folder, local_files_only=True))
    except (OSError, ValueError):  # not there, or no name at all
        raise InputError(
            f"model hf:{folder}: cannot be loaded, there is no such folder here and nothing of this name in the cache; "
            f"{_CURE}, or fetch it from the hub first: hf download {folder}"
        ) from None


@contextmanager
def _silent(transformers: Any) -> Iterator[None]:
    """Weights that are not used, such as another task's head, are no news, and a bar for each of a hundred runs neither."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def hf_words(folder: str) -> HFWords | None:
    """Its tokenizer; None for a folder without one (an image network)."""
    transformers = _transformers(folder)
    place = _place(folder)
    try:
        found = transformers.AutoConfig.from_pretrained(place, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # what it raises depends on the library's version
        raise _failed(folder, "its configuration", error) from None
    if not hasattr(found, "vocab_size"):
        return None
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise _failed(folder, "its tokenizer", error) from None
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        # What transformers makes where there are no files: every word would be unknown.
        raise _failed(folder, "its tokenizer", ValueError("it knows no words"))
    if tokenizer.pad_token_id is None:
        raise InputError(
            f"model hf:{folder}: its tokenizer has no sign for padding, so that texts of unequal lengths cannot be put together; "
            "give it one (tokenizer.pad_token = ...) and save it into the folder"
        )
    return HFWords(tokenizer)


_DROPOUT = ("hidden_dropout_prob", "dropout", "hidden_dropout", "mlp_dropout", "resid_pdrop")
"""What families call the dropout of their states: BERT, DistilBERT, Funnel, ModernBERT, GPT-2."""


def _set_dropout(settings: Any, share: float, folder: str) -> None:
    names = [name for name in _DROPOUT if hasattr(settings, name)]
    if not names:
        raise InputError(f"model hf:{folder} has no dropout that could be set; leave model.dropout at 0")
    for name in names:
        setattr(settings, name, share)


def hf_body(folder: str, kind: str, config: ModelConfig) -> nn.Module:
    transformers = _transformers(folder)
    place = _place(folder)
    arguments = {"local_files_only": True, "trust_remote_code": False}
    try:
        with _silent(transformers):
            settings = transformers.AutoConfig.from_pretrained(place, **arguments)
            if config.dropout:
                _set_dropout(settings, config.dropout, folder)
            if config.pretrained:
                model = transformers.AutoModel.from_pretrained(
                    place, config=settings, use_safetensors=True, **arguments
                )
            else:
                model = transformers.AutoModel.from_config(settings)
            if kind == "image":
                return HFImageBody(model.float())
            tokenizer = transformers.AutoTokenizer.from_pretrained(place, **arguments)
            weights = place / "model.safetensors"
    except InputError:
        raise
    except Exception as error:  # what it raises depends on the library's version
        raise _failed(folder, "the network", error) from None
    # Where the weights are in pieces, the head is not looked for.
    stored = config.pretrained and weights.exists()
    return Encoder(model.float(), tokenizer, stored_head(weights) if stored else {})


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
