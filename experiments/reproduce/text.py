"""Table 1: the text for each task, and made-up reviews with a tiny encoder to try it."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from pathlib import Path

from attittud_lab.errors import InputError, needs
from experiments.reproduce.miniature import save_table

FOLDERS = {"imdb": "imdb", "amazon": "amazon_helpful"}
"""Tasks, each with its folder inside the data folder."""
LABELS = ("500", "full")
_GOOD = ("good", "great", "lovely", "fine")
_BAD = ("bad", "poor", "awful", "dull")
_PLAIN = (
    *("a", "the", "film", "story", "really", "again", "what", "plot", "and", "was", "it", "very"),
    *(",", "."),
)
_LENGTH = 16


def part_name(task: str, labels: str, *, swapped: bool) -> str:
    ending = "-swapped" if swapped else ""
    return f"table1-text-{task}-{labels}{ending}"


def text_parts(folder: Path) -> Mapping[str, tuple[str, list[str]]]:
    """Both tasks with few and with all labels, each with its own text and with the other task's
    text.
    """
    parts = {}
    for labels in LABELS:
        for task, other in (("imdb", "amazon"), ("amazon", "imdb")):
            file = f"table1-text-{task}-{labels}.yaml"
            primary = f"data.primary.path={_place(folder, task)}"
            own_text = [primary, *_text(folder, task)]
            other_text = [primary, *_text(folder, other)]
            parts[part_name(task, labels, swapped=False)] = (file, own_text)
            parts[part_name(task, labels, swapped=True)] = (file, other_text)
    return parts


def text_start(folder: Path) -> tuple[str, list[str]]:
    """The run that trains a masked-word head for each of the two texts."""
    texts = [*_text(folder, "imdb"), *_text(folder, "amazon")]
    return "table1-text-start.yaml", [f"data.primary.path={_place(folder, 'imdb')}", *texts]


def _place(folder: Path, task: str) -> Path:
    place = folder / FOLDERS[task]
    if not place.is_dir():
        raise InputError(
            f"--data {folder}: there is no folder {place.name} in it; it has to hold {' and '.join(FOLDERS.values())}"
        )
    return place


def _text(folder: Path, task: str) -> list[str]:
    """All text of a task without labels, except for the text of its validation and test sets."""
    source = f"data.auxiliary.{task}_text"
    return [
        f"{source}.path={_place(folder, task)}",
        f"{source}.split=train+unsupervised",
        f"{source}.objective=masked_lm",
    ]


# ------------------------------------------------------------------------------------- in miniature


def write_texts(folder: Path) -> Path:
    """Write reviews whose label a word gives away, in the two data sets' splits and folders."""
    import pyarrow as pa

    target = folder / "miniature-text"
    for task, place in FOLDERS.items():
        (target / place).mkdir(parents=True, exist_ok=True)
        splits = {"train": 160, "test": 40, "unsupervised": 60}
        if task == "amazon":
            splits["validation"] = 40
        for split, count in splits.items():
            draw = random.Random(f"{task} {split}")
            texts = []
            for number in range(count):
                words = draw.choices(_PLAIN, k=draw.randint(3, 30))
                words.insert(draw.randrange(len(words)), draw.choice((_GOOD, _BAD)[number % 2]))
                texts.append(" ".join(words))
            columns: dict[str, list[str] | list[int]] = {"text": texts}
            if split != "unsupervised":
                columns["label"] = [number % 2 for number in range(count)]
            save_table(pa.table(columns), target / place / f"{split}-00000-of-00001.parquet")
    return target


def write_encoder(folder: Path) -> Path:
    """Write a BERT of a thousand weights that knows the words of these reviews."""
    import torch

    try:
        import transformers
    except ImportError:
        raise needs("transformers", "transformers", "the text experiment") from None
    transformers.utils.logging.disable_progress_bar()
    target = folder / "miniature-encoder"
    temporary = folder / f".miniature-encoder.{os.getpid()}"
    temporary.mkdir(parents=True, exist_ok=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_GOOD, *_BAD, *_PLAIN]
    (temporary / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    transformers.BertTokenizer(str(temporary / "vocab.txt")).save_pretrained(temporary)
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    config = transformers.BertConfig(
        vocab_size=len(words), max_position_embeddings=_LENGTH, **sizes
    )
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        transformers.BertModel(config).save_pretrained(temporary)
    # Processes that share the runs all come here: a file is there in one instant, and the same from
    # each.
    target.mkdir(exist_ok=True)
    for file in temporary.iterdir():
        file.replace(target / file.name)
    temporary.rmdir()
    return target


QUICK = (
    f"data.max_length={_LENGTH}",
    "strategy.rank=2",
    "strategy.basis_batch=8",
    "compare.strategies=[pretrain]",
)
QUICK_PARTS = (part_name("imdb", "500", swapped=False), part_name("amazon", "full", swapped=True))
