"""Starts worker processes that talk over gloo, and waits for them no longer than a given limit."""

import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def _worker(number: int, count: int, folder: str, patience: float, target: Callable[..., Any], args: tuple) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/meeting",
            rank=number,
            world_size=count,
            timeout=timedelta(seconds=patience),
        )
        outcome = {"result": target(*args)}
    except BaseException:
        outcome = {"error": traceback.format_exc()}
    torch.save(outcome, f"{folder}/{number}.part")
    Path(f"{folder}/{number}.part").rename(f"{folder}/{number}.pt")
    if "result" in outcome:
        dist.destroy_process_group()


def outcomes(
    count: int, target: Callable[..., Any], *args: Any, limit: float = 90, patience: float = 60
) -> list[dict[str, Any]]:
    """The outcome of `target(*args)` in each of `count` processes: a result, an error, or nothing.

    Processes that are not done after `limit` seconds are ended. `patience` is the time-out of the process group.
    """
    with tempfile.TemporaryDirectory() as folder:
        # One server imports torch, its children are forked from there: a process then starts in no time.
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(["torch._dynamo", "torch.distributed.fsdp", "tests.helpers.scenarios"])
        processes = [
            context.Process(target=_worker, args=(number, count, folder, patience, target, args))
            for number in range(count)
        ]
        for process in processes:
            process.start()
        end = time.monotonic() + limit
        for process in processes:
            process.join(max(0.0, end - time.monotonic()))
        late = [number for number, process in enumerate(processes) if process.is_alive()]
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
        found = [Path(folder) / f"{number}.pt" for number in range(count)]
        results = [torch.load(path, weights_only=False) if path.exists() else {} for path in found]
    for number in late:
        results[number].setdefault("error", f"not done after {limit} seconds")
    return results


def run(count: int, target: Callable[..., Any], *args: Any, limit: float = 90) -> list[Any]:
    """The results of all workers; an error in one of them is raised here."""
    found = outcomes(count, target, *args, limit=limit)
    errors = [f"worker {number}:\n{x.get('error', 'died')}" for number, x in enumerate(found) if "result" not in x]
    assert not errors, "\n".join(errors)
    return [x["result"] for x in found]
