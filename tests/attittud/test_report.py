"""What the report of a step says, against the parts written out."""

import inspect
import re

import pytest
import torch
from torch import nn

from attittud import Eta, Guide, Report
from tests.helpers.oracle import expected, expected_for, with_mean
from tests.helpers.zoo import problem

PER_TASK = ("neutral", "helpful", "harmful", "agreement", "captured_auxiliary", "cosine")
FIELDS = (*PER_TASK, "captured_primary", "effective_rank", "refreshed", "skipped_refreshes")


def described(want, task, rows):
    """The report's numbers from explicit parts."""
    part, g_a, g_p = want.parts[task], want.g_a[task], want.g_p
    return {
        "neutral": part.neutral.norm(),
        "helpful": part.helpful.norm(),
        "harmful": part.harmful.norm(),
        "agreement": part.agreement,
        "captured_auxiliary": (rows @ g_a).norm() ** 2 / g_a.norm() ** 2,
        "captured_primary": (rows @ g_p).norm() ** 2 / g_p.norm() ** 2,
        "cosine": torch.cosine_similarity(g_a, g_p, dim=0),
    }


@pytest.mark.parametrize(
    ("basis", "include_mean"),
    [("sketch", True), ("exact", False), ("mean", False), ("canonical", False)],
)
def test_a_report_of_one_loss_equals_the_explicit_parts(basis, include_mean):
    p = problem("mlp", torch.float64)
    want = expected_for(p, eta=(1, 0, -1), basis=basis, rank=4, include_mean=include_mean)
    rows = with_mean(want.V, want.g_p) if include_mean else want.V
    guide = Guide(p.model, eta=Eta(1, 0, -1), basis=basis, rank=4, include_mean=include_mean)
    report = guide.backward(primary=p.losses(), auxiliary=p.loss())
    for name, value in described(want, "auxiliary", rows).items():
        assert getattr(report, name).item() == pytest.approx(float(value), rel=1e-6, abs=1e-7), name
    assert report.effective_rank == len(want.V)
    assert report.refreshed is True
    assert report.skipped_refreshes == 0


def test_a_report_can_be_printed():
    p = problem("mlp")
    report = Guide(p.model, eta=Eta(1, 1, -1), rank=3).backward(
        primary=p.losses(), auxiliary=p.loss()
    )
    assert f"neutral={float(report.neutral):.4g}, " in str(report)
    assert "refreshed=1" in str(report) and "tensor" not in str(report)
    assert repr(report) == str(report)  # what a notebook shows


def test_a_guide_prints_its_settings():
    model = nn.Linear(2, 2)
    told = repr(Guide(model, eta=Eta(1, 1, -1), basis="svd", basis_dtype=torch.bfloat16, rank=3))
    assert told.startswith("Guide(") and "basis='svd'" in told and f"eta={Eta(1, 1, -1)!r}" in told
    settings = set(inspect.signature(Guide).parameters) - {"model", "parameters", "process_group"}
    assert set(re.findall(r"[(\s](\w+)=", re.sub(r"Eta\([^)]*\)", "", told))) == settings


def test_named_tasks_have_their_own_values():
    p = problem("mlp", torch.float64)
    tasks = {"a": p.loss(), "b": -p.losses(slice(2)).mean()}
    want = expected(p.model, p.losses(), tasks, eta=(1, 0, -1), rank=4)
    guide = Guide(p.model, eta=Eta(1, 0, -1), rank=4)
    report = guide.backward(
        primary=p.losses(), auxiliary={"a": p.loss(), "b": -p.losses(slice(2)).mean()}
    )
    assert list(report.tasks) == ["a", "b"]
    for task in tasks:
        numbers = described(want, task, want.V)
        for name in PER_TASK:
            assert getattr(report.tasks[task], name).item() == pytest.approx(
                float(numbers[name]), rel=1e-9
            ), (
                task,
                name,
            )
    assert report.tasks["b"].cosine < 0
    # Together, the losses count by the squared norms of their gradients.
    inside = sum((want.V @ g).square().sum() for g in want.g_a.values())
    whole = sum(g.square().sum() for g in want.g_a.values())
    assert float(report.captured_auxiliary) == pytest.approx(float(inside / whole), rel=1e-9)


def test_no_cosine_with_a_part_of_the_primary_gradient():
    p = problem("mlp", torch.float64)
    guide = Guide(p.model, eta=Eta(1, 0, -1), rank=4, refresh_every=5)
    guide.backward(p.losses(), {"a": p.loss(), "b": p.loss(slice(3))})
    guide.primary(p.losses(slice(3)) / 2)
    guide.auxiliary({"a": p.loss(), "b": p.loss(slice(3))})
    guide.primary(p.losses(slice(3, 6)) / 2)
    report = guide.combine()
    # Of the first gradient only k numbers were left when the primary gradient was complete.
    assert report.tasks["a"].cosine.isnan()
    assert report.tasks["b"].cosine.isfinite()


def test_accumulated_report_equals_the_report_of_the_whole_batch():
    values = []
    for pieces in (1, 2):
        p = problem("mlp", torch.float64)
        guide = Guide(p.model, eta=Eta(1, 0, -1), rank=4, include_mean=True)
        for i in range(pieces):
            guide.primary(p.losses(slice(i * 6 // pieces, (i + 1) * 6 // pieces)) / pieces)
        for i in range(pieces):
            guide.auxiliary(p.loss(slice(i * 8 // pieces, (i + 1) * 8 // pieces)) / pieces)
        values.append(guide.combine().to_dict())
    assert values[1] == pytest.approx(values[0], rel=1e-6, abs=1e-7)


def test_values_stay_on_the_device_until_they_are_read():
    p = problem("mlp")
    guide = Guide(p.model, eta=Eta(1, 0, -1), rank=4)
    report = guide.backward(primary=p.losses(), auxiliary=p.loss())
    assert isinstance(report, Report)
    for name in FIELDS:
        value = getattr(report, name)
        if name != "refreshed":
            assert isinstance(value, torch.Tensor), name
            assert value.ndim == 0, name
            assert not value.requires_grad, name
    plain = report.to_dict()
    assert set(FIELDS) <= set(plain)
    assert all(type(value) in (float, int, bool) for value in plain.values())
    assert plain["effective_rank"] == 4
    assert plain["refreshed"] is True
    assert plain["neutral"] == pytest.approx(report.neutral.item())


def test_a_report_does_not_change_with_the_next_step():
    p = problem("mlp")
    guide = Guide(p.model, eta=Eta(1, 0, -1), rank=4, refresh_every=1)
    reports = []
    for i in range(3):
        report = guide.backward(
            primary=p.losses(slice(i, i + 3)) * (float("nan") if i == 2 else 1), auxiliary=p.loss()
        )
        reports.append((report, {name: float(getattr(report, name)) for name in FIELDS}))
    for report, then in reports[:2]:
        assert {name: float(getattr(report, name)) for name in FIELDS} == then
    assert [int(report.skipped_refreshes) for report, _ in reports] == [0, 0, 1]


def test_a_logger_waits_once_for_the_device(monkeypatch):
    p = problem("mlp")
    guide = Guide(p.model, eta=Eta(1, 1, 0), rank=2)
    report = guide.backward(p.losses(), p.loss())
    waits, found = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: waits.append(1) or found(tensor))
    for name in ("item", "__float__", "__int__", "__bool__"):
        monkeypatch.setattr(torch.Tensor, name, None)
    report.to_dict()
    assert len(waits) == 1
