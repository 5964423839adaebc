"""Several processes that share the runs of experiments and the device: small networks leave much of a GPU idle."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attittud_lab.output.interrupts import deaf_to_interrupts, worker_processes
from experiments.reproduce.run import Outcome, reproduce


def side_by_side(count: int, names: Sequence[str], data: Path | None, *, quiet: bool, **settings: Any) -> Outcome:
    """`reproduce` in `count` processes at once.

    Processes take turns on a GPU unless its multi-process service (MPS) runs; then their kernels overlap.
    """
    with worker_processes(count) as pool:
        with deaf_to_interrupts():
            begun = [pool.submit(_work, number, count, names, data, quiet, settings) for number in range(1, count + 1)]
        outcomes = [future.result() for future in begun]
    finished = {part for outcome in outcomes for part in outcome.finished}
    every = [*outcomes[0].finished, *outcomes[0].missing]
    return Outcome(
        [part for part in every if part in finished],
        [part for part in every if part not in finished],
        outcomes[0].results,
    )


def _work(
    number: int, count: int, names: Sequence[str], data: Path | None, quiet: bool, settings: dict[str, Any]
) -> Outcome:
    import torch
    from rich.console import Console

    from attittud_lab.compare.progress import Lines, Runs

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // count))
    progress = Runs() if quiet else Lines(Console(), f"{number}: ")
    return reproduce(names, data, progress=progress, **settings)
