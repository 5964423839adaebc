"""The runner of the fourth round and its statistics, on small data and made-up results."""

import json

import pytest

from attittud_lab.config.schema import Config
from attittud_lab.data.prepare import Prepared
from attittud_lab.portfolio.simple import chosen_learners
from experiments.answer import candidates, record, run, table
from experiments.answer.__main__ import main, numbers

PAIR = "wine_random"


def test_results_are_made_once_and_methods_have_the_same_labels(tmp_path):
    place = run.Place(tmp_path, quick=True)
    methods = ["default", "alone", "primary_only"]
    made = run.run_all([PAIR], [0], methods, place, 1)
    facts = {path.stem: json.loads(path.read_text()) for path in made}
    assert set(facts) == {f"0-{method}" for method in methods}
    assert len({result["labels"] for result in facts.values()}) == 1
    assert all(result["accuracy"] > 0.3 for result in facts.values())
    assert facts["0-alone"]["accuracy"] > 0.85
    assert facts["0-default"]["provenance"]["revision"]
    assert run.run_all([PAIR], [0], methods, place, 1) == []
    with pytest.raises(SystemExit, match="0-"):
        table.read(tmp_path)


def test_the_default_trains_no_network_on_a_cpu():
    """So `without_networks` is `default`, and `with_networks` has its simple learners."""
    for kind, learners in run.SIMPLE.items():
        assert chosen_learners(Config(), Prepared(kind, None, None, None, {})) == learners


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


@pytest.mark.parametrize("part", [table, candidates])
def test_the_page_is_what_the_results_give(part):
    text = part.PAGE.read_text(encoding="utf-8")
    assert text == part.page(), "run `python -m experiments.answer page`"


def test_a_candidate_is_compared_with_the_default_on_the_seeds_that_both_have():
    rows = {"default": [[70, 2], [80, 4], [99, 99]], "only_minilm": [[73, 1], [79, 2]]}
    pair = {"kind": "text", "rows": rows, "reading": {"tfidf": 3, "minilm": 7}}
    settings = {"features": ["minilm"]}
    figures = candidates.beside_default(pair, "only_minilm", settings)
    # 3 s of the default on folds become 1.5 s, and 10 s for its features become 7 s.
    assert figures == pytest.approx((1.0, -0.5, -4.5 / 13))


def test_a_row_exists_on_the_data_that_it_changes(tmp_path):
    run.build_once(PAIR, place := run.Place(tmp_path))
    task = run.Task(run.pairs()[PAIR], 0, place)
    assert task.has("with_extra_trees")
    assert task.has("with_pooled")
    assert not task.has("only_minilm")


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
