"""Timings of a shared machine come from its fastest cores."""

import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from benchmarks.timing import FastCores

needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system cannot pin threads"
)


class OneCore(FastCores):
    USED = 1

    def _time(self, core):
        """The last core is the fastest."""
        super()._time(core)
        return 1.0 + (max(self._all) - core)


@pytest.fixture
def own_cores():
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("needs two cores")
    yield sorted(before)
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), before)


@needs_affinity
def test_all_threads_move_to_the_fastest_core(own_cores):
    done, found = threading.Event(), []
    other = threading.Thread(target=lambda: (done.wait(), found.append(os.sched_getaffinity(0))))
    other.start()
    cores = OneCore()
    cores.choose(torch.device("cuda"))
    done.set()
    other.join()
    assert os.sched_getaffinity(0) == {own_cores[-1]} == found[0]
    assert cores.spread == 1.0 + own_cores[-1] - own_cores[0]


@needs_affinity
def test_a_measurement_on_a_cpu_stays_where_it_is(own_cores):
    OneCore().choose(torch.device("cpu"))
    assert os.sched_getaffinity(0) == set(own_cores)


@needs_affinity
def test_cores_are_compared_again_only_after_a_while(own_cores):
    cores = OneCore()
    cores.choose(torch.device("cuda"))
    os.sched_setaffinity(0, set(own_cores))
    cores.choose(torch.device("cuda"))
    assert os.sched_getaffinity(0) == set(own_cores)
    cores.EVERY = 0.0
    cores.choose(torch.device("cuda"))
    assert os.sched_getaffinity(0) == {own_cores[-1]}
