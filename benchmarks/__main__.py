"""Measure, and print one table: `python -m benchmarks` (see --help)."""

from __future__ import annotations

import argparse
import os
import time
import warnings
from pathlib import Path

# Some virtual machines announce AMX and then kill the process that uses it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch

from benchmarks.figures import methods_table
from benchmarks.results import RESULTS, provenance, write
from benchmarks.steps import Bench
from benchmarks.timing import DEVICE
from benchmarks.workloads import SPECS


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
        description="Time and memory of a training step: plain multitask, ATTITTUD with each "
        "engine, the authors' algorithm and TorchJD, on the same model and data in one process. "
        "Jobs that are already in the folder are not measured again. `python -m benchmarks.page` "
        "makes docs/cost.md from benchmarks/results.",
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: a check that all of it runs, in seconds"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=SPECS,
        default=SPECS,
        metavar="JOB",
        help=f"of {', '.join(SPECS)} (default: all)",
    )
    parser.add_argument(
        "--out",
        type=folder,
        help="folder of the results (default: benchmarks/results on a GPU; else nothing is kept)",
    )
    parser.add_argument(
        "--device",
        type=device,
        default=DEVICE,
        help="cuda, cuda:1 or cpu (default: a GPU where there is one; a CPU runs tiny sizes only)",
    )
    parser.add_argument(
        "--seconds", type=float, default=40.0, help="at most so long per job and mode (40)"
    )
    return parser.parse_args()


def main() -> None:
    options = arguments()
    # vmap without a batching rule: the figures show what is slow.
    warnings.filterwarnings("ignore", message=".*batching rule.*")
    start = time.perf_counter()
    quick = options.quick or options.device == "cpu"
    if quick and not options.quick:
        print("No GPU: tiny sizes, as with --quick. The figures say nothing about a real model.")
    if options.device == "cpu":
        # On a busy machine several threads wait for each other longer than tiny sizes take.
        torch.set_num_threads(1)
    out = options.out
    limit = options.seconds
    if quick:
        limit = 0.2
    elif out is None:
        out = RESULTS
    for job in options.only:
        if out is not None and (out / f"{job}.json").exists():
            print(f"{job}: {out / f'{job}.json'} is there already")
            continue
        print(f"{job} ({time.perf_counter() - start:.0f} s)", flush=True)
        data = Bench(job, device=options.device, quick=quick, limit=limit).run()
        print(methods_table(data))
        if out is not None:
            about = {"provenance": provenance(options.device, quick)}
            write(out / f"{job}.json", about | data)


if __name__ == "__main__":
    main()
