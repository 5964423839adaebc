"""The benchmarks run in their tiny version, resume, and their page is what the committed results
give.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from attittud import Eta, Guide
from benchmarks import eager, judges, methods, steps
from benchmarks.__main__ import arguments as arguments_of_the_command
from benchmarks.__main__ import main as command
from benchmarks.figures import figures
from benchmarks.page import FOLDER, PAGE, TABLES, page
from benchmarks.results import load
from benchmarks.tables import PASSES, tables
from benchmarks.workloads import SPECS, Workload

ROOT = Path(__file__).parents[2]


def run(*arguments):
    """In a process of its own, as people start it."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])}
    words = [sys.executable, "-m", "benchmarks", "--quick", *map(str, arguments)]
    return subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=True
    )


def plots():
    return sorted(path.name for path in FOLDER.glob("*.svg"))


def test_pages_are_what_the_results_give():
    assert PAGE.read_text() == page(load()), "run `python -m benchmarks.page`"
    assert TABLES.read_text() == tables(load(), plots()), "run `python -m benchmarks.page`"


@pytest.mark.nightly
def test_tiny_run_writes_results_and_resumes(tmp_path, monkeypatch, capsys):
    jobs = ("passes", "judges", "wrn22")
    run("--only", *jobs, "--out", tmp_path)
    result = json.loads((tmp_path / "wrn22.json").read_text())
    (point,) = result["points"].values()
    assert {"versions", "hardware", "seed", "revision"} <= result["provenance"].keys()
    assert {"multitask", "two passes", "attittud loop", "authors' algorithm"} <= point[
        "methods"
    ].keys()
    assert "note" not in point["methods"]["attittud loop"]
    assert point["revision"] == result["provenance"]["revision"]
    found = load(tmp_path)["judges"]["points"]["wrn22"]
    assert found["seconds"]["eager"].keys() == {
        "multitask",
        "fixed",
        "auto",
        "auto, judges asked",
        "judges alone",
    }
    assert judges.floor(found, "eager") > 0
    later = load(tmp_path)
    later["wrn22"]["points"]["k=2 m=4"]["revision"] = "zzz"
    assert ", zzz." in tables(later, [])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(
        sys, "argv", ["benchmarks", "--quick", "--only", *jobs, "--out", str(tmp_path)]
    )
    command()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert "wrn22: k=2 m=4 (" not in capsys.readouterr().out


@pytest.mark.nightly
def test_tiny_eager_run_writes_every_model_and_resumes(tmp_path, monkeypatch, capsys):
    counts, measure = [], eager.Pairs.measure
    monkeypatch.setattr(
        eager.Pairs, "measure", lambda self, pairs: counts.append(pairs) or measure(self, pairs)
    )
    monkeypatch.setattr(
        sys,
        "argv",
        ["eager", "--quick", "--device", "cpu", "--only", "wrn22", "--out", str(tmp_path)],
    )
    eager.main()
    assert counts == [3, 3, 0]  # pairs are spread over the two rounds
    found = load(tmp_path)["eager"]["points"]["wrn22"]
    measured = [row for row in found["methods"].values() if not {"note", "same_as"} & row.keys()]
    assert len(measured) > 6 and all(row["eager"]["step"] > 0 for row in measured)
    assert found["methods"]["attittud auto"] == {"same_as": "attittud loop"}
    assert {"step", "refresh"} == found["methods"]["attittud loop"]["eager"].keys()
    assert {"multitask, one thread", "two passes, one thread"} <= found["methods"].keys()
    for key in ("plain_over_two_passes", "plain_over_two_passes_in_one_thread"):
        ratio = found[key]["attittud loop"]
        assert ratio["low"] <= ratio["median"] <= ratio["high"] and ratio["n"] == 6
    before = (tmp_path / "eager.json").read_bytes()
    monkeypatch.setattr(eager, "measure", None)
    eager.main()
    assert (tmp_path / "eager.json").read_bytes() == before
    assert '"plain_over_two_passes"' in capsys.readouterr().out


def test_the_interval_of_a_median_comes_from_its_order_statistics():
    found = eager.median([float(value) for value in range(200)])
    assert found == {"median": 99.5, "low": 86.0, "high": 114.0, "n": 200}


