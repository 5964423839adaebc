"""Processes that have imported everything, and workers among them that talk over gloo."""

import faulthandler
import os
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from attittud_lab.cli import main

CRASHED = "ended without a result, exit code"
LOST = (CRASHED, "by peer", "Another worker has died")  # what a crash makes of the workers


def ready_processes() -> ForkServerContext:
    """Processes that start in no time: a server imports what any test needs, once for all tests,
    and forks.

    (The first list of imports counts. Each test with a list of its own would find the server of
    another test. Nothing on it may import huggingface_hub, which reads the environment only then.)
    """
    context = mp.get_context("forkserver")
    lab = [
        "attittud_lab.cli",
        "attittud_lab.compare.run",
        "attittud_lab.training.train",
        "sklearn.metrics",
    ]
    library = [
        "torch._dynamo",
        "torch.distributed.fsdp",
        "attittud.guide",
        "tests.helpers.scenarios",
    ]
    context.set_forkserver_preload([*library, *lab, "sklearn.datasets", "scipy.special", "pytest"])
    return context


def command(folder: Path, *arguments: str, **environment: str) -> ForkServerProcess:
    """Start `attittud` in a folder, where it writes the files out and err."""
    process = ready_processes().Process(target=_command, args=(folder, arguments, environment))
    process.start()
    return process


def _command(folder: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    os.environ |= environment
    os.chdir(folder)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    main(list(arguments))


def exit_code(program: str) -> int | None:
    """How a process ends that runs a program; negative, where a signal kills it."""
    process = ready_processes().Process(target=exec, args=(program, {"__name__": "program"}))
    process.start()
    process.join(300)
    process.kill()
    return process.exitcode


def _worker(
    number: int, count: int, folder: str, patience: float, target: Callable[..., Any], args: tuple
) -> None:
    torch.set_num_threads(1)
    faulthandler.enable()  # a crash says where
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
    """The outcome of `target(*args)` in each of `count` processes: a result or an error.

    Processes that are not done after `limit` seconds are ended. `patience` is the time-out of the
    process group.
    """
    with tempfile.TemporaryDirectory() as folder:
        context = ready_processes()
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
    for number, (result, process) in enumerate(zip(results, processes, strict=True)):
        if not result:
            result["error"] = (
                f"not done after {limit} seconds"
                if number in late
                else f"{CRASHED} {process.exitcode}"
            )
    return results


def run(count: int, target: Callable[..., Any], *args: Any, limit: float = 90) -> list[Any]:
    """The results of all workers; an error in one of them is raised here.

    After a crash all of them start once more, with a warning: a process of CI died once in a gather
    of DTensor's own, and in hundreds of other runs never. Any other error gets no second chance.
    """
    for last in (False, True):
        found = outcomes(count, target, *args, limit=limit)
        errors = [
            f"worker {number}:\n{x['error']}" for number, x in enumerate(found) if "error" in x
        ]
        texts = [x["error"] for x in found if "error" in x]
        crashed = any(text.startswith(CRASHED) for text in texts)
        if last or not crashed or not all(any(sign in text for sign in LOST) for text in texts):
            break
        warnings.warn("A worker crashed, all start once more\n" + "\n".join(errors), stacklevel=2)
    assert not errors, "\n".join(errors)
    return [x["result"] for x in found]
