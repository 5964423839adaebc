"""Encoders of the Hugging Face hub that stand in where the packages of `attittud[pretrained]` are
missing: `init` offers to fetch one, and `train` takes it from the cache.
"""

from __future__ import annotations

from importlib.util import find_spec

from attittud_lab.errors import InputError, one_line

NEEDED = ("config.json", "model.safetensors")
"""Without these files an encoder cannot be read."""
WANTED = [*NEEDED, "preprocessor_config.json", "tokenizer*.json", "vocab.*", "merges.txt"]
WANTED += ["special_tokens_map.json"]


def readable() -> bool:
    """Return whether the packages are installed that read encoders of the hub."""
    return find_spec("transformers") is not None and find_spec("huggingface_hub") is not None


def is_cached(name: str) -> bool:
    """Return whether an encoder is in the cache of the hub. Nothing is asked of the network."""
    if not readable():
        return False
    from huggingface_hub import try_to_load_from_cache

    return all(isinstance(try_to_load_from_cache(name, file), str) for file in NEEDED)


def fetch(name: str) -> None:
    """Download an encoder into the cache; raises InputError where that fails."""
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(name, allow_patterns=WANTED)
    except Exception as error:  # the type depends on the library's version
        raise InputError(
            f"{name}: cannot be fetched from the hub: {one_line(error, 200)}"
        ) from None
    if not is_cached(name):
        raise InputError(f"{name}: the hub has no weights that can be read without running code")
