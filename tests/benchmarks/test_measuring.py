"""The code that measures: what is timed, what is divided by what, and that every method does its
work.
"""

import pytest
import torch

from benchmarks import eager, methods
from benchmarks.methods import Method
from benchmarks.workloads import SPECS, Workload

CPU = torch.device("cpu")


def tiny() -> Workload:
    return Workload(SPECS["wrn22"].tiny(), m=4, device="cpu", tiny=True, seed=0)


class Timed(Method):
    """A method whose steps are only noted."""

    def __init__(self, name, log, *, has_refresh=False, same_as=None):
        self.name, self.log, self.has_refresh, self._same = name, log, has_refresh, same_as

    @property
    def same_as(self):
        return self._same

    def backward(self, refresh):
        raise NotImplementedError

    def step(self, refresh):
        self.log.append((self.name, refresh))


def clock(log, times):
    """Stands in for `seconds`: the action's step has the time of its method, and is marked as
    timed.
    """

    def seconds(action, _device):
        action()
        log[-1] = (*log[-1], "timed")
        found = times[log[-1][0]]
        return next(found) if hasattr(found, "__next__") else found[log[-1][1]]

    return seconds


def test_pairs_divide_a_guided_step_by_passes_without_a_guide(monkeypatch):
    log = []
    times = {"two passes": [2.0], "two passes, one thread": [1.0], "attittud loop": [3.0]}
    monkeypatch.setattr(eager, "seconds_of", clock(log, times))
    pairs = eager.Pairs({name: Timed(name, log) for name in times}, CPU)
    pairs.measure(5)
    found = pairs.ratios()
    assert found["plain_over_two_passes"]["attittud loop"]["median"] == 1.5
    assert found["plain_over_two_passes_in_one_thread"]["attittud loop"]["median"] == 3.0
    assert pairs.count == 5 and len(log) == 15


def test_two_passes_do_the_work_of_one():
    grads = []
    for kind in (methods.Multitask, methods.TwoPasses):
        work = tiny()
        kind(work, 2).backward(False)
        grads.append([p.grad for p in work.model.parameters()])
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("name", ["multitask", "two passes", "attittud loop", "authors' algorithm"])
def test_a_step_trains_the_model(name):
    work = tiny()
    method = methods.methods_for(work, 2, ["loop"])[name]()
    for refresh in method.kinds:
        before = [p.clone() for p in work.model.parameters()]
        method.step(refresh)
        assert all(
            not torch.equal(a, p) for a, p in zip(before, work.model.parameters(), strict=True)
        )
