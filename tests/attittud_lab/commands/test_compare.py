"""`attittud compare` as a person types it."""

import json
import re
import shlex
from pathlib import Path

import pytest

from attittud_lab import cli
from tests.helpers.comparisons import JOB

# ---------------------------------------------------------------------------------- as one types it


def typed(*arguments: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["compare", *map(str, arguments)])
    out, err = capsys.readouterr()
    return int(stopped.value.code or 0), out, err


def test_compare_runs_with_a_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    words = [
        tmp_path / "job.yaml",
        f"output={tmp_path / 'runs'}",
        "training.mode=joint",
        "--budget",
        "0.05s",
    ]
    code, out, err = typed(*words, capsys=capsys)
    assert code == 0
    result = json.loads((tmp_path / "runs/job/compare/comparison.json").read_text())
    decision, following = out.split("Decision at equal seconds: ")[1].splitlines()[:2]
    assert decision == result["decision"]["text"]
    command = shlex.join(
        map(str, ["attittud", "compare", *words[:3], "compare.budget=0.05s", "compare.seeds=5"])
    )
    assert following.startswith(f"Next: `{command}` adds 3 seeds in about ")
    assert result["tables"][1]["seconds"] == 0.05 and "0.05 s, as the budget says" in out
    code, again, quiet = typed(*words, "--quiet", capsys=capsys)
    assert (code, quiet) == (0, "") and re.sub("in about .* and", "", again) == re.sub(
        "in about .* and", "", out
    )
    # What is written where there is no terminal: the number of runs, how long they will take, and
    # each of them.
    first, *lines = err.splitlines()
    runs = len(list((tmp_path / "runs").rglob("result.json")))
    at_steps = "8 to tune the strategies and to compare them at equal steps"
    assert first.startswith(
        f"14 runs of 3 strategies: {at_steps}, and 6 to compare them at equal seconds. "
    )
    assert [line for line in lines if "run 1 of 14: primary_only, seed 0" in line] == lines[1:2]
    assert (
        sum(bool(re.search(f"run \\d+ of (14|{runs})(, .* left)?: ", line)) for line in lines)
        == runs
    )
    assert sum("validation accuracy" in line for line in lines) >= runs
    forecasts = [line for line in lines if line.startswith("Forecast: ")]
    assert ", because a step takes from " in forecasts[0] and forecasts[0] == lines[0]
    assert (
        "the remaining 11 runs, now that every strategy has been run once" in forecasts[1]
        and len(forecasts) == 2
    )


def test_a_quick_comparison_says_what_it_left_out_and_the_full_one_reuses_its_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("seeds: 2, tuning_seeds: 1, ", ""))
    words = [tmp_path / "job.yaml", f"output={tmp_path / 'runs'}", "training.mode=joint"]
    code, out, err = typed(*words, "--quick", capsys=capsys)
    result = json.loads((tmp_path / "runs/job/compare/comparison.json").read_text())
    assert (
        code == 0
        and result["seeds"] == [0, 1, 2]
        and [t["name"] for t in result["tables"]] == ["Equal steps"]
    )
    assert err.startswith(
        "--quick: 11 runs of 3 strategies, to tune them and to compare them at equal steps."
    )
    said = "--quick left out: 2 of 5 seeds (only large differences can be shown), tuning on more than one seed, the table at "
    assert result["gave_up"].startswith(said) and (out + err).count("--quick left out") == 1
    whole = shlex.join(map(str, ["attittud", "compare", *words]))
    assert result["whole"]["command"] == whole
    assert " The same command without --quick trains up to 18 more runs, which take about " in out
    assert (tmp_path / "runs/job/compare/report.html").read_text().count("--quick left out") == 1
    small = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    code, out, _ = typed(*words, capsys=capsys)
    assert (
        code == 0 and "--quick" not in out and len(list(tmp_path.rglob("result.json"))) > len(small)
    )
    assert {path: path.stat().st_mtime_ns for path in small} == small
    # Seeds that are asked for win over the smaller number of --quick. All of them are there.
    code, out, _ = typed(*words, "--quick", "compare.seeds=4", capsys=capsys)
    assert code == 0 and "over 4 seeds" in out and "left out: tuning" in out
    code, _, err = typed(*words, "--quick", "--budget", "1m", capsys=capsys)
    assert code == 2 and "--quick trains no runs at equal seconds" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a CONFIG, or both --primary PATH and --auxiliary PATH"),
        (["job.yaml", "--primary", "digits", "--auxiliary", "digits"], "not both"),
        (
            ["--primary", "nowhere", "--auxiliary", "digits"],
            "nowhere: there is no such file or folder",
        ),
        (
            ["--primary", "digits", "--auxiliary", "digits", "--budget", "soon"],
            "budget: 'soon' is not a duration",
        ),
    ],
)
def test_bad_input_is_one_paragraph_and_code_2(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = typed(*arguments, capsys=capsys)
    assert (code, out) == (2, "") and message in err
    assert err.startswith("attittud: ") and err.count("\n") == 1
    assert not list(tmp_path.iterdir())
