"""Tiny networks of transformers in folders, and made-up reviews."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
GOOD, BAD = ["good", "great", "lovely", "fine"], ["bad", "poor", "awful", "dull"]
PLAIN = [
    "a",
    "the",
    "film",
    "story",
    "really",
    "again",
    "what",
    "plot",
    "and",
    "was",
    "it",
    "very",
    ",",
    ".",
    "one",
    "two",
]


def tiny_encoder(folder: Path, kind: str = "Bert", *, fixed_padding: int | None = None) -> Path:
    """The folder of an encoder, whose tokenizer pads by itself if wanted."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    folder.mkdir(parents=True, exist_ok=True)
    words = [*SPECIAL, *GOOD, *BAD, *PLAIN]
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    settings: dict[str, Any] = {"vocab_size": len(words), "max_position_embeddings": 66}
    settings |= {"pad_token_id": 0, "hidden_size": 8, "num_hidden_layers": 2}
    settings |= {"num_attention_heads": 2, "intermediate_size": 12}
    if kind == "ModernBert":
        numbers = {"bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
        settings |= {"local_attention": 16, "global_attn_every_n_layers": 2, **numbers}
    config = getattr(transformers, f"{kind}Config")(**settings)
    with torch.random.fork_rng(devices=[]):  # the same weights whatever ran before
        torch.manual_seed(1)
        model = getattr(transformers, f"{kind}Model")(config)
        # fresh embeddings are so small that little could leak through them
        for parameter in model.parameters():
            parameter.data.normal_(std=0.5)
    model.save_pretrained(folder)
    if fixed_padding is not None:
        path = folder / "tokenizer.json"
        stored = json.loads(path.read_text())
        padding = {"strategy": {"Fixed": fixed_padding}, "direction": "Right"}
        padding |= {"pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
        cut = {"max_length": fixed_padding, "strategy": "LongestFirst"}
        stored["padding"] = padding
        stored["truncation"] = cut | {"stride": 0, "direction": "Right"}
        path.write_text(json.dumps(stored))
    return folder


def reviews(count: int, seed: int) -> list[dict[str, str]]:
    """Reviews of 3 to 40 words, with a label that one or two words give away."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        label, telling = [("good", GOOD), ("bad", BAD)][number % 2]
        words = draw.choices(PLAIN, k=draw.randint(2, 39))
        words.insert(draw.randrange(len(words)), draw.choice(telling))
        rows.append({"text": " ".join(words), "label": label})
    return rows


def write_reviews(path: Path, count: int, seed: int, *, labelled: bool = True) -> Path:
    rows = reviews(count, seed)
    path.write_text(
        "".join(json.dumps(row if labelled else {"text": row["text"]}) + "\n" for row in rows)
    )
    return path


def tiny_images(folder: Path, kind: str = "ViTModel") -> Path:
    """The folder of a network for images of 16 pixels."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    sizes: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.ViTConfig(image_size=16, patch_size=8, intermediate_size=8, **sizes)
    with torch.random.fork_rng(devices=[]):  # the same weights whatever ran before
        torch.manual_seed(1)
        getattr(transformers, kind)(config).save_pretrained(folder)
    return folder
