"""Says before the first refresh whether V fits, and what would."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from attittud.parameters import Layout

GIB = 2**30


def available_bytes(device: torch.device) -> int | None:
    """Memory that can still be taken on a device; None where that cannot be known."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type == "cpu":
        try:
            for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
        except OSError:
            pass
        try:
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError, AttributeError):
            return None
    return None


def needed_bytes(size: int, rank: int, working_rows: int, storage: torch.dtype, arithmetic: torch.dtype) -> int:
    """V as stored, the rows a refresh works on, and three gradient vectors."""
    return size * (rank * storage.itemsize + (working_rows + 3) * arithmetic.itemsize)


def check_fits(layout: Layout, rank: int, working_rows: int, storage: torch.dtype) -> None:
    """Raise MemoryError, with settings that do fit, where a refresh cannot succeed."""
    available = available_bytes(layout.device)
    needed = needed_bytes(layout.size, rank, working_rows, storage, layout.dtype)
    if available is None or needed <= available:
        return

    def largest_rank(dtype: torch.dtype) -> int:
        per_rank = layout.size * (dtype.itemsize + layout.dtype.itemsize)
        return max(0, (available - 3 * layout.size * layout.dtype.itemsize) // per_rank)

    cures = []
    if 0 < (plain := largest_rank(storage)) < rank:
        cures.append(f"rank={plain}")
    if (half := largest_rank(torch.bfloat16)) > 0 and half > plain:
        cures.append(f"basis_dtype=torch.bfloat16 with rank={min(rank, half)}")
    if working_rows > rank:
        cures.append("basis='sketch', which works on no more rows than it keeps")
    cures.append("parameters= to decompose only a part of the model, such as its last layers")
    raise MemoryError(
        f"a basis of rank {rank} over {layout.size:,} shared parameters needs {needed / GIB:.2f} GiB on {layout.device} "
        f"({rank} stored and {working_rows} working rows, 3 gradient vectors), but {available / GIB:.2f} GiB are free. "
        f"Settings that fit: {'; '.join(cures)}."
    )
