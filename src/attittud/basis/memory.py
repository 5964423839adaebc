"""Says before the first refresh whether V fits, and what would."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

import torch

from attittud.autograd.layout import Layout

GIB = 2**30


def available_bytes(device: torch.device) -> int | None:
    """Memory that can still be taken on a device; None where that cannot be known."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type == "cpu":
        try:
            lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
            free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
            return min(free, _container_bytes(free))
        except (OSError, StopIteration):
            pass
        try:
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError, AttributeError):
            return None
    return None


def _container_bytes(otherwise: int) -> int:
    """What the limit of a container (cgroup version 2) leaves."""
    try:
        limit, used = (
            Path("/sys/fs/cgroup", name).read_text(encoding="ascii") for name in ("memory.max", "memory.current")
        )
        return otherwise if limit.strip() == "max" else max(0, int(limit) - int(used))
    except (OSError, ValueError):
        return otherwise


def needed_bytes(size: int, rank: int, working_rows: int, storage: torch.dtype, arithmetic: torch.dtype) -> int:
    """V as stored, the rows a refresh works on, and three gradient vectors."""
    return size * (rank * storage.itemsize + (working_rows + 3) * arithmetic.itemsize)


def check_fits(layout: Layout, rank: int, working_rows: Callable[[int], int], storage: torch.dtype) -> None:
    """Raise MemoryError, with settings that do fit, where a refresh cannot succeed.

    `working_rows` says how many rows a refresh of some rank works on.
    """
    available = available_bytes(layout.device)
    if available is None:
        return

    def needed(rank: int, rows: int, storage: torch.dtype) -> int:
        return needed_bytes(layout.size, rank, rows, storage, layout.dtype)

    def largest_rank(rows: Callable[[int], int], storage: torch.dtype) -> int:
        return bisect_right(range(1, rank + 1), available, key=lambda r: needed(r, rows(r), storage))

    if needed(rank, working_rows(rank), storage) <= available:
        return
    cures = []
    plain, half = largest_rank(working_rows, storage), largest_rank(working_rows, torch.bfloat16)
    if plain:
        cures.append(f"rank={plain}")
    if half > plain:
        cures.append(f"basis_dtype=torch.bfloat16 with rank={half}")
    sketch = largest_rank(lambda r: r, storage)
    if sketch > plain:
        cures.append(f"basis='sketch' with rank={sketch}, which works on no more rows than it keeps")
    cures.append("parameters= to decompose only a part of the model, such as its last layers")
    cures.append("engine='implicit' with basis='exact', which stores no basis")
    rows = working_rows(rank)
    raise MemoryError(
        f"a basis of rank {rank} over {layout.size:,} shared parameters needs {needed(rank, rows, storage) / GIB:.2f} GiB on "
        f"{layout.device} ({rank} stored and {rows} working rows, 3 gradient vectors), but {available / GIB:.2f} GiB are free. "
        f"Settings that fit: {'; '.join(cures)}."
    )
