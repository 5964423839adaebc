"""The runner of the fourth round and its statistics, on small data and made-up results."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from attittud import LabelChannel
from attittud_lab import features
from attittud_lab.config.load import loads
from attittud_lab.config.schema import Config
from attittud_lab.data.prepare import Prepared
from attittud_lab.features.histogram import HistogramFeatures
from attittud_lab.portfolio.simple import chosen_learners
from attittud_lab.training.train import load_data
from experiments.answer import build, record, run, shared, table
from experiments.answer import write as write_files
from experiments.answer.__main__ import main, numbers
from experiments.answer.pair import Examples, Pair, Part
from tests.helpers.runs import JOB

PAIR = "wine_random"


def test_results_are_made_once_and_methods_have_the_same_labels(tmp_path):
    place = run.Place(tmp_path, None, None, None, quick=True)
    methods = ["default", "alone"]
    made = run.run_all([PAIR], [0], methods, place)
    facts = {path.stem: json.loads(path.read_text()) for path in made}
    assert set(facts) == {f"0-{method}" for method in methods}
    assert len({result["labels"] for result in facts.values()}) == 1
    assert facts["0-alone"]["accuracy"] > 0.85
    assert facts["0-default"]["provenance"]["revision"]
    assert run.run_all([PAIR], [0], methods, place) == []
    with pytest.raises(SystemExit, match="0-"):
        table.read(tmp_path)


@pytest.mark.nightly
def test_methods_that_share_work_have_the_results_of_methods_alone(tmp_path):
    methods = ["default", "ensemble", "single", "uses_alone", "without_stacked"]
    facts = []
    for shares in (True, False):
        place = run.Place(tmp_path / str(shares), None, None, None, quick=True, shares=shares)
        results = [
            json.loads(path.read_text()) for path in run.run_all([PAIR], [0], methods, place)
        ]
        measured = ("method", "labels", "accuracy", "fold_accuracy", "chosen", "candidates")
        facts.append([{name: result[name] for name in measured} for result in results])
        same = {result["method"] for result in results if result.get("same_as") == "default"}
        assert same == {"ensemble"}
    assert facts[0] == facts[1]


def test_gold_loss_correction_is_a_mean_without_prior_or_shrinkage():
    log_probs = torch.tensor([[0.2, 0.8], [0.6, 0.4], [0.5, 0.5]]).log()
    labels, shares = torch.tensor([0, 0, 2]), torch.tensor([0.3, 0.7])
    with shared.without_shrinkage():
        channel = LabelChannel.estimate(log_probs, labels, shares, classes=3, seed=0)
    expected = torch.tensor([[0.4, 0.6], [0.3, 0.7], [0.5, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(channel.matrix, expected, rtol=0, atol=1e-6)
    assert channel.openness == 1
    assert LabelChannel.estimate(log_probs, labels, shares, classes=3).openness < 1


def test_gold_loss_correction_runs_with_a_source_of_several_labels_at_once(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    labels = np.arange(90) % 2

    def part(name, rows, targets, classes):
        pixels = random.integers(0, 256, (len(rows), 8, 8), dtype=np.uint8)
        return Part([f"{name}{row}" for row in rows], pixels, targets[rows], classes)

    findings = random.integers(0, 2, (90, 3))
    pool = part("mine", np.arange(30), labels, ("a", "b"))
    test = part("test", np.arange(30), labels, ("a", "b"))
    sources = {
        "same": part("same", np.arange(40), labels, ("a", "b")),
        "findings": part("findings", np.arange(40), findings, ("x", "y", "z")),
    }
    examples = Examples(pool, test, sources)
    checksum = write_files.checksum(examples)
    pair = Pair("small", "a", "image", "open", (12, 12), 1e-3, checksum, lambda _: examples)
    for module in ("experiments.answer", "experiments.answer.run"):
        monkeypatch.setattr(f"{module}.pairs", lambda: {"small": pair})
    build("small", tmp_path, tmp_path / "files", 0)
    monkeypatch.setattr(shared, "ENCODERS", {})
    place = run.Place(tmp_path, None, None, None, quick=True)
    (path,) = run.run_all(["small"], [0], ["gold_loss_correction"], place)
    result = json.loads(path.read_text())
    assert result["accuracy"] is not None, result["error"]


@pytest.mark.parametrize("kind", ["text", "image", "table"])
def test_the_default_trains_no_network_on_a_cpu(kind):
    """So `without_networks` is `default`, and `with_networks` has its simple learners."""
    data = Prepared(kind, None, None, None, {})
    default = chosen_learners(Config(), data)
    assert default == run.SIMPLE[kind]


def test_kept_rows_need_no_package(tmp_path, monkeypatch):
    """Histograms stand for a frozen encoder."""
    entry = features.find("histogram")[0]
    pictures = [*np.random.default_rng(0).integers(0, 255, (6, 3, 16, 16), dtype=np.uint8)]
    before = shared.KeptRows("histogram", tmp_path).transform(pictures[:5])
    monkeypatch.setitem(features._ENTRIES, "histogram", replace(entry, needs=("no_package",)))
    monkeypatch.setitem(shared.ENCODERS, "image", "histogram")
    gone = RuntimeError("the package is gone")
    monkeypatch.setattr(HistogramFeatures, "plain", lambda _: (_ for _ in ()).throw(gone))
    monkeypatch.setattr(HistogramFeatures, "transform", lambda *_: (_ for _ in ()).throw(gone))
    with shared.Shared(tmp_path, "image", "0").used(report=True):
        kept = features.build("histogram", "image")
        np.testing.assert_array_equal(kept.transform(pictures[:5]), before)
        with pytest.raises(RuntimeError, match="gone"):
            kept.transform(pictures)
    with pytest.raises(SystemExit, match="no_package"):
        shared.Shared(tmp_path / "empty", "image", "0").check_encoder()


def test_right_labels_of_a_wrong_source_are_written_beside_it(tmp_path):
    folder = build("rules_random", tmp_path, tmp_path, 0)
    truth = np.load(write_files.truth_file(folder, "random"))
    labels = table_of(folder / "random.parquet")
    assert truth.shape == labels.shape
    assert 0.5 < (truth != labels).mean() < 0.8
    place = run.Place(tmp_path / "out", None, None, None, quick=True)
    (path,) = run.run_all(["rules_random"], [0], ["suspicious"], place)
    figures = json.loads(path.read_text())["sources"]["random"]
    assert figures["wrong"] == pytest.approx((truth != labels).mean())
    assert 0.4 < figures["cleanlab"] < 0.6, "tosses of a coin say nothing"


def table_of(path):
    import pyarrow.parquet as pq

    return np.array(pq.read_table(path)["label"].to_pylist())


def test_embedding_covers_the_test_examples(tmp_path, monkeypatch):
    monkeypatch.setitem(shared.ENCODERS, "image", "histogram")
    data = load_data(loads(JOB), pooled=True)
    parts = [data.primary.examples, data.test, data.auxiliary["more"].examples]
    assert shared.embed(data, tmp_path) == sum(len(part) for part in parts)
    monkeypatch.setattr(HistogramFeatures, "transform", lambda *_: pytest.fail("computed again"))
    rows = shared.KeptRows("histogram", tmp_path).transform(data.test_inputs())
    assert len(rows) == 200


def write(out, pair, method, scores, folds=None, **more):
    for seed, score in enumerate(scores):
        facts = {"pair": pair, "seed": seed, "method": method, "labels": f"{pair}{seed}"}
        facts |= {"quick": False, "cpu_seconds": 1.0, "provenance": {"revision": "abc"}}
        facts |= {"accuracy": score, "fold_accuracy": score if folds is None else folds[seed]}
        path = out / "results" / pair / f"{seed}-{method}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(facts | more))


def test_the_table_says_which_goals_are_met(tmp_path):
    better, worse = [0.80, 0.82, 0.81, 0.83], [0.70, 0.73, 0.71, 0.72]
    write(tmp_path, "wine_random", "default", better, chance=0.9)
    write(tmp_path, "wine_random", "alone", worse, folds=[0.9, 0.9, 0.9, 0.9])
    write(tmp_path, "wine_random", "pooled", better, folds=[0.8, 0.8, 0.8, 0.95])
    write(tmp_path, "wine_random", "uses_alone", worse)
    write(tmp_path, "cancer_shifted", "default", worse, chance=0.2)
    write(tmp_path, "cancer_shifted", "alone", better)
    write(tmp_path, "cancer_shifted", "uses_alone", better)
    results = table.read(tmp_path)
    found = results.scores["wine_random"][table.BY_FOLDS]
    assert found == pytest.approx({0: 70.0, 1: 73.0, 2: 71.0, 3: 83.0})
    comparison = table.compare(results, "default", "alone", ["wine_random", "cancer_shifted"])
    assert comparison.lost() == ["cancer_shifted"]
    assert comparison.means["wine_random"] == pytest.approx(9.75 + 0.25)
    page = table.tables(tmp_path)
    count = len([*tmp_path.glob("results/*/*.json")])
    assert record.pack(tmp_path, tmp_path / "record.jsonl") == count
    assert table.tables(tmp_path / "record.jsonl") == page
    lines = {line.split(" | ")[0].strip("| "): line for line in page.splitlines()}
    assert "missed" in lines["no pair lost to alone"]
    assert "missed" in lines["against frozen"]
    assert "| met |" in lines["AUROC of the chance"]


def test_the_page_is_what_the_results_give():
    text = table.PAGE.read_text(encoding="utf-8")
    assert text == table.page(), "run `python -m experiments.answer page`"


def test_other_labels_are_refused(tmp_path):
    write(tmp_path, PAIR, "default", [0.5])
    write(tmp_path, PAIR, "alone", [0.5], labels="other")
    with pytest.raises(SystemExit, match="default"):
        table.read(tmp_path)


def test_a_comparison_has_the_seeds_that_both_methods_have(tmp_path):
    write(tmp_path, PAIR, "default", [0.8, 0.8, 0.8])
    write(tmp_path, PAIR, "alone", [0.7, 0.7, 0.7], folds=[0.5, 0.5, 0.5])
    write(tmp_path, PAIR, "autogluon", [0.6], folds=[0.9])
    results = table.read(tmp_path)
    assert table.compare(results, "default", "autogluon", [PAIR]).seeds() == "1"
    assert table.compare(results, "default", "alone", [PAIR]).seeds() == "3"
    assert results.scores[PAIR][table.BY_FOLDS] == pytest.approx({0: 60.0})
    assert len(results.scores[PAIR][f"{table.BY_FOLDS}, not AutoGluon"]) == 3


def test_failures_count_against_the_product(tmp_path):
    write(tmp_path, PAIR, "default", [None], error="full")
    write(tmp_path, PAIR, "alone", [None], error="full")
    results = table.read(tmp_path)
    assert results.scores[PAIR]["default"] == {0: 0.0}
    assert results.scores[PAIR]["alone"] == {0: 100.0}
    assert len(results.failed) == 2


def test_held_out_pairs_need_a_flag(tmp_path, monkeypatch):
    command = ["answer", "run", "--pairs", "held_out", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as error:
        main()
    assert error.value.code == 2
    assert numbers("0-2,7") == [0, 1, 2, 7]
