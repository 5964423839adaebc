"""The code that measures: what is timed, what is divided by what, and that every method does its
work.
"""

from functools import partial

import pytest
import torch

from attittud import Guide
from benchmarks import eager, judges, methods, steps
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


def test_a_turn_is_divided_by_the_warm_multitask_steps_on_both_sides(monkeypatch):
    log, slower = [], iter(float(2**n) for n in range(100))
    plain = [4.0, 9.0]  # without and with a refresh
    times = {
        "multitask": slower,
        "attittud loop": plain,
        "two passes": plain,
        "multitask, one thread": plain,
        "two passes, one thread": plain,
    }
    turns = []
    monkeypatch.setattr(eager, "summary", lambda found: turns.append(found) or {})
    monkeypatch.setattr(eager, "seconds_of", clock(log, times))
    monkeypatch.setattr(eager, "IN_ONE_THREAD", ())
    monkeypatch.setattr(eager, "warm_up", lambda method: None)
    makers = {
        name: partial(Timed, name, log, has_refresh=name == "attittud loop") for name in times
    }
    makers["attittud auto"] = partial(Timed, "attittud auto", log, same_as="attittud loop")
    monkeypatch.setattr(eager, "methods_for", lambda work, k, engines: makers)
    monkeypatch.setattr(eager.Pairs, "measure", lambda self, pairs: None)
    monkeypatch.setattr(eager.Pairs, "ratios", lambda self: {})
    found = eager.measure("wrn22", device="cpu", quick=True, seed=0, seconds=100)
    assert found["methods"]["attittud auto"] == {"same_as": "attittud loop"}
    assert not [entry for entry in log if entry[0] == "attittud auto"]
    # Every timed step follows a step of the same method.
    assert all(log[at - 1][0] == entry[0] for at, entry in enumerate(log) if "timed" in entry)
    beside = [entry for entry in log if entry == ("multitask", False, "timed")]
    assert len(beside) > 2
    ours = turns[list(makers).index("attittud loop")]
    assert [(turn.plain, turn.refresh) for turn in ours] == [([4.0] * eager.PLAIN, 9.0)] * 2
    # The multitask row itself takes three of these times, between those of its neighbours.
    assert [turn.multitask for turn in ours] == [(2.0**4 + 2.0**5) / 2, (2.0**13 + 2.0**14) / 2]


def test_two_passes_do_the_work_of_one():
    grads = []
    for kind in (methods.Multitask, methods.TwoPasses):
        work = tiny()
        kind(work, 2).backward(False)
        grads.append([p.grad for p in work.model.parameters()])
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("kind", [methods.MultitaskInOneThread, methods.TwoPassesInOneThread])
def test_passes_in_one_thread_run_in_the_calling_thread(kind, monkeypatch):
    seen = []
    monkeypatch.setattr(
        kind.__base__, "backward", lambda self, refresh: seen.append(multithreading())
    )
    multithreading = torch._C._is_multithreading_enabled
    kind(tiny(), 2).backward(False)
    assert seen == [False] and multithreading()


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


def test_a_guide_refreshes_when_it_is_told_to():
    method = methods.Guided(tiny(), 2, "loop")
    counts = []
    for refresh in (True, False, True, False):
        method.step(refresh)
        counts.append(method.guide._schedule.count)
    assert counts == [1, 1, 2, 2]


@pytest.mark.parametrize(("half", "chosen"), [(True, "loop"), (False, "batched")])
def test_auto_is_the_engine_that_it_chose(half, chosen):
    work = tiny()
    work.half = torch.bfloat16 if half else None  # then torch cannot vectorise BatchNorm
    method = methods.Guided(work, 2, "auto")
    method.step(True)
    assert method.same_as == f"attittud {chosen}"


def test_as_many_judges_are_asked_as_the_benchmark_says(monkeypatch):
    asked, backward = [], Guide.backward

    def counted(self, *args, judge=None, **options):
        asked.append(None)
        if judge is None:
            return backward(self, *args, **options)

        def losses():
            found = judge()
            asked[-1] = len(found)
            return found

        return backward(self, *args, judge=losses, **options)

    monkeypatch.setattr(Guide, "backward", counted)
    monkeypatch.setattr(judges, "JUDGES", 3)
    actions = judges.actions(tiny())
    asked.clear()
    for name in ("fixed", "auto", "auto, judges asked"):
        actions[name]()
    assert asked == [None, None, 3]


def test_there_are_sixteen_of_them_in_every_fourth_step():
    assert (judges.JUDGES, judges.JUDGE_EVERY) == (16, 4)
    assert SPECS["wrn22"].m >= judges.JUDGES


def test_peaks_belong_to_their_kinds_of_step(monkeypatch):
    bench = steps.Bench(
        SPECS["wrn22"].tiny(), steps.Point(2, 4), device="cpu", quick=True, seed=0, seconds=0.1
    )
    log = []

    def peak(action, _device):
        action()
        return 7 if log[-1][1] else 5

    monkeypatch.setattr(steps, "peak_bytes", peak)
    monkeypatch.setattr(steps, "allocated", lambda _device: 1)
    bench.prepare("ours", partial(Timed, "ours", log, has_refresh=True))
    assert (bench.rows["ours"]["peak_refresh"], bench.rows["ours"]["peak_step"]) == (6, 4)


def test_gradients_of_an_earlier_method_do_not_count_as_memory(monkeypatch):
    bench = steps.Bench(
        SPECS["wrn22"].tiny(), steps.Point(2, 4), device="cpu", quick=True, seed=0, seconds=0.1
    )
    alive = []
    monkeypatch.setattr(
        steps, "allocated", lambda _: alive.append([p.grad for p in bench.work.model.parameters()])
    )
    makers = methods.methods_for(bench.work, 2, ["auto"])
    for name in ("attittud auto", "authors' algorithm"):
        bench.prepare(name, makers[name])
    assert "same_as" in bench.rows["attittud auto"]  # it is only run to see its engine
    assert len(alive) == 2 and not any(grad is not None for grads in alive for grad in grads)


def test_a_cycle_is_a_refresh_and_nine_steps():
    log = []
    steps.cycle({kind: partial(log.append, kind) for kind in ("refresh", "step")})
    assert log == ["refresh", *["step"] * 9]
    log.clear()
    steps.cycle({"step": partial(log.append, "step")})
    assert log == ["step"] * 10
