"""The portfolio on four superclasses of MultiCifar100: declared, run in miniature, resumed, and
shown apart from the table.
"""

import json
import shutil
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from attittud_lab.config.load import load
from attittud_lab.output.progress import Progress
from attittud_lab.portfolio import run as product
from experiments.paper import multicifar, multicifar_portfolio
from experiments.paper import page as page_module
from experiments.paper import rows as reader
from experiments.paper.rows import CONFIGS, HERE
from experiments.reproduce import __main__ as command
from experiments.reproduce import portfolio
from experiments.reproduce.experiments import EXPERIMENTS
from experiments.reproduce.miniature import write_miniature
from experiments.reproduce.results import read_lines
from experiments.reproduce.run import QUICK, read_part

"""The superclasses that the table's last runs are about."""


def test_a_portfolio_trains_as_the_rows_of_the_table_do() -> None:
    """The settings that the search chose for every row are those of the file; only the strategy is
    another one.
    """
    classes = ["data.primary.classes=[a, b]", "data.auxiliary.others.exclude=[a, b]"]
    own, table = (
        load(CONFIGS / f"{name}.yaml", classes) for name in (portfolio.NAME, portfolio.TABLE)
    )
    assert (own.data, own.model, own.training, own.seed) == (
        table.data,
        table.model,
        table.training,
        table.seed,
    )
    (chosen,) = {
        row.settings
        for row in multicifar.column().rows.values()
        if "primary_weight" not in row.changes
    }
    assert chosen == "lr 1e-3, dropout 0.1, fine-tuning lr 5e-5, keeps last"
    guided, finetune = own.training.guided, own.training.finetune
    assert (guided.lr, own.model.dropout, finetune.lr, guided.select) == (1e-3, 0.1, 5e-5, "last")
    assert own.portfolio.budget is None, "the clock must not decide what is compared"


def quick_config(folder: Path) -> Any:
    data = write_miniature(folder, "cifar100")
    changes = EXPERIMENTS[portfolio.TABLE].parts(data)["second"][1]
    return read_part(CONFIGS, (f"{portfolio.NAME}.yaml", changes), QUICK)


def quick(folder: Path, **more: Any) -> Any:
    given: dict[str, Any] = {
        "configs": CONFIGS,
        "results": folder / "results",
        "work": folder / "work",
    }
    return portfolio.run_portfolios(
        None, quick=True, overrides=[], progress=Progress(), **given | more
    )


def test_it_stops_when_time_is_up_and_continues_as_if_it_had_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both models are, to the bit, those of a portfolio that trains its own trials."""
    assert quick(tmp_path, budget=-1.0).missing == ["second"]
    seen, original = [], portfolio.Trials.one

    def one(self: Any, job: Any) -> Any:
        seen.append(job)
        if len(seen) == 8:
            raise KeyboardInterrupt
        return original(self, job)

    monkeypatch.setattr(portfolio.Trials, "one", one)
    with pytest.raises(KeyboardInterrupt):
        quick(tmp_path)
    outcome = quick(tmp_path)
    assert (outcome.finished, outcome.missing) == (["second"], [])
    (line,) = read_lines(outcome.results[0])
    config = quick_config(tmp_path / "work")
    for final in portfolio.FINALS:
        own = replace(config, portfolio=replace(config.portfolio, final=final))
        alone = product.run(own, tmp_path / final)
        assert (line["portfolio"][final]["test"], line["portfolio"][final]["validation"]) == (
            alone.test,
            alone.validation,
        )
    assert line["result"]["test"] == line["portfolio"]["single"]["test"] and line["seconds"] > 0
    assert line["portfolio"]["single"]["runs"] > line["portfolio"]["ensemble"]["runs"] > 3
    assert line["portfolio"]["single"]["labels"] == 140 and line["made_with"]["repeatable"] is True
    assert "compiled" not in line["made_with"] and not list(
        (tmp_path / "work" / portfolio.NAME / "second").glob("trials")
    )
    count = len(seen)
    assert (
        quick(tmp_path).finished == ["second"]
        and len(seen) == count
        and len(read_lines(outcome.results[0])) == 1
    )


def test_the_command_runs_it_in_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        command.main(
            [portfolio.NAME, "--quick", "--workers", "2", "--beside", "1", "--work", str(tmp_path)]
        )
    assert exit_.value.code == 0, capsys.readouterr().err
    (line,) = read_lines(tmp_path / "results" / f"{portfolio.NAME}.jsonl")
    assert line["made_with"]["side_by_side"] == 3
    assert "second: rung 1 of 3 is over, after " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([portfolio.NAME], "name the folder with the parquet files of CIFAR-100 by --data"),
        (
            [portfolio.NAME, "table4-bases", "--quick"],
            f"{portfolio.NAME} is run alone; leave table4-bases out",
        ),
        (
            [portfolio.NAME, "--quick", "--part", "no"],
            f"--part no: there is no such part; {portfolio.NAME} has second",
        ),
    ],
)
def test_wrong_input_is_explained(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        command.main([*words, "--work", str(tmp_path)])
    assert exit_.value.code == 2 and message in " ".join(capsys.readouterr().err.split())


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The committed results of the table, to which a test adds what it likes."""
    for path in (HERE / "results").glob("*.jsonl"):
        shutil.copy(path, tmp_path)
    (tmp_path / f"{portfolio.NAME}.jsonl").unlink(missing_ok=True)
    monkeypatch.setattr(reader, "RESULTS", tmp_path)
    monkeypatch.setattr(page_module, "RESULTS", tmp_path)
    return tmp_path


