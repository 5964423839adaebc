"""`attittud compare` as a person types it."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.helpers.commands import run
from tests.helpers.comparisons import JOB


def test_compare_runs_with_a_configuration(tmp_path, capsys):
    (tmp_path / "job.yaml").write_text(JOB)
    words = ["compare", "job.yaml", "training.mode=joint", "--budget", "0.05s"]
    code, out, err = run(*words, capsys=capsys)
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
    code, again, quiet = run(*words, "--quiet", capsys=capsys)
    assert (code, quiet) == (0, "")
    assert re.sub("in about .* and", "", again) == re.sub("in about .* and", "", out)
    runs = len(list((tmp_path / "runs").rglob("result.json")))
    assert sum("validation accuracy" in line for line in err.splitlines()) >= runs


def test_a_quick_comparison_says_what_it_left_out_and_the_full_one_reuses_its_runs(
    tmp_path, capsys
):
    (tmp_path / "job.yaml").write_text(JOB.replace("seeds: 2, tuning_seeds: 1, ", ""))
    words = ["compare", "job.yaml", "training.mode=joint"]
    code, out, err = run(*words, "--quick", capsys=capsys)
    result = json.loads((tmp_path / "runs/job/compare/comparison.json").read_text())
    assert code == 0
    assert result["seeds"] == [0, 1, 2]
    assert [t["name"] for t in result["tables"]] == ["Equal steps"]
    assert "2 of 5 seeds" in result["gave_up"] and (out + err).count("--quick left out") == 1
    whole = shlex.join(["attittud", *words])
    assert result["whole"]["command"] == whole
    small = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    code, out, _ = run(*words, capsys=capsys)
    assert code == 0 and "--quick" not in out
    assert len(list(tmp_path.rglob("result.json"))) > len(small)
    assert {path: path.stat().st_mtime_ns for path in small} == small
    # Seeds that are asked for win over the smaller number of --quick. All of them are there.
    code, out, _ = run(*words, "--quick", "compare.seeds=4", capsys=capsys)
    assert code == 0 and "over 4 seeds" in out and "left out: tuning" in out
    code, _, err = run(*words, "--quick", "--budget", "1m", capsys=capsys)
    assert code == 2 and "--quick" in err


DIGITS = ["--primary", "digits", "--auxiliary", "digits"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "CONFIG"),
        (["job.yaml", *DIGITS], "not both"),
        (["--primary", "nowhere", "--auxiliary", "digits"], "nowhere"),
        ([*DIGITS, "--budget", "soon"], "'soon'"),
        (["training.guided.steps=0", *DIGITS, "--budget", "soon"], "training.guided.steps=0"),
        (["job.yaml", "--workers", "2", "--ray"], "--workers and --ray"),
        (["job.yaml", "--workers", "0"], "--workers"),
        (["job.yaml", "--ray", "--quiet"], "attittud[ray]"),
    ],
)
def test_bad_input_is_one_paragraph_and_code_2(arguments, message, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    code, out, err = run("compare", *arguments, capsys=capsys)
    assert (code, out) == (2, "") and message in err
    assert err.startswith("attittud: ") and err.count("\n") == 1
    assert [path.name for path in Path().iterdir()] == ["job.yaml"]
