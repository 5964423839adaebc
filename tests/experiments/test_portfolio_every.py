"""Policies are computed from what every candidate did, and agree with the portfolios that the product trains."""

import pytest
import torch

from attittud_lab.config.load import load
from attittud_lab.models.network import load_weights
from attittud_lab.portfolio import trial as product
from attittud_lab.runs.model import WEIGHTS
from experiments.portfolio import every, policies, prepare, rows, unit
from experiments.portfolio.examples import Folder

PAIR, SEED = "clusters_sources", 3


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    pair, built = prepare.make(PAIR, Folder(folder), prepare.DEVELOPMENT)
    prepare.save(pair, built, folder / prepare.DEVELOPMENT / PAIR)
    return folder


@pytest.fixture(scope="module")
def out(files, tmp_path_factory):
    """All files of a pair and seed, by the command."""
    folder = tmp_path_factory.mktemp("every")
    given = ["--quick", "--workers", 1, "--files", files, "--out", folder, "--seeds", 1, "--first-seed", SEED]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["every", *map(str, given)])
        every.main()
    return folder


@pytest.fixture(scope="module")
def maker(files, tmp_path_factory):
    """Its rows share their trials."""
    job, folder = files / prepare.DEVELOPMENT / PAIR / "job.yaml", tmp_path_factory.mktemp("rows")
    return unit.RowMaker(unit.Unit(PAIR, job, SEED, (), folder / "out.jsonl", quick=True), folder)


@pytest.mark.parametrize("fold", [0, None])
def test_an_observed_trial_equals_a_trial_of_the_package(fold, files, tmp_path):
    """To the bit; on all labels also where the product stops early."""
    settings = ["strategy=portfolio", rows.ONE_THREAD, 'portfolio.candidates=["multitask"]', *unit.QUICK]
    config = load(files / prepare.DEVELOPMENT / PAIR / "job.yaml", settings)
    data = product.pooled_data(config)
    table = every.Table(config, data, every.SHARED)
    steps = product.look_steps(table.config)
    job = product.TrialJob(table.config, table.entries[1], fold, steps[-1], tmp_path / "looked-at", keeps=fold == 0)
    job.folder.mkdir()
    found = every.trained(job, data)
    for look in (1, len(steps) - 1):
        folder = tmp_path / f"{look}"
        known = product.run_trial(
            product.TrialJob(table.config, table.entries[1], fold, steps[look], folder, keeps=fold == 0), data
        )
        kept = load_weights(folder / WEIGHTS if fold is None else product.look_file(folder, look))
        found.model.load_state_dict(found.model.state_dict() | kept)
        predicted = every.outputs_of(found.model, data.test, torch.device("cpu"), head="primary")
        assert torch.equal(predicted, found.tested[look])
        assert all(torch.equal(a, b) for a, b in zip(known.outputs, found.outputs, strict=False))


@pytest.mark.parametrize("final", rows.FINALS)
@pytest.mark.parametrize(("row", "wanted"), [("portfolio", policies.usual()), ("control", policies.control)])
def test_a_policy_with_the_candidates_of_a_row_is_that_row(row, wanted, final, maker, out):
    line = maker.portfolio(rows.ROWS[row], final)
    (known,) = policies.read(out)
    found = policies.simulate(policies.Policy(row, wanted, final=final), known)
    # After six steps all classes are about equally likely, so that rounded probabilities matter: how often a member is
    # picked may differ, and accuracy with it.
    assert (found.winner, set(found.picks)) == (line["winner"], set(line["picks"]))
    assert found.accuracy == pytest.approx(line["accuracy"], abs=2.5 if final == rows.ENSEMBLE else 1e-3)
    assert found.evidence == pytest.approx(line["chance"]["evidence"], abs=0.05)  # outputs are rounded
    assert found.runs == pytest.approx(line["runs"], abs=0.07)  # six steps have no equal looks


def test_the_wide_set_and_the_references_are_there(files, out):
    (known,) = policies.read(out)
    assert known.references["multitask"]["runs"] == 8
    assert {"primary_only", "multitask 4, own head", "auto", "pretrain, own head, then primary"} <= known.trained.keys()
    assert {f"multitask, only {name}" for name in ("good", "bad")} <= known.trained.keys()
    one = known.trained["multitask, then primary"]
    assert one.curve.second < len(one.steps) and len(one.curve.scores) == len(one.steps)
    assert not every.parts(
        every.argparse.Namespace(
            first_seed=SEED,
            seeds=1,
            groups=(*every.WANTED.keys() - {every.USUAL}, every.REFERENCE),
            out=out,
            quick=True,
        ),
        {PAIR: files / prepare.DEVELOPMENT / PAIR / "job.yaml"},
    )


def test_the_table_has_every_policy(out, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["policies", str(out)])
    policies.main()
    printed = capsys.readouterr().out
    assert all(f"\n{policy.name} | " in printed for policy in policies.policies())
    assert "1 pairs, 1 pairs and seeds" in printed and "chance: AUROC" in printed


def test_a_folder_of_other_jobs_is_refused(tmp_path):
    every.check(tmp_path, {"jobs": {"a": "1"}, "quick": False})
    every.check(tmp_path, {"jobs": {"a": "1"}, "quick": False})
    with pytest.raises(SystemExit, match="other jobs"):
        every.check(tmp_path, {"jobs": {"a": "2"}, "quick": False})


def test_looks_that_may_be_chosen_are_kept():
    curve = every.Curve([0.5, 0.9, 0.7, 0.7], [0.4, 0.5, 0.6, 0.7], 4)
    assert every.wanted_looks(curve, {1}) == [0, 2, 3]  # after one look the first, smoothed the third, and the last
    assert every.wanted_looks(every.Curve([], [], 4), {1}) == []
