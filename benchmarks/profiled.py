"""Where a refresh spends its time on the device, kernel by kernel.

python -m benchmarks.profiled > benchmarks/profiled.txt      # needs a GPU, half a minute
"""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile

from attittud.basis.orthonormal import orthonormalise_
from benchmarks.methods import Guided
from benchmarks.results import revision
from benchmarks.workloads import SPECS, Workload

REFRESHES = (("wrn22", "hooks", True, 5, 64), ("wrn22", "loop", False, 5, 64), ("roberta512", "hooks", False, 10, 32))
STEPS, SIZE, SHOWN = 3, 85_648_128, 16


def kernels(guided: Guided, refresh: bool) -> dict[str, tuple[float, float]]:
    """Milliseconds and launches of each kernel in a step."""
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(STEPS):
            guided.step(refresh)
        torch.cuda.synchronize()
    return {e.key: (e.self_device_time_total / STEPS / 1e3, e.count / STEPS) for e in found.key_averages()}


def show_refresh(job: str, engine: str, frozen: bool, k: int, m: int) -> None:
    guided = Guided(Workload(SPECS[job], m=m, device="cuda", tiny=False, seed=0), k, engine, frozen=frozen)
    for refresh in (True, False, True, False):
        guided.step(refresh)
    torch.cuda.synchronize()
    first, second = kernels(guided, True), kernels(guided, False)
    sums = [sum(time for time, _ in found.values()) for found in (first, second)]
    print(f"{job} {engine}: {sums[0]:.2f} ms a step with a refresh, {sums[1]:.2f} without")
    more = sorted(((first[key][0] - second.get(key, (0, 0))[0], key) for key in first), reverse=True)
    for time, key in more[:SHOWN]:
        print(f"  {time:7.3f} ms  {key[:110]}")


def show_orthonormalisation(k: int) -> None:
    rows = torch.randn(k, SIZE, device="cuda")
    orthonormalise_(rows.clone())
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        orthonormalise_(rows)
        torch.cuda.synchronize()
    print(f"orthonormalise k = {k}, D = {SIZE:,}")
    for event in sorted(found.key_averages(), key=lambda e: -e.self_device_time_total)[:4]:
        print(f"  {event.self_device_time_total / 1e3:7.3f} ms  {event.key[:110]}")


if __name__ == "__main__":
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, revision {revision()}")
    for settings in REFRESHES:
        show_refresh(*settings)
    for rank in (5, 10, 20):
        show_orthonormalisation(rank)
