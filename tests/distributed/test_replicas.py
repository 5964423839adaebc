"""Workers with a replica of the model each give the update of one process on the joined batch."""

import math
import time

import pytest
import torch
from oracle import error
from processes import outcomes, run
from scenarios import MODELS, SCENARIOS, World, play, play_all

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
FP64 = [(name, torch.float64) for name in (*SCENARIOS, *MODELS)]
FP32 = [
    (name, torch.float32) for name in ("sketch", "svd", "exact", "mean", "canonical", "sketch include_mean", "named")
]
FEW = [(name, torch.float64) for name in ("sketch", "accumulation", "narrowed", "unused")]
FOUR = [(name, torch.float64) for name in (*SCENARIOS, "unused")]
CASES = {2: [*(("ddp", *case) for case in FP64 + FP32), *(("group", *case) for case in FEW)]}
CASES[4] = [("ddp", *case) for case in FOUR]
NORMS = ("neutral", "captured_auxiliary", "captured_primary", "cosine")


@pytest.fixture(scope="module")
def results():
    """All scenarios in one group of two and one group of four workers: starting processes is what takes time."""
    return {count: run(count, play_all, CASES[count], limit=150) for count in CASES}


@pytest.fixture(scope="module")
def one():
    found = {}

    def joined(scenario, dtype):
        if (scenario, dtype) not in found:
            found[scenario, dtype] = play("one", scenario, dtype)
        return found[scenario, dtype]

    return joined


@pytest.mark.parametrize(("count", "case"), [(count, case) for count in CASES for case in CASES[count]], ids=str)
def test_update_is_that_of_the_joined_batch(results, one, count, case):
    grads, reports = one(*case[1:])
    for found in results[count]:
        assert len(found[case][0]) == len(grads)
        for got, want in zip(found[case][0], grads, strict=True):
            assert error(got, want) < TOLERANCE[case[2]]
        for got, want in zip(found[case][1], reports, strict=True):
            check_report(got, want, TOLERANCE[case[2]] ** 0.5)


def check_report(got, want, tolerance):
    assert got.keys() == want.keys()
    for name, value in want.items():
        if math.isnan(got[name]):
            assert name.split("/")[-1] in NORMS
        else:
            assert got[name] == pytest.approx(value, rel=tolerance, abs=tolerance), name


@pytest.mark.parametrize(
    ("scenario", "stated"),
    [("sketch", [True, False, True]), ("norms in every step", [True] * 3), ("canonical", [True] * 3)],
)
def test_steps_whose_report_states_norms(results, scenario, stated):
    for _, reports in (found["ddp", scenario, torch.float64] for found in results[2]):
        assert [not math.isnan(report[name]) for report in reports for name in NORMS] == [
            yes for yes in stated for _ in NORMS
        ]


def test_every_worker_has_the_very_same_gradients(results):
    for count, found in results.items():
        for case in CASES[count]:
            for other in found[1:]:
                for mine, theirs in zip(found[0][case][0], other[case][0], strict=True):
                    assert all(torch.equal(mine[name], theirs[name]) for name in mine), (count, case)


# ---------------------------------------------------------------------------------------------------- other behaviour


def twenty_steps(w, **options):
    """Train with Adam on batches that differ by worker and step; the parameters at the end."""
    guide = w.guide(refresh_every=5, **options)
    optimizer = torch.optim.Adam(w.model.parameters(), lr=0.01)
    for i in range(20):
        at = w.share(i % 6, i % 6 + 18)
        guide.backward(primary=w.losses(at), auxiliary=w.problem.loss(w.even(i % 6, i % 6 + 18)))
        optimizer.step()
        optimizer.zero_grad()
    return {name: p.detach().clone() for name, p in w.inner.named_parameters()}


