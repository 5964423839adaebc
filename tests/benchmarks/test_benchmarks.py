"""The benchmarks run in their tiny version, and their page is what the committed results give."""

import json
import sys

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from attittud import Eta, Guide
from benchmarks import methods
from benchmarks.__main__ import arguments as arguments_of_the_command
from benchmarks.__main__ import main as command
from benchmarks.figures import default, figures
from benchmarks.page import PAGE, page
from benchmarks.results import load
from benchmarks.steps import Bench, Turn, summary
from benchmarks.workloads import SPECS, Workload

# Forward passes that a refresh is worth, from k and m, by what it is given.
PASSES = {
    "loop": lambda k, _: 2 * k,
    "callable": lambda _, m: 1 if m.bit_count() == 1 else 2,
    "basis_losses": lambda *_: 3,
}


def tiny(job):
    return Workload(SPECS[job], device="cpu", tiny=True)


def test_page_is_what_the_results_give():
    assert PAGE.read_text() == page(load()), "run `python -m benchmarks.page`"


@pytest.mark.filterwarnings("ignore:.*batching rule.*")
def test_tiny_run_writes_results_and_resumes(tmp_path, monkeypatch, capsys):
    words = ["--quick", "--device", "cpu", "--only", "wrn22", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *words])
    command()
    result = json.loads((tmp_path / "wrn22.json").read_text())
    assert {"versions", "hardware", "revision"} <= result["provenance"].keys()
    rows = result["methods"]
    measured = [row for row in rows.values() if not {"note", "same_as"} & row.keys()]
    assert len(measured) > 4 and all(row["eager"]["step"] > 0 for row in measured)
    assert {"multitask", "two passes", "authors' algorithm"} <= rows.keys()
    assert rows["attittud auto"] == {"same_as": "attittud loop"}
    assert {"step", "refresh"} == rows["attittud loop"]["eager"].keys()
    assert default(result).method == "attittud loop"
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    capsys.readouterr()
    command()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert "is there already" in capsys.readouterr().out


def test_steps_are_divided_by_the_multitask_steps_next_to_them():
    """A machine that becomes twice as slow in the second turn changes no ratio."""
    found = summary([Turn([1.1, 1.2, 1.3], 3.1, 1.0), Turn([2.2, 2.4, 2.6], 6.2, 2.0)])
    assert found["over_multitask"] == {"step": pytest.approx(1.2), "refresh": pytest.approx(3.2)}
    assert found["eager"] == {"step": pytest.approx(1.75), "refresh": pytest.approx(4.75)}
    multitask = {"eager": {"step": 1.0}, "over_multitask": {"step": 1.0}, "peak_step": 1000}
    ours = found | {"peak_step": 3000, "peak_refresh": 5000}
    (_, row) = figures({"methods": {"multitask": multitask, "ours": ours}})
    assert row.mean_over == pytest.approx(1.4) and row.refresh == pytest.approx(3.0)
    assert (row.memory_step, row.memory_refresh) == (2000, 4000)


@pytest.mark.parametrize(("option", "value"), [("--device", "tpu"), ("--out", f"{__file__}/x")])
def test_arguments_that_make_no_sense_are_named(option, value, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", option, value])
    with pytest.raises(SystemExit, match="2"):
        arguments_of_the_command()
    assert option in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:.*batching rule.*")
@pytest.mark.parametrize("peer", ["Authors", "TorchJD", "TorchJDLoop"])
def test_peers_span_the_rows_of_j(peer):
    if peer != "Authors":
        pytest.importorskip("torchjd", reason="the peer is not installed")
    pytest.importorskip("transformers", reason="needs transformers")
    work = tiny("roberta128")
    method = getattr(methods, peer)(work, 2)
    rows = method.build(work.losses("primary")).double()
    torch.testing.assert_close(rows @ rows.T, torch.eye(2).double(), rtol=0, atol=1e-4)
    shared = list(work.shared().values())
    gradients = []
    for loss in work.losses("primary"):
        gradients.append(methods.flat(torch.autograd.grad(loss, shared, retain_graph=True)))
    J = torch.stack(gradients).double()
    inside = rows @ torch.linalg.pinv(J) @ J
    torch.testing.assert_close(inside, rows, rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", ["multitask", "two passes", "attittud loop", "authors' algorithm"])
def test_a_step_trains_the_model(name):
    work = tiny("wrn22")
    method = methods.methods_for(work, 2)[name]()
    for refresh in method.kinds:
        before = [p.clone() for p in work.model.parameters()]
        method.step(refresh)
        for old, new in zip(before, work.model.parameters(), strict=True):
            assert not torch.equal(old, new)


def test_two_passes_do_the_work_of_one():
    grads = []
    for kind in (methods.Multitask, methods.TwoPasses):
        work = tiny("wrn22")
        kind(work, 2).backward(False)
        grads.append([p.grad for p in work.model.parameters()])
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two)


def test_a_method_that_cannot_run_is_noted_with_the_reason():
    bench = Bench("wrn22", device="cpu", quick=True, limit=0.1)

    def refuse():
        raise ImportError("no such peer")

    bench.prepare("peer", refuse)
    assert "no such peer" in bench.rows["peer"]["note"] and not bench.ready


@pytest.mark.parametrize("given", PASSES)
def test_the_arithmetic_of_the_cost_model_is_what_is_counted(given):
    m, tokens, width, depth, k = 8, 200, 24, 8, 3
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(depth)))
    x, forward = torch.randn(m, tokens, width), 2 * tokens * depth * width**2

    def losses():
        return model(x).square().mean((1, 2))

    engine = "loop" if given == "loop" else "hooks"
    guide = Guide(model, eta=Eta(1, 1, -1), rank=k, engine=engine)

    def flops(refresh):
        basis = losses if given == "basis_losses" else None
        primary = losses if given == "callable" else losses()
        with FlopCounterMode(display=False) as counter:
            guide.backward(primary, model(x).mean(), basis_losses=basis, refresh=refresh)
        return counter.get_total_flops()

    flops(True)  # with the check of the first refresh
    found = flops(True) - flops(False)
    passes = PASSES[given](k, m)
    spared = passes // 2 * m * forward / depth  # nobody asks for gradients of the data
    # With so many tokens, contraction and orthonormalisation take little compared with passes
    # through the model.
    assert found + spared == pytest.approx(passes * forward * m, rel=0.05, abs=0.05 * forward * m)