def test_steps_are_divided_by_the_multitask_steps_next_to_them():
    """A machine that becomes twice as slow in the second turn changes no ratio."""
    turn = eager.Turn([1.1, 1.2, 1.3], 3.1, 1.0)
    slow = eager.Turn([2.2, 2.4, 2.6], 6.2, 2.0)
    found = eager.summary([turn, slow])
    assert found["over_multitask"] == {"step": pytest.approx(1.2), "refresh": pytest.approx(3.2)}
    assert (
        found["eager"] == {"step": pytest.approx(1.75), "refresh": pytest.approx(4.75)}
        and found["rounds"] == 2
    )
    data = rows(multitask={"eager": {"step": 1.0}}, ours=found)
    (ours,) = [f for f in figures("wrn22", "k=5 m=64", data) if f.method == "ours"]
    assert ours.over[1] == pytest.approx(3.2) and ours.over[10] == pytest.approx(1.4)


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["--device", "tpu"], "--device"),
        (["--out", str(Path(__file__) / "results")], "--out"),
    ],
)
def test_arguments_that_make_no_sense_are_named(arguments, culprit, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    with pytest.raises(SystemExit) as caught:
        arguments_of_the_command()
    assert caught.value.code == 2
    assert culprit in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:.*batching rule.*", "ignore:.*backward hook is firing.*")
@pytest.mark.parametrize("peer", ["Authors", "TorchJD", "TorchJDLoop", "Opacus"])
def test_peers_span_the_rows_of_j(peer):
    if peer != "Authors":
        pytest.importorskip(peer.removesuffix("Loop").lower(), reason="the peer is not installed")
    pytest.importorskip("transformers", reason="the extra transformers is not installed")
    work = Workload(SPECS["roberta128"].tiny(), m=4, device="cpu", tiny=True, seed=0)
    method = getattr(methods, peer)(work, 2)
    rows = method.build(work.losses("primary")).double()
    torch.testing.assert_close(rows @ rows.T, torch.eye(2).double(), rtol=0, atol=1e-4)
    shared = list(work.shared().values())
    J = torch.stack(
        [
            methods.flat(torch.autograd.grad(loss, shared, retain_graph=True))
            for loss in work.losses("primary")
        ]
    ).double()
    inside = rows @ torch.linalg.pinv(J) @ J
    torch.testing.assert_close(inside, rows, rtol=0, atol=1e-3)


def rows(**methods_):
    return {"k": 5, "m": 64, "D": 100, "methods": methods_}


def test_a_refresh_is_the_difference_of_two_steps():
    data = rows(
        multitask={"eager": {"step": 1.0}, "peak_step": 1000},
        ours={"eager": {"step": 1.1, "refresh": 3.1}, "peak_step": 3000, "peak_refresh": 5000},
    )
    (_, ours) = figures("wrn22", "k=5 m=64", data)
    assert ours.refresh == pytest.approx(2.0)
    assert ours.over == pytest.approx({1: 3.1, 4: (3 * 1.1 + 3.1) / 4, 10: (9 * 1.1 + 3.1) / 10})
    assert (ours.memory_step, ours.memory_refresh) == (5.0, 10.0)


def test_a_method_that_falls_back_to_another_is_not_measured():
    bench = steps.Bench(
        SPECS["wrn22"].tiny(), steps.Point(2, 4), device="cpu", quick=True, seed=0, seconds=0.1
    )
    for engine in ("loop", "auto"):
        bench.prepare(
            f"attittud {engine}", lambda engine=engine: methods.Guided(bench.work, 2, engine)
        )
    assert bench.rows["attittud auto"] == {"same_as": "attittud loop"}
    assert list(bench.ready) == ["attittud loop"]


def test_judges_are_measured_by_what_they_add_to_a_step_on_average():
    # The machine becomes slower from round to round, and within the middle round too.
    speeds = [1.0, 3.0, 9.0]
    times = {
        name: [speed * time for speed in speeds]
        for name, time in {"multitask": 1.0, "auto": 1.0, "judges alone": 0.4}.items()
    }
    shares = judges._shares(times | {"auto, judges asked": [1.46, 27.0, 9 * 1.46]})
    point = {"judges": 16, "judge_every": 4, "shares": {"eager": shares}}
    assert judges.overhead(point, "eager") == pytest.approx(0.46 / 4)
    assert judges.floor(point, "eager") == pytest.approx(0.1)


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