def add_portfolio(results: Path, gains: tuple[float, ...] = (0.02, 0.04, 0.0, 0.0312)) -> None:
    """Lines of portfolios whose `single` is this much above multitask, and `ensemble` one point
    more.
    """
    multitask = multicifar.column().rows["multitask"].test
    with (results / f"{portfolio.NAME}.jsonl").open("w", encoding="utf-8") as file:
        for name, gain in zip(portfolio.OTHERS, gains, strict=False):
            facts = {
                final: {
                    "test": {"accuracy": multitask[name] + gain + 0.01 * (final == "ensemble")},
                    "validation": {"accuracy": 0.7, "loss": 1.0},
                    "labels": 2500,
                    "runs": 10.5,
                    "winner": "multitask",
                    "picks": {"multitask": 2, "pretrain": 1},
                }
                for final in portfolio.FINALS
            }
            about = {
                "device": "NVIDIA H200",
                "torch": "2.11.0",
                "repeatable": True,
                "compiled": True,
                "side_by_side": 4,
            }
            line = {
                "part": name,
                "run": "portfolio/seed-0",
                "fingerprint": name,
                "seconds": 480.0,
                "curves": {},
            }
            result = {
                "metric": "accuracy",
                "seed": 0,
                **{k: facts["single"][k] for k in ("test", "validation")},
            }
            file.write(
                json.dumps(line | {"result": result, "portfolio": facts, "made_with": about}) + "\n"
            )


def test_the_page_has_it_below_the_table_with_four_pairs(results: Path) -> None:
    before = page_module.page()
    assert "reproduce multicifar100-portfolio --data FOLDER` runs it" in before
    add_portfolio(results)
    text = page_module.page()
    table, _, told = text.partition(multicifar_portfolio.TITLE)
    assert before.partition(multicifar_portfolio.TITLE)[0] == table, (
        "the table and its claims stay as they are"
    )
    told = told.partition("\n## ")[0]
    points = [2.0, 4.0, 0.0, 3.12]
    low, high = stats.t.interval(0.95, 3, statistics.fmean(points), stats.sem(points))
    p = stats.ttest_1samp(points, 0).pvalue
    single = f"| Multitask | +2.3 | {low:+.1f} to {high:+.1f} | {p:.3f} | +3.3 |"
    assert single in told
    assert "| multitask | multitask x 2, pretrain | 10.5 |" in told and "| mean |" in told
    said = " ".join(told.split())
    assert "A portfolio has the 2,500 labels of a superclass" in said
    assert "Rows of the table train on 2,000 of them and choose on the other 500." in said
    device = (480 / 4) / (60 * multicifar.minutes(multicifar.lines()) / len(multicifar.lines()))
    assert (
        "the steps of about 10 runs, a row of the table the steps of one run. On the device a portfolio took as long as "
        f"{device:.0f} runs" in said
    )
    assert (
        "No candidate has that ratio" in said and "over 4 superclasses with one seed each" in said
    )
    assert (
        "a mean must be 1.6 times as large as the standard deviation" in said
        and "we draw no conclusion" in said
    )
    minutes = multicifar.minutes(multicifar.lines())
    assert (
        f"The portfolios took 8 minutes on the device and the table {minutes:.0f}: {8 + minutes:.0f} of the 60 minutes"
        in said
    )
    assert "so far" not in said
    assert "| multicifar100-portfolio | NVIDIA H200 |" in text
    add_portfolio(results, (0.02, 0.04))
    assert "**2 of 4 have been run so far.**" in multicifar_portfolio.section()
