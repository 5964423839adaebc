"""The runner of the third round, in miniature: rows go through the product, and trials are shared between them."""

import json

import pyarrow.parquet as pq
import pytest
import torch

import attittud_lab
from attittud_lab.config.load import load
from attittud_lab.config.schema import to_dict
from attittud_lab.portfolio import run as portfolio
from attittud_lab.portfolio.candidates import candidates
from attittud_lab.portfolio.trial import pooled_data
from experiments.portfolio import __main__ as runner
from experiments.portfolio import page, prepare, record, rows, tune, unit
from experiments.portfolio.examples import Folder

PAIRS = ("wine_random", "clusters_sources")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two development pairs as jobs."""
    folder = tmp_path_factory.mktemp("files")
    for name in PAIRS:
        pair, built = prepare.make(name, Folder(folder), prepare.DEVELOPMENT)
        prepare.save(pair, built, folder / prepare.DEVELOPMENT / name)
    return folder


def maker(files, name, tmp_path, seed=3):
    given = unit.Unit(
        name, files / prepare.DEVELOPMENT / name / "job.yaml", seed, (), tmp_path / "out.jsonl", quick=True
    )
    return unit.RowMaker(given, tmp_path)


def model_bytes(folder):
    about = json.loads((folder / "model.json").read_text())
    return {member["weights"]: (folder / member["weights"]).read_bytes() for member in about["members"]}


@pytest.mark.parametrize("final", rows.FINALS)
def test_shared_trials_give_what_a_portfolio_of_its_own_gives(final, files, tmp_path, monkeypatch):
    """To the bit, also where another row has trained them further before."""
    torch.set_num_threads(1)
    made, kept, original = maker(files, "clusters_sources", tmp_path), {}, portfolio.run

    def run(config, place, **more):
        result = original(config, place, **more)
        kept["model"] = model_bytes(place)
        return result

    monkeypatch.setattr(portfolio, "run", run)
    made.portfolio(rows.ROWS["without_halving"], final)
    line = made.portfolio(rows.ROWS["portfolio"], final)
    config = made.config(rows.ROWS["portfolio"].overrides(made.task, 3, final))
    alone = original(config, tmp_path / "alone")
    assert model_bytes(tmp_path / "alone") == kept["model"]
    assert line["accuracy"] == unit.percent(alone.test["accuracy"])
    assert line["validation"] == unit.percent(alone.validation["accuracy"])
    about = json.loads((tmp_path / "alone" / "leaderboard.json").read_text())
    assert (line["winner"], line["picks"]) == (about["final"]["winner"], about["final"]["picks"])
    assert line["chance"] == about["chance"]
    assert line["runs"] == pytest.approx(about["runs"] + sum(p["steps"] for p in alone.phases[1:]) / 6, abs=1e-3)


def test_accuracies_are_those_of_predictions(files, tmp_path):
    made = maker(files, "wine_random", tmp_path)
    config = made.config(rows.ROWS["portfolio"].overrides(made.task, 3, rows.ENSEMBLE))
    result = portfolio.run(config, tmp_path / "run")
    table = pq.read_table(files / prepare.DEVELOPMENT / "wine_random" / "primary" / "test.parquet")
    model = attittud_lab.load(tmp_path / "run")
    predicted = model.predict(table.select(["x"]))
    right = [label == f"class_{number}" for label, number in zip(predicted, table["label"].to_pylist(), strict=True)]
    assert sum(right) / len(right) == pytest.approx(result.test["accuracy"])


def test_primary_only_is_left_out_on_purpose(files, tmp_path):
    made = maker(files, "wine_random", tmp_path)
    line = made.portfolio(rows.ROWS["without_primary_only"], rows.ENSEMBLE)
    assert "primary_only" not in line["picks"] and line["chance"] is None
    assert made.portfolio(rows.ROWS["primary_folds"], rows.SINGLE)["winner"] == "primary_only"


@pytest.mark.parametrize("name", PAIRS)
def test_usual_candidates_are_the_defaults_of_the_product(name, files, tmp_path):
    """The rows with and without some candidates must differ from the defaults in these alone."""
    made, found = maker(files, name, tmp_path), []
    for settings in ({}, {"candidates": rows.usual}):
        config = made.config(rows.Row("row", "", settings=settings).overrides(made.task, 3, rows.SINGLE))
        entries = candidates(config, pooled_data(config))
        found.append({entry.label: to_dict(entry.strategy) for entry in entries})
    assert found[0] == found[1]


def test_control_has_as_many_candidates_as_the_portfolio():
    for sources in (("one",), ("one", "two")):
        for shares in (True, False):
            task = rows.Task(sources, shares)
            assert len(rows.control(task)) == len(rows.usual(task))


def test_every_row_is_a_valid_configuration(files):
    job = files / prepare.DEVELOPMENT / "clusters_sources" / "job.yaml"
    for row in rows.ROWS.values():
        for final in row.finals:
            config = load(job, row.overrides(rows.Task(("good", "bad"), True), 5, final))
            assert config.portfolio.final == final and config.seed == 5 and config.training.threads == 1
    for weights in (None, *rows.WEIGHTS[2]):
        config = load(job, rows.reference_overrides(rows.Task(("good", "bad"), True), 0, weights))
        assert weights is None or tuple(s.weight for s in config.data.auxiliary.values()) == weights


def run_suite(monkeypatch, files, out, *arguments):
    given = [
        "--quick",
        "--workers",
        1,
        "--files",
        files,
        "--out",
        out,
        "--pairs",
        "wine_random",
        "--seeds",
        1,
        *arguments,
    ]
    monkeypatch.setattr("sys.argv", ["portfolio", *map(str, given)])
    runner.main()


def test_results_are_written_resumed_and_refused(monkeypatch, files, tmp_path, capsys):
    file = tmp_path / "development.jsonl"
    run_suite(monkeypatch, files, tmp_path, "--rows", "core", "--budget", 0)
    assert "7 are left for another call" in capsys.readouterr().out
    run_suite(monkeypatch, files, tmp_path, "--rows", "core")
    header, lines = record.load(file)
    assert header["quick"] and header["made_with"]["torch"] == torch.__version__ and "revision" in header["made_with"]
    assert {row for _, row, _ in lines} == set(rows.lines([rows.CORE]))
    multitask = lines["wine_random", "multitask", 0]
    assert len(multitask["tried"]) == 8
    assert multitask["validation"] == max(validation for validation, _ in multitask["tried"].values())
    whole = file.read_bytes()
    run_suite(monkeypatch, files, tmp_path, "--rows", "core")
    assert file.read_bytes() == whole
    file.write_bytes(whole + b'{"pair": "cut o')
    assert record.load(file) == (header, lines)
    assert "| wine_random | 1 |" in page.page({"development": (header, lines)})
    monkeypatch.setenv("ATTITTUD_REVISION", "another")
    with pytest.raises(SystemExit, match="was made with revision"):
        run_suite(monkeypatch, files, tmp_path)


def test_rates_are_tuned_on_validation_and_go_into_jobs(monkeypatch, files, tmp_path):
    monkeypatch.setattr(tune, "FILES", files)
    monkeypatch.setattr(tune, "SEEDS", range(1000, 1001))
    monkeypatch.setattr(tune, "GRID", (1e-6, 1e-2))
    monkeypatch.setattr(
        "sys.argv", ["tune", "--development", "--pairs", "wine_random", "--out", str(tmp_path / "rates.json")]
    )
    tune.main()
    found = prepare.rates(tmp_path / "rates.json")["wine_random"]
    assert (
        found["rate"] == 1e-2
        and found["validation"]["0.01"]["primary_only"] > found["validation"]["1e-06"]["primary_only"]
    )
    monkeypatch.setattr(prepare, "rates", lambda: {"wine_random": found})
    pair, built = prepare.make("wine_random", Folder(tmp_path), prepare.DEVELOPMENT)
    prepare.save(pair, built, tmp_path / "wine_random")
    for folder in (tmp_path, files / prepare.DEVELOPMENT):
        assert load(folder / "wine_random" / "job.yaml").training.guided.lr == 1e-2


def test_cat_vs_dog_follows_the_paper_with_as_many_validation_as_training_labels():
    config = load(runner.CAT_VS_DOG, rows.ROWS["portfolio"].overrides(rows.Task(("others",), False), 1, rows.SINGLE))
    assert (config.data.primary.train, config.data.primary.validation) == (100, 100)
    assert config.strategy.name == "portfolio" and config.model.name == "wideresnet-22-4"


def test_held_out_pairs_need_the_flag(monkeypatch, files, tmp_path):
    with pytest.raises(SystemExit, match="no development pair 'rules_random'"):
        run_suite(monkeypatch, files, tmp_path, "--pairs", "rules_random")
