"""Two and four workers give the update of one process on the joined batch."""

import math

import pytest
import torch

from tests.helpers.oracle import error
from tests.helpers.processes import run
from tests.helpers.scenarios import SCENARIOS, play, play_all

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
pytestmark = pytest.mark.slow
NORMS = ("neutral", "captured_auxiliary", "captured_primary", "cosine")


def cases(kind, *names, dtype=torch.float64):
    return [(kind, name, dtype) for name in names]


CASES = {
    ("replicas", 2): [
        *cases("ddp", *SCENARIOS, "transformer", "unused"),
        *cases("ddp", "svd", "random", dtype=torch.float32),
        *cases("group", "sketch", "accumulation"),
        *cases("ddp static", "sketch"),
        *cases("ddp held", "named"),
    ],
    # `fully_shard` demands that all workers run the same modules.
    ("shards", 2): [
        *cases(
            "fsdp", *(name for name in SCENARIOS if name not in ("other heads", "engine hooks"))
        ),
        *cases("fsdp", "transformer", "unused"),
        *cases("fsdp", "svd", "random", dtype=torch.float32),
        *cases("fsdp kept", "sketch"),
    ],
    # Some of the four workers have no example.
    ("replicas", 4): [
        *cases("ddp", "sketch", "exact", "accumulation", "one forward", "auto, named, three verbs"),
        *cases("ddp", "unused"),
    ],
    ("shards", 4): [
        *cases("fsdp", "sketch", "exact", "accumulation", "named", "one forward", "not finite"),
        *cases("hsdp", "sketch", "basis_losses", "random"),
    ],
}
FOUR = pytest.mark.nightly  # on few cores four workers are slow


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
@pytest.mark.parametrize(
    ("scenario", "stated"),
    [
        ("sketch", [True, False, True]),
        ("norms in every step", [True] * 3),
    ],
)
def test_which_scenarios_report_norms(results, scenario, stated):
    for _, reports in (found["ddp", scenario, torch.float64] for found in results("replicas", 2)):
        shown = [not math.isnan(report[name]) for report in reports for name in NORMS]
        assert shown == [yes for yes in stated for _ in NORMS]


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=FOUR)])
def test_every_replica_has_the_very_same_gradients(results, count):
    found = results("replicas", count)
    for case in CASES["replicas", count]:
        for other in found[1:]:
            for mine, theirs in zip(found[0][case][0], other[case][0], strict=True):
                assert all(torch.equal(mine[name], theirs[name]) for name in mine), case


@pytest.mark.parametrize(
    ("kind", "count", "case"),
    [
        pytest.param(kind, count, case, marks=FOUR if count == 4 else ())
        for (kind, count), several in CASES.items()
        for case in several
    ],
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
    """Replicas leave out what costs an exchange of the size of the model."""
    assert got.keys() == want.keys()
    for name, value in want.items():
        if not (name.split("/")[-1] in may_lack and math.isnan(got[name])):
            assert got[name] == pytest.approx(value, rel=tolerance, abs=tolerance, nan_ok=True), (
                name
            )
