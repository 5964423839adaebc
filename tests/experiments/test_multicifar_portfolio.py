"""The portfolio on four superclasses of MultiCifar100: declared, run in miniature, resumed, and
shown apart from the table.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attittud_lab.output.progress import Progress
from attittud_lab.portfolio import run as product
from experiments.paper.rows import CONFIGS
from experiments.reproduce import __main__ as command
from experiments.reproduce import portfolio
from experiments.reproduce.experiments import EXPERIMENTS
from experiments.reproduce.miniature import write_miniature
from experiments.reproduce.results import read_lines
from experiments.reproduce.run import QUICK, read_part

"""The superclasses that the table's last runs are about."""


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


@pytest.mark.nightly
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


@pytest.mark.parametrize(
    ("words", "culprit"),
    [
        ([portfolio.NAME], "--data"),
        ([portfolio.NAME, "table4-bases", "--quick"], "table4-bases"),
        ([portfolio.NAME, "--quick", "--part", "no"], "--part no"),
    ],
)
def test_wrong_input_is_explained(
    words: list[str], culprit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        command.main([*words, "--work", str(tmp_path)])
    assert exit_.value.code == 2 and culprit in " ".join(capsys.readouterr().err.split())
