"""Where a refresh spends its time on the device, kernel by kernel.

python -m benchmarks.profiled > benchmarks/profiled.txt      # needs a GPU, one minute
"""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile

from attittud.basis.orthonormal import orthonormalise_
from benchmarks.methods import Method, methods_for
from benchmarks.results import revision
from benchmarks.steps import ENGINES, note
from benchmarks.workloads import SPECS, Workload

REFRESHES = (
    ("wrn22", "attittud hooks, frozen BatchNorm"),
    ("wrn22", "attittud loop"),
    ("roberta128", "attittud batched"),
    ("roberta128", "TorchJD sketch, vmapped"),
    ("roberta512", "attittud hooks"),
)
STEPS, SIZE, SHOWN = 3, 85_648_128, 16


def kernels(method: Method, refresh: bool) -> dict[str, tuple[float, float]]:
    """Milliseconds and launches of each kernel in a step."""
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(STEPS):
            method.step(refresh)
        torch.cuda.synchronize()
    return {e.key: (e.self_device_time_total / STEPS / 1e3, e.count / STEPS) for e in found.key_averages()}


def show_refresh(job: str, name: str) -> None:
    spec = SPECS[job]
    work = Workload(spec, m=spec.m, device="cuda", tiny=False, seed=0)
    try:
        method = methods_for(work, spec.k, ENGINES)[name]()
        for refresh in (True, False, True, False):
            method.step(refresh)
    except Exception as error:  # a peer that is not installed
        print(f"{job}, {name}: {note(error)}")
        return
    torch.cuda.synchronize()
    first, second = kernels(method, True), kernels(method, False)
    sums = [sum(time for time, _ in found.values()) for found in (first, second)]
    print(f"{job}, {name}: {sums[0]:.2f} ms a step with a refresh, {sums[1]:.2f} without: {sums[0] - sums[1]:.2f} more")
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
