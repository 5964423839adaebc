"""The experiment on protecting a language model: scores, the rules that decide, and a tiny run of every kind."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs the extra 'transformers'")
pytest.importorskip("peft", reason="needs peft")

from experiments.guard import __main__ as command
from experiments.guard.data import REPLIES, load_sets, split
from experiments.guard.methods import METHODS
from experiments.guard.page import HERE, PAGE, Page, page
from experiments.guard.pool import MANY, SEEDS, load, stage_1, stage_2
from experiments.guard.prepare import cut, join, made_up
from experiments.guard.score import TUNING, Asked, Results, at_gain, less, ratio
from experiments.guard.train import DRIFT, QUICK, RATES, Bench, Run, Sizes

CHOSEN = {"rates": dict.fromkeys(METHODS, 1e-5), "replay": "replay_5", "projections": ["a_gem", "ogpsa"]}
CHOSEN["scores"] = dict.fromkeys(METHODS, 0.1)
STEPS = (50, 100, 150)
BY_TASK = dict.fromkeys("abc", SEEDS)
GAIN = "The gain to reach, 70 % of plain's final gain, is 0.70 nats"


def line(run: Run, slope: float, noise: float = 0.0) -> dict[str, Any]:
    """A run that gains 1 in the end and forgets `slope` for each gain."""
    retained = ("retain", "real_authors") if run.task == "b" else ("instructions",)
    start = {"new": 3.0, **dict.fromkeys(retained, 2.0), "wikitext": 4.0}
    start |= {name + DRIFT: 0.0 for name in (*retained, "wikitext")}
    sign = 1 if run.task == "b" else -1

    def losses(share: float) -> dict[str, float]:
        moved = {name: start[name] + share * (slope + noise) for name in (*retained, "wikitext")}
        drift = {name + DRIFT: share for name in moved}
        return {"new": start["new"] + sign * share, **moved, **drift}

    found = [{"step": step, "seconds": 1.0, "losses": losses(step / 150)} for step in STEPS]
    more = (
        {"averages": {str(x): losses(x) for x in (0.25, 0.5, 0.75)}} if run.method == "plain" and not run.lora else {}
    )
    return {"key": run.key, **vars(run), "start": start, "checkpoints": found, "step_seconds": 0.1, **more}


def whole(slopes: dict[str, float]) -> Results:
    """All runs of stage 2; methods that are not named forget 1 for each gain."""
    runs = stage_2(CHOSEN)
    times = {f"{task}/{method}": 1.0 for task in "abc" for method in METHODS}
    return Results([line(run, slopes.get(run.method, 1.0), 0.01 * run.seed) for run in runs], times)


def test_forgetting_is_read_where_the_gain_is_reached_first() -> None:
    points = [(0.0, 0.0, 0.0), (50.0, 1.0, 0.2), (100.0, 0.5, 0.3), (150.0, 2.0, 1.2)]
    assert at_gain(points, 0.5) == pytest.approx(0.1) and at_gain(points, 1.25) == pytest.approx(0.75)
    assert at_gain(points, 0.5, steps=24) is None and at_gain(points, 0.5, steps=26) is not None
    assert at_gain(points, 2.5) is None and at_gain([], 0.5) is None


def test_a_ratio_has_the_interval_of_fieller() -> None:
    other = [1.0, 1.2, 0.9, 1.1]
    found = ratio([0.5 * x for x in other], other)
    assert found is not None and (found.value, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))
    found = ratio([0.4, 0.9, 0.2, 0.6], other)
    assert found is not None and found.low < 0.5 < found.high
    # An end of the interval is where the paired difference stops to be one.
    assert less([0.4, 0.9, 0.2, 0.6], other) == (found.high < 1)
    wide = ratio(other, [3.0, -2.0, 0.1, 0.2])
    assert wide is not None and math.isinf(wide.high) and ratio(other, [-1.0, -1.0, -1.0, -1.0]) is None


def test_stages_have_the_declared_runs() -> None:
    assert len(stage_1()) == 48 and len({run.key for run in stage_1()}) == 48
    runs = stage_2(CHOSEN)
    assert len(runs) == len({run.key for run in runs}) == 132 + 12
    assert {run.m for run in runs if run.method == "kl" and not run.lora} == set(MANY)


@pytest.mark.parametrize(
    ("slopes", "begins"),
    [
        ({"a_gem": 0.3}, "**Win**, by the rule that was fixed beforehand: a_gem with m = 32; a_gem with m = 128."),
        (
            {"a_gem": 0.7},
            (
                "**No win**, by the rules that were fixed beforehand (the list below explains the words). At the same gain, "
                "a projection has a significantly lower loss on the retained sets than KL in these cases only: GSM8K at equal "
                "steps (a_gem"
            ),
        ),
        ({"a_gem": 0.3, "kl": 0.3}, "**Killed**"),
        ({"a_gem": 0.3, "replay_5": 0.5}, "**No win**"),
        ({}, "**Killed**"),
    ],
)
def test_the_rules_decide(slopes: dict[str, float], begins: str) -> None:
    assert Page(whole(slopes), CHOSEN, BY_TASK).verdict().startswith(begins)


def test_nobody_can_beat_a_method_that_forgets_less_than_nothing() -> None:
    assert Page(whole({}), CHOSEN, BY_TASK).winnable("a", 32)
    below = Page(whole({CHOSEN["replay"]: -1.0}), CHOSEN, BY_TASK)
    assert not any(below.winnable(task, 32) for task in "abc") and "The rules left no room for a win" in below.limits()


def test_a_method_that_takes_too_long_or_learns_too_little_does_not_win() -> None:
    results = whole({"a_gem": 0.3})
    results.times |= {f"{task}/a_gem": 3.0 for task in "abc"}
    found = Page(results, CHOSEN, BY_TASK)
    assert not found.winners() and found.better_than("kl")
    assert results.scores(Asked("a", "a_gem", 32, minutes=True), SEEDS) == [None] * 4
    (slow,) = results.some(task="a", method="a_gem", m=128, seed=2, lora=False)
    slow["checkpoints"][:] = slow["checkpoints"][:1]
    assert Results(results.lines, {}).scores(Asked("a", "a_gem", 128), SEEDS)[2] is None


def test_stage_1_chooses_rates_replay_and_two_projections() -> None:
    assert not Results([], {}).chosen()
    slopes = {"a_gem": 0.4, "ogpsa": 0.2, "auto": 0.3, "random": 0.1, "replay_20": 0.5}
    lines = [line(run, slopes.get(run.method, 1.0) + (run.rate != 3e-5)) for run in stage_1()]
    chosen = Results(lines, {}).chosen()
    assert chosen["replay"] == "replay_20" and chosen["projections"] == ["ogpsa", "auto"]
    assert set(chosen["rates"].values()) == {3e-5}


def test_parts_are_put_together_again(tmp_path: Path) -> None:
    whole_file = tmp_path / "weights.gguf"
    whole_file.write_bytes(bytes(range(256)) * 5)
    parts = cut(whole_file, tmp_path / "parts", size=500)
    assert [part.stat().st_size for part in parts] == [427, 427, 426]
    assert join(tmp_path / "parts", tmp_path / "joined").read_bytes() == whole_file.read_bytes()
    parts[1].unlink()
    with pytest.raises(SystemExit, match="2 parts are there, not all"):
        join(tmp_path / "parts", tmp_path / "joined")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    files, out = tmp_path_factory.mktemp("files"), tmp_path_factory.mktemp("out")
    made_up(files)
    command.main(["--quick", "--stage", "0", "--files", str(files), "--out", str(out), "--device", "cpu"])
    return files, out


def test_held_out_sets_are_the_same_for_all_seeds(folders: tuple[Path, Path]) -> None:
    files, out = folders
    sets, _ = load_sets(files / "data.npz")
    for task in "abc":
        first, other = (split(out, sets, task, 32, seed, judged=True) for seed in (0, 1))
        assert first.measured == other.measured and first.protected != other.protected
        assert len(first.protected) == 24 and len(first.judges) == 8
        measured = [
            str(row) for name, rows in first.measured.items() if name in ("instructions", "retain") for row in rows
        ]
        assert task == "b" or not {str(row) for row in first.protected + first.judges} & set(measured)
        assert task == "b" or len(first.new) == len(sets["gsm8k"]) - 128
    replies = json.loads((out / REPLIES).read_text())
    assert all(row["input_ids"][len(row["labels"]) - 1] == row["labels"][-1] for row in replies)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs(folders: tuple[Path, Path], method: str) -> None:
    bench = Bench(*folders, "cpu", Sizes((1, 2), 4, 64, width=8))
    found = bench.run(Run("c", method, 1e-3, 32, 0))
    assert [at["step"] for at in found["checkpoints"]] == [1, 2]
    assert all(math.isfinite(x) for at in found["checkpoints"] for x in at["losses"].values())
    drift = [losses["instructions" + DRIFT] for losses in (found["start"], found["checkpoints"][-1]["losses"])]
    assert drift[0] == 0.0 < drift[1]
    assert ("averages" in found) == (method == "plain")
    assert found["checkpoints"][-1]["losses"]["new"] != found["start"]["new"]
    if method == "plain":  # the next run begins where this one began, with all weights or LoRA
        again = bench.run(Run("c", "a_gem", 1e-3, 32, 0, lora=True))
        assert (
            again["start"] == found["start"]
            and bench.run(Run("c", method, 1e-3, 32, 0))["checkpoints"][0]["losses"]
            == (found["checkpoints"][0]["losses"])
        )


def test_a_stage_skips_what_is_there(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files, out = folders
    runs = [Run("b", "plain", 1e-3, 0, TUNING), Run("b", "kl", 1e-3, 32, TUNING)]
    monkeypatch.setattr(command, "stage_1", lambda: runs)
    words = ["--quick", "--stage", "1", "--files", str(files), "--out", str(out), "--device", "cpu"]
    command.main([*words, "--budget", "0"])
    assert "0 new runs, 2 are left" in capsys.readouterr().out
    command.main(words)
    command.main(words)
    assert "2 new runs, 0 are left" in (said := capsys.readouterr().out) and "0 new runs, 0 are left" in said
    assert [len(found["checkpoints"]) for found in load(out).lines] == [len(QUICK.checkpoints)] * 2
    assert "0 of 48 runs of stage 1 are done" in page(out)
    with pytest.raises(SystemExit, match="stage 1 is not finished"):
        command.main([*words[:2], "2", *words[3:]])
    with pytest.raises(SystemExit, match="run --stage 0 first"):
        command.main(["--stage", "1", "--files", str(files), "--out", str(tmp_path), "--device", "cpu"])


def test_the_page_is_what_the_results_give() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(HERE / "results"), "run `python -m experiments.guard.page`"


def test_the_page_of_finished_stages(tmp_path: Path) -> None:
    slopes = {"a_gem": 0.3, "ogpsa": 0.4, "replay_5": 0.8}
    first = [line(run, slopes.get(run.method, 1.0) + (run.rate != RATES[0])) for run in stage_1()]
    chosen = Results(first, {}).chosen()
    second = [line(run, slopes.get(run.method, 1.0), 0.01 * run.seed) for run in stage_2(chosen)]
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in [*first, *second]))
    (tmp_path / "times.json").write_text(json.dumps({f"{t}/{name}": 1.0 for t in "abc" for name in METHODS}))
    text = page(tmp_path)
    assert "**Win**" in text.splitlines()[2] and "| a_gem | 1e-05 |" in text and "### unlearn TOFU" in text
    gains = [line for line in text.splitlines() if line.startswith("The gain to reach")]
    assert gains == [f"{GAIN}; there are 4 seeds."] * 3 and "### LoRA" in text
    # Without step times nothing can be said about equal minutes.
    (tmp_path / "times.json").write_text(json.dumps({f"{t}/{name}": 1.0 for t in "ab" for name in METHODS}))
    untimed = page(tmp_path)
    assert "**Not known yet**: step times of c/plain, c/kl, c/" in untimed and "not timed" in untimed
    (tmp_path / "times.json").write_text(json.dumps({f"{t}/{name}": 1.0 for t in "abc" for name in METHODS}))
    # A seed with a missing run does not count for its task.
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in [*first, *second[1:]]))
    text = page(tmp_path)
    gains = [line for line in text.splitlines() if line.startswith("The gain to reach")]
    assert "**Not known yet**: 1 runs of stage 2 are missing." in text
    assert gains == [f"{GAIN}; there are 3 seeds.", *[f"{GAIN}; there are 4 seeds."] * 2]
