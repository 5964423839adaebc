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
    # The terminal says what the report says.
    decision = json.loads((tmp_path / "runs/job/compare/report.json").read_text())["decision"]
    assert decision["text"] == result["decision"]["text"]
    lines = [f"{decision['about']}: {decision['text']}"]
    lines += [f"Next: `{step['command']}` {step['why']}." for step in decision["next"]]
    assert len(lines) == 2 and "\n".join(lines) in out
    assert "compare.seeds=5" in out
    assert result["tables"][1]["seconds"] == 0.05 and "0.05 s, as the budget says" in out
    code, again, quiet = typed(*words, "--quiet", capsys=capsys)
    assert (code, quiet) == (0, "") and re.sub("in about .* and", "", again) == re.sub(
        "in about .* and", "", out
    )
    runs = len(list((tmp_path / "runs").rglob("result.json")))
    assert sum("validation accuracy" in line for line in err.splitlines()) >= runs


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
    assert "2 of 5 seeds" in result["gave_up"] and (out + err).count("--quick left out") == 1
    whole = shlex.join(map(str, ["attittud", "compare", *words]))
    assert result["whole"]["command"] == whole
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
    assert code == 2 and "--quick" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "CONFIG"),
        (["job.yaml", "--primary", "digits", "--auxiliary", "digits"], "not both"),
        (["--primary", "nowhere", "--auxiliary", "digits"], "nowhere"),
        (["--primary", "digits", "--auxiliary", "digits", "--budget", "soon"], "'soon'"),
        (
            [
                "training.guided.steps=0",
                "--primary",
                "digits",
                "--auxiliary",
                "digits",
                "--budget",
                "soon",
            ],
            "training.guided.steps=0",
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
