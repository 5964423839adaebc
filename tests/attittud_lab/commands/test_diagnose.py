"""`attittud diagnose` as a person types it."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from attittud_lab.cli import main
from attittud_lab.commands.diagnose import show
from attittud_lab.diagnose import Probe
from attittud_lab.errors import InputError
from attittud_lab.portfolio.leaderboard import CHANCE
from tests.helpers.diagnosis import JOB

# ------------------------------------------------------------------------------------------------------ the command


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return int(caught.value.code or 0)


@pytest.mark.usefixtures("here")
def test_a_long_diagnosis_shows_its_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attittud_lab.output.progress.SILENT", 0.0)
    assert call("diagnose", "job.yaml", "log_every=20", "--no-chance") == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" steps")[0] for line in lines] == ["diagnose 20/60", "diagnose 40/60"]
    assert all(line.endswith(" left") for line in lines)
    assert call("diagnose", "job.yaml", "--quiet", "--no-chance") == 0 and capsys.readouterr().err == ""


@pytest.mark.usefixtures("here")
def test_diagnose_prints_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("diagnose", "job.yaml", "seed=1") == 0
    out, err = capsys.readouterr()
    result = json.loads(Path("runs/job/diagnose/diagnose.json").read_text())
    lines = out.splitlines()
    assert "\x1b" not in out and lines[-1] == result["verdict"]
    # What the chance costs is said before it is looked for; then the chance, and how it was found.
    assert err.startswith(
        "estimating the chance that the auxiliary data help, from the first 20% of the steps: 6 candidate strategies on 3 folds "
        "of the labels take as long as about 3.6 full runs: "
    )
    assert err.count("\n") == 1
    found, text = result["chance"], " ".join(out.split())
    assert 0 < found["value"] < 1 and found["value"] == CHANCE.of(found["evidence"]) and len(found["losses"]) == 6
    assert f"Chance that the auxiliary data help: {found['value']:.0%}" in text
    assert "short runs on 3 folds of the labels" in text
    assert sorted(path.name for path in Path("runs/job/diagnose").iterdir() if path.suffix) == ["diagnose.json"]
    assert "60 steps of the 200 requested" in lines[0] and "early half" in out and "late half" in out
    assert "None of them has been validated" in text and result["config"]["seed"] == 1
    assert result["made_with"]["torch"] and result["steps"] == 60 and result["block"] == 5
    assert list(result["sources"]) == ["more", "other"]
    for source in result["sources"].values():
        for period in ("all", "early", "late"):
            parts = {name: source[name][period] for name in ("captured", "helpful", "harmful", "neutral")}
            assert parts["helpful"]["mean"] + parts["harmful"]["mean"] == pytest.approx(parts["captured"]["mean"])
            assert parts["captured"]["mean"] + parts["neutral"]["mean"] == pytest.approx(1)
            assert all(part["low"] <= part["mean"] <= part["high"] for part in parts.values())
        assert sum(layer["weight"]["all"]["mean"] for layer in source["layers"].values()) == pytest.approx(1)
    # Only one source shares the head of the primary task.
    heads = [source["layers"]["heads.primary"]["weight"]["all"]["mean"] for source in result["sources"].values()]
    assert heads[0] > 0 and heads[1] == 0
    signs = result["half_batches"]
    assert signs["all"]["agreeing"] == signs["early"]["agreeing"] + signs["late"]["agreeing"]
    assert signs["all"]["n"] == 240
    assert "opposed" not in result["verdict"] and "conflict" not in result["verdict"]  # never a reason
    fired = [f"({n}) {alarm['found']}; try: " for n, alarm in enumerate(result["alarms"], 1) if alarm["fired"]]
    assert all(words in lines[-1] for words in fired) and lines[-1].count("; try: ") == len(fired)
    assert result["alarms"][0]["fired"] == (result["captured_primary"]["all"]["mean"] < 0.05)
    # On a terminal
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    show(result, Path("x"), console)
    assert "\x1b" in console.file.getvalue() and "early half" in console.file.getvalue()


@pytest.mark.usefixtures("here")
def test_estimating_the_chance_can_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("diagnose", "job.yaml", "--no-chance") == 0
    out, err = capsys.readouterr()
    assert err == "" and "hance that" not in out
    assert json.loads(Path("runs/job/diagnose/diagnose.json").read_text())["chance"] is None


@pytest.mark.usefixtures("here")
def test_a_portfolio_without_validation_and_test_is_diagnosed(capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["strategy.name=portfolio", "data.primary.validation=0", "data.primary.test=0", "portfolio.rungs=[]"]
    assert call("diagnose", "job.yaml", *changes, "--quiet") == 0
    out, err = capsys.readouterr()
    assert err == "" and "Chance that the auxiliary data help: " in out and "20% of the steps" in " ".join(out.split())


@pytest.mark.usefixtures("here")
def test_a_chance_that_cannot_be_estimated_is_explained(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise InputError("no class has two examples; give more labels")

    monkeypatch.setattr("attittud_lab.diagnose.first_rung", refused)
    assert call("diagnose", "job.yaml") == 0
    words = "Chance that the auxiliary data help: not known. no class has two examples; give more labels"
    assert words in " ".join(capsys.readouterr().out.split())


MISTAKES = {
    ("nowhere.yaml",): "cannot read the configuration",
    ("job.yaml", "data.auxiliary={}"): "nothing to diagnose",
    ("job.yaml", "strategy=flipp"): "Did you mean 'flip'?",
    ("job.yaml", "strategy.refresh_every=20"): "to at least 80",
    ("job.yaml", "--steps", "3"): "--steps",
    ("job.yaml", "training.guided.lr=1e30", "training.guided.clip=null", "log_every=1"): "diverged",
    ("job.yaml", "output=job.yaml"): "choose another folder with output=FOLDER",
}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_mistakes_are_explained(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("diagnose", *arguments) == 2
    err = capsys.readouterr().err
    assert MISTAKES[arguments] in err and err.count("\n") == 1, err
    assert not list(Path().rglob("diagnose.json"))


@pytest.mark.usefixtures("here")
def test_ctrl_c_ends_a_diagnosis_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Probe, "measure", interrupted)
    assert call("diagnose", "job.yaml") == 130
    assert capsys.readouterr().err.startswith("attittud: interrupted; a diagnosis keeps nothing before its end")
    assert not list(Path().rglob("diagnose.json"))


def test_the_help_of_diagnose_explains_its_options_and_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("diagnose", "--help") == 0
    assert "do not predict" in " ".join(capsys.readouterr().out.split())