def behaviour():
    """Several checks that share one group of processes; each entry is judged by a test of its own."""
    found = {"twenty": [twenty_steps(World("ddp", torch.float32), basis=b) for b in ("sketch", "exact", "random")]}
    w = World("ddp")
    guide = w.guide()
    guide.backward(primary=w.losses(w.share(0, 12)), auxiliary=w.problem.loss(w.even(0, 12)))
    before = {name: p.grad.clone() for name, p in w.inner.named_parameters()}
    w.optimizer.zero_grad()
    # An ordinary step through the wrapper still works: its reducer was not disturbed.
    p = w.problem
    features = w.model(p.xp[w.even(0, 12)], "primary").square().mean() + w.problem.loss(w.even(0, 12))
    features.backward()
    found["ddp"] = {name: p.grad.clone() for name, p in w.inner.named_parameters()}
    w.optimizer.zero_grad()
    # Different guides on the workers.
    try:
        w.guide(seed=w.number).backward(primary=w.losses(w.share(0, 12)), auxiliary=w.problem.loss(w.even(0, 12)))
        found["other guide"] = "no error"
    except ValueError as error:
        found["other guide"] = str(error)
    found["names"] = sorted(before)
    found["state"] = guide.state_dict()
    return found


@pytest.fixture(scope="module")
def behaved():
    return run(2, behaviour)


def test_parameters_are_bitwise_equal_after_twenty_steps(behaved):
    for first, second in zip(*(found["twenty"] for found in behaved), strict=True):
        assert all(torch.equal(first[name], second[name]) for name in first)
    for index, basis in enumerate(("sketch", "exact", "random")):
        alone = twenty_steps(World("one", torch.float32), basis=basis)
        assert error(behaved[0]["twenty"][index], alone) < 1e-3


def test_the_wrapper_can_still_be_used_as_such(behaved):
    w = World("one")
    p = w.problem
    halves = [slice(0, 6), slice(6, 12)]
    loss = sum(w.model(p.xp[at], "primary").square().mean() + p.loss(at) for at in halves) / 2
    loss.backward()
    for found in behaved:
        assert error(found["ddp"], p.grads()) < 1e-12


def test_different_guides_are_noticed(behaved):
    for found in behaved:
        assert "workers [1]" in found["other guide"] and "seed" in found["other guide"]


def test_state_is_that_of_one_process(behaved):
    """Workers hold the same V, and one process can go on with it."""
    w = World("one")
    guide = w.guide()
    guide.backward(primary=w.losses(slice(0, 12)), auxiliary=w.problem.loss(slice(0, 12)))
    for found in behaved:
        assert torch.equal(found["state"]["basis"], behaved[0]["state"]["basis"])
        assert torch.allclose(found["state"]["basis"], guide.state_dict()["basis"], atol=1e-12)
    guide.load_state_dict(behaved[0]["state"])


def test_without_other_workers_there_must_be_examples():
    w = World("one")
    with pytest.raises(TypeError, match="only a worker of several"):
        w.guide().backward(primary=None, auxiliary=w.problem.loss())
    with pytest.raises(TypeError, match="auxiliary 'b'"):
        w.guide().backward(primary=w.problem.losses(), auxiliary={"a": w.problem.loss(), "b": None})
    with pytest.raises(ValueError, match="report_norms"):
        w.guide(report_norms="never")


def one_dies():
    w = World("ddp")
    guide = w.guide()
    for i in range(3):
        if w.number == 1 and i == 2:
            raise SystemExit("this worker dies")
        guide.backward(primary=w.losses(w.share(0, 12)), auxiliary=w.problem.loss(w.even(0, 12)))


def one_falls_asleep():
    w = World("group")
    if w.number == 1:
        time.sleep(10)
        return
    w.guide().backward(primary=w.losses(w.share(0, 12)), auxiliary=w.problem.loss(w.even(0, 12)))


@pytest.mark.parametrize("target", [one_dies, one_falls_asleep])
def test_a_lost_worker_makes_the_others_fail_with_a_message(target):
    first, _ = outcomes(2, target, patience=4, limit=60)
    assert "worker 0 of 2" in first["error"] and "Another worker has died" in first["error"]
    assert "not done after" not in first["error"]
