"""The passes over V alone, against the bandwidth of a copy in the same run, as k and D grow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from attittud.basis.orthonormal import orthonormalise_
from attittud.kernels import lift_, products
from benchmarks.timing import Action, captured, copy_bandwidth, interleaved

BODY = 85_648_128  # about RoBERTa-base without its word embeddings


def points(quick: bool) -> Iterator[tuple[int, int]]:
    """(k, D)."""
    size = 20_000 if quick else BODY
    yield from ((k, size) for k in (5, 10, 20))
    yield from ((10, size // part) for part in (8, 4, 2))


def name(k: int, size: int) -> str:
    return f"k={k} D={size}"


def measure(
    k: int, size: int, *, device: str, quick: bool, seed: int, seconds: float
) -> dict[str, Any]:
    where = torch.device(device)
    torch.manual_seed(seed)
    rows = torch.randn(k, size, device=where)
    orthonormalise_(rows)
    x, y = torch.randn(size, device=where), torch.randn(size, device=where)
    # Factors of 1 leave the gradients of a repeated call as large as they were.
    weights, factor = (
        torch.randn(k, device=where).double() * 1e-3,
        torch.ones((), device=where).double(),
    )
    again = torch.randn(k, size, device=where)
    bandwidth = copy_bandwidth(where, size=k * size)
    actions: dict[str, Action] = {
        "projection": lambda: products(rows, x, y),
        "correction": lambda: lift_(rows, weights, x, y, 1.0, factor),
        "orthonormalise": lambda: orthonormalise_(again),
    }
    for action in actions.values():
        action()
        action()
    peak = None
    if where.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        orthonormalise_(again)
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
    repeats = 5 if quick else 30
    modes = {
        "eager": _mode(
            interleaved(actions, where, repeats=repeats, limit=seconds), k * size, bandwidth
        )
    }
    if where.type == "cuda":
        # Where the device alone is measured: launching takes as long for any D.
        pool = torch.cuda.graph_pool_handle()
        graphs = {what: captured(action, where, pool) for what, action in actions.items()}
        modes["graph"] = _mode(
            interleaved(graphs, where, repeats=repeats, limit=seconds), k * size, bandwidth
        )
    return {
        "k": k,
        "D": size,
        "copy_bytes_per_second": bandwidth,
        "orthonormalise_extra_bytes": peak,
        **modes,
    }


def _mode(times: dict[str, float], elements: int, bandwidth: float) -> dict[str, Any]:
    read = 4 * elements / bandwidth
    return {
        "seconds": times,
        "projection_and_correction_over_two_reads": (times["projection"] + times["correction"])
        / (2 * read),
        # Twice: a read for the Gram matrix, a read and a write for the transformation.
        "orthonormalise_over_its_traffic": times["orthonormalise"] / (6 * read),
    }
