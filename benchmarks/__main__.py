"""Measure, and print one table: `python -m benchmarks` (see --help)."""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

# Some virtual machines announce AMX and then kill the process that uses it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch

from benchmarks import calls, eager, judges, passes, steps
from benchmarks.figures import table
from benchmarks.results import RESULTS, Record, provenance
from benchmarks.workloads import SPECS

JOBS = ["eager", "judges", "calls", "passes", *SPECS]
REPEATED = {"eager", "judges"}
Measurements = dict[str, Callable[[], dict[str, Any]]]


def points(job: str, settings: dict[str, Any]) -> Measurements:
    """The measurements of a job by the name of their point, the base point first."""
    quick = settings["quick"]
    if job == "eager":
        longer = settings | {"seconds": 5 * settings["seconds"]}
        return {name: partial(eager.measure, name, **longer) for name in eager.MODELS}
    if job == "judges":
        return {name: partial(judges.measure, name, **settings) for name in judges.MODELS}
    if job == "calls":
        return {name: partial(calls.measure, *setting) for name, setting in calls.POINTS.items()}
    if job == "passes":
        return {
            passes.name(*item): partial(passes.measure, *item, **settings)
            for item in passes.points(quick)
        }
    return {
        point.name: partial(steps.measure, job, point, **settings)
        for point in steps.points(SPECS[job], quick)
    }


def device(name: str) -> str:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA has the latter
        raise argparse.ArgumentTypeError(
            f"no device {name!r} here ({str(error).splitlines()[0]})"
        ) from error
    return name


def folder(name: str) -> Path:
    try:
        Path(name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write to {name!r} ({error.strerror})") from error
    return Path(name)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Time and memory of a training step: plain multitask, ATTITTUD with each engine, the authors' "
        "algorithm, TorchJD and Opacus, on the same model and data in one process. Results are written after every "
        "point; points that are already there are not measured again. `python -m benchmarks.page` makes "
        "docs/cost.md from them.",
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: a check that all of it runs, in seconds"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=JOBS,
        default=JOBS,
        metavar="JOB",
        help=f"of {', '.join(JOBS)} (default: all)",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="measure points that are already there once more, and keep both (eager and judges only)",
    )
    parser.add_argument(
        "--base", action="store_true", help="only the base point of each job, no sweeps"
    )
    parser.add_argument("--budget", type=float, help="start no further point after so many seconds")
    parser.add_argument(
        "--out",
        type=folder,
        help="folder of the results (default: benchmarks/results on a GPU; else nothing is kept). "
        "In an empty folder everything is measured again",
    )
    parser.add_argument(
        "--device",
        type=device,
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="cuda, cuda:1 or cpu (default: a GPU where there is one; a CPU runs tiny sizes only)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights and data (default: 0)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=8.0,
        help="at most so long per point and mode; eager steps five, judges six times as long",
    )
    options = parser.parse_args()
    if options.again and not set(options.only) <= REPEATED:
        parser.error(
            f"--again needs --only with {' or '.join(sorted(REPEATED))}: pages join runs of these only"
        )
    return options


def main() -> None:
    options = arguments()
    # Warnings about vmap without a batching rule and about Opacus' hooks on token numbers: the
    # figures show what is slow.
    warnings.filterwarnings("ignore", message=".*batching rule.*|.*backward hook is firing.*")
    start = time.perf_counter()
    quick = options.quick or options.device == "cpu"
    if quick and not options.quick:
        print("No GPU: tiny sizes, as with --quick. The figures say nothing about a real model.")
    if options.device == "cpu":
        torch.set_num_threads(
            1
        )  # on a busy machine several threads wait for each other longer than tiny sizes take
    keep = options.out is not None or not quick
    out = options.out or RESULTS
    about = provenance(options.device, options.seed, quick)
    settings = {
        "device": options.device,
        "quick": quick,
        "seed": options.seed,
        "seconds": 0.2 if quick else options.seconds,
    }
    measured = {}
    for job in options.only:
        # The number of calls is the same for all sizes and devices.
        record = Record(
            out if keep else None, job, about | {"quick": False} if job == "calls" else about
        )
        measured[job] = record.data
        todo = list(points(job, settings).items())
        for name, action in todo[:1] if options.base and job in SPECS else todo:
            point = record.next_run(name) if options.again else name
            if point in record:
                continue
            if options.budget is not None and time.perf_counter() - start > options.budget:
                print(
                    f"{job}: {point} and what follows is left for another run, the budget is spent"
                )
                break
            print(f"{job}: {point} ({time.perf_counter() - start:.0f} s)", flush=True)
            try:
                record.measure(point, action)
            except (ImportError, torch.OutOfMemoryError) as error:
                print(f"    left out: {type(error).__name__}: {error}")
    print(table(measured))


if __name__ == "__main__":
    main()
