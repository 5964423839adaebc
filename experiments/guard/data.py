"""Rows of tokens on disk, and which of them a run learns, protects and measures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

Row = Mapping[str, Sequence[int]]
MEASURED, RETAINED = 128, 100
TASKS = ("a", "b", "c")
REPLIES, MEMORISED = "replies.json", "memorised.safetensors"


def save_sets(path: Path, sets: Mapping[str, Sequence[Row]], end: int) -> None:
    """All rows in one small file: tokens, how many there are in each row, and how many of these do not count.

    `end` is the token at the end of a reply.
    """
    found: dict[str, np.ndarray] = {"end": np.asarray(end)}
    for name, rows in sets.items():
        found[f"{name}/ids"] = np.concatenate([np.asarray(row["input_ids"], np.int32) for row in rows])
        found[f"{name}/lengths"] = np.asarray([len(row["input_ids"]) for row in rows], np.int32)
        found[f"{name}/silent"] = np.asarray([sum(x < 0 for x in row["labels"]) for row in rows], np.int32)
    np.savez_compressed(path, **found)


def load_sets(path: Path) -> tuple[dict[str, list[Row]], int]:
    with np.load(path) as file:
        names = sorted({key.partition("/")[0] for key in file if "/" in key})
        sets = {name: _rows(file[f"{name}/ids"], file[f"{name}/lengths"], file[f"{name}/silent"]) for name in names}
        return sets, int(file["end"])


def _rows(ids: np.ndarray, lengths: np.ndarray, silent: np.ndarray) -> list[Row]:
    rows, end = [], 0
    for length, count in zip(lengths.tolist(), silent.tolist(), strict=True):
        part = ids[end : end + length].tolist()
        rows.append({"input_ids": part, "labels": [-100] * count + part[count:]})
        end += length
    return rows


@dataclass(frozen=True)
class Split:
    """What one run works with."""

    new: list[Row]
    protected: list[Row]
    judges: list[Row]
    """Protected examples that only judge, where a method asks for judges."""
    measured: dict[str, list[Row]]
    """`new` is the task itself; the other sets are retained."""


def split(folder: Path, sets: Mapping[str, list[Row]], task: str, m: int, seed: int, *, judged: bool) -> Split:
    """Held-out sets are the same for all seeds; the protected examples are drawn by the seed."""
    if task == "b":
        measured = {"new": sets["tofu_forget"][:MEASURED], "retain": sets["tofu_retain"][:RETAINED]}
        measured |= {name: sets[f"tofu_{name}"] for name in ("real_authors", "world_facts")}
        new, pool = sets["tofu_forget"], sets["tofu_retain"][RETAINED:]
    else:
        replies = json.loads((folder / REPLIES).read_text(encoding="utf-8"))
        learn = sets["gsm8k" if task == "a" else "reviews"]
        measured = {"new": learn[:MEASURED], "instructions": replies[:MEASURED]}
        new, pool = learn[MEASURED:], replies[MEASURED:]
    order = np.random.default_rng([seed, m, TASKS.index(task)]).permutation(len(pool))
    if m > len(pool):
        raise SystemExit(f"task {task} has {len(pool)} examples that can be protected, {m} are asked for")
    drawn = [pool[number] for number in order[:m]]
    count = m // 4 if judged else 0
    return Split(new, drawn[count:], drawn[:count], measured | {"wikitext": sets["wikitext"]})


def batch(rows: Sequence[Row], device: torch.device, step: int = 1) -> dict[str, Tensor]:
    """Padded on the right, where nothing counts, to a multiple of `step`: a model that looks back alone needs no mask."""
    from attittud.integrations.protected import pad

    padded = pad(rows)
    more = -padded["labels"].shape[1] % step
    silent = {"input_ids": 0, "labels": -100}
    return {name: F.pad(padded[name], (0, more), value=value).to(device) for name, value in silent.items()}
