"""Two and four workers, with replicas or shards of the model, give the update of one process on the
joined batch.
"""

import math
import os
import signal

import pytest
import torch
import torch.distributed as dist

from tests.helpers.oracle import error
from tests.helpers.processes import run
from tests.helpers.scenarios import MODELS, SCENARIOS, play, play_all

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
NORMS = ("neutral", "captured_auxiliary", "captured_primary", "cosine")
BASES = ("sketch", "svd", "exact", "mean", "random", "canonical")


# `fully_shard` itself takes no scalar parameters, and demands that all workers run the same
# modules.
NOT_IN_SHARDS = {"odd", "other heads", "engine hooks", "engine hooks, basis_losses"}


COSTLY = {"svd include_mean", "basis_losses, svd"}  # a hundred joint backward passes per refresh


def cases(kind, *names, dtype=torch.float64):
    return [(kind, name, dtype) for name in names]


FEW = ("sketch", "basis_losses", "accumulation")


# Every basis is computed in float32 by two workers, and by four in float64: the type and the number
# have nothing in common.
CASES = {
    ("replicas", 2): [
        *cases("ddp", *SCENARIOS, *MODELS),
        *cases("ddp", *BASES, "sketch include_mean", "named", dtype=torch.float32),
        *cases("group", "sketch", "accumulation", "narrowed", "unused"),
        *cases("ddp static", *FEW),
        *cases("ddp held", *FEW, "named"),
    ],
    ("replicas", 4): [
        *cases("ddp", *BASES, *FEW[1:], "one forward", "auto, named, three verbs", "unused"),
        *cases("ddp", "sketch", dtype=torch.float32),
    ],
    ("shards", 2): [
        *cases(
            "fsdp", *(name for name in (*SCENARIOS, *MODELS) if name not in NOT_IN_SHARDS | COSTLY)
        ),
        *cases("fsdp", *BASES, "sketch include_mean", dtype=torch.float32),
        *cases("fsdp kept", *FEW),
    ],
    ("shards", 4): [
        *cases(
            "fsdp",
            *BASES,
            "accumulation",
            "named",
            "sketch include_mean",
            "one forward",
            "not finite",
        ),
        *cases("fsdp", "sketch", "mean", dtype=torch.float32),
        *cases("hsdp", *FEW, "random"),
    ],
}


def crashes_once(mark):
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "well"


def crashes():
    os.kill(os.getpid(), signal.SIGKILL)


def one_crashes_beside_a_mistake(mark):
    if dist.get_rank():
        crashes_once(mark)
    assert mark.with_suffix(".never").exists(), "wrong number"


def test_a_crash_beside_another_error_gets_no_second_start(tmp_path):
    with pytest.raises(AssertionError, match="wrong number"):
        run(2, one_crashes_beside_a_mistake, tmp_path / "mark")


def test_a_crashed_worker_starts_once_more_and_not_twice(tmp_path):
    with pytest.warns(UserWarning, match="A worker crashed.*\n.*\n.*exit code -9"):
        assert run(1, crashes_once, tmp_path / "mark") == ["well"]
    with (
        pytest.warns(UserWarning, match="A worker crashed"),
        pytest.raises(AssertionError, match="exit code -9"),
    ):
        run(1, crashes)


@pytest.fixture(scope="module")
def results():
    """All scenarios of a kind in one group of workers: starting processes is what takes time."""
    found = {}

    def of(kind, count):
        if (kind, count) not in found:
            found[kind, count] = run(count, play_all, CASES[kind, count], limit=240)
        return found[kind, count]

    return of


@pytest.fixture(scope="module")
def one():
    found = {}

    def joined(scenario, dtype):
        if (scenario, dtype) not in found:
            found[scenario, dtype] = play("one", scenario, dtype)
        return found[scenario, dtype]

    return joined


# (These stand before the others so that replicas come first: run in parallel, neighbours share the
# results of one group.)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "stated"),
    [
        ("sketch", [True, False, True]),
        ("norms in every step", [True] * 3),
        ("canonical", [True] * 3),
    ],
)
def test_which_scenarios_report_norms(results, scenario, stated):
    for _, reports in (found["ddp", scenario, torch.float64] for found in results("replicas", 2)):
        assert [not math.isnan(report[name]) for report in reports for name in NORMS] == [
            yes for yes in stated for _ in NORMS
        ]


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_every_replica_has_the_very_same_gradients(results, count):
    found = results("replicas", count)
    for case in CASES["replicas", count]:
        for other in found[1:]:
            for mine, theirs in zip(found[0][case][0], other[case][0], strict=True):
                assert all(torch.equal(mine[name], theirs[name]) for name in mine), case


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "count", "case"),
    [(*which, case) for which, several in CASES.items() for case in several],
    ids=str,
)
def test_update_equals_the_update_of_the_joined_batch(results, one, kind, count, case):
    grads, reports = one(*case[1:])
    tolerance = TOLERANCE[case[2]]
    for found in results(kind, count):
        assert len(found[case][0]) == len(grads)
        for got, want in zip(found[case][0], grads, strict=True):
            assert error(got, want) < tolerance
        for got, want in zip(found[case][1], reports, strict=True):
            check_report(got, want, tolerance**0.5, may_lack=NORMS if kind == "replicas" else ())


def check_report(got, want, tolerance, may_lack):
    """Replicas leave out what costs an exchange of the size of the model; on shards it costs a few
    bytes.
    """
    assert got.keys() == want.keys()
    for name, value in want.items():
        if not (name.split("/")[-1] in may_lack and math.isnan(got[name])):
            assert got[name] == pytest.approx(value, rel=tolerance, abs=tolerance, nan_ok=True), (
                name
            )
