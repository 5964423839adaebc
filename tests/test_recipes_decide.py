"""The decision of a comparison on made-up figures, and durations."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up import made_up
from rich.console import Console
from scipy import stats

from attittud_lab.compare.decide import ComparedTable, Scores, decide
from attittud_lab.compare.table import by_label, notes, show
from attittud_lab.errors import InputError
from attittud_lab.output.progress import parse_duration, readable
from attittud_lab.statistics import ALPHA

SEEDS = 6
NOISE = np.array([-1.0, 0.7, 0.2, -0.6, 1.1, -0.4]) / 100
"""What a seed does to all strategies alike."""


def rows(spread: float = 0.001, **means: float | tuple[float, float]) -> list[Scores]:
    """Rows by their mean on test, or (on validation, on test); `spread` is what a seed does to one of them alone."""
    found = []
    for i, (label, mean) in enumerate(means.items()):
        validation, test = mean if isinstance(mean, tuple) else (mean, mean)
        own = spread * np.random.default_rng(i).normal(size=SEEDS)
        own -= own.mean()
        values = {name: dict(enumerate(m + NOISE + own)) for name, m in {"v": validation, "t": test}.items()}
        found.append(Scores(label, values["v"], values["t"]))
    return found


def outcome(table: ComparedTable) -> tuple[str, str | None]:
    return table.decision.outcome, table.decision.strategy


def test_clear_gain_over_both_baselines() -> None:
    table = decide(rows(primary_only=0.8, multitask=0.82, flip=0.85, pcgrad=0.81), 0.005)
    assert outcome(table) == ("use", "flip") and table.baseline == "multitask"
    assert "Use flip" in table.decision.text and "+5.0 points" in table.decision.text
    flip = next(row for row in table.rows if row.label == "flip")
    assert flip.to_baseline == flip.to_multitask and flip.to_baseline.mean == pytest.approx(0.03)
    assert next(row for row in table.rows if row.label == "multitask").to_baseline is None


def test_simple_sum_is_enough() -> None:
    assert outcome(decide(rows(primary_only=0.8, multitask=0.84, flip=0.82), 0.005)) == ("use", "multitask")


def test_a_strategy_not_shown_to_beat_multitask_is_not_recommended_over_it() -> None:
    table = decide(rows(0.004, primary_only=0.8, multitask=0.85, flip=0.8505), 0.005)
    assert outcome(table) == ("use", "multitask")
    assert "flip, the best on validation, against tuned multitask: +0.1 points" in table.decision.text


def test_a_strategy_where_multitask_itself_fails() -> None:
    table = decide(rows(primary_only=0.8, multitask=0.8, flip=0.85), 0.005)
    unsure = decide(
        [*rows(0.001, primary_only=0.8), *rows(0.06, x=0.0, multitask=0.82)[1:], *rows(0.001, a=0, b=0, flip=0.83)[2:]],
        0.005,
    )
    assert outcome(table) == ("use", "flip")
    assert outcome(unsure) == ("use", "flip") and "is open" in unsure.decision.text


def test_no_help_needs_a_narrow_interval() -> None:
    narrow = decide(rows(0.001, primary_only=0.8, multitask=0.79, flip=0.8), 0.005)
    assert outcome(narrow) == ("no_help", "primary_only")
    assert "does not help" in narrow.decision.text and "0.5 points is ruled out" in narrow.decision.text
    wide = decide(rows(0.03, primary_only=0.8, multitask=0.79, flip=0.8), 0.005)
    assert outcome(wide) == ("unclear", None)
    assert wide.decision.seeds_needed is not None and wide.decision.seeds_needed > SEEDS
    assert f"compare.seeds={wide.decision.seeds_needed}" in wide.decision.text


@pytest.mark.parametrize(("seeds", "outcome"), [(3, "unclear"), (5, "unclear"), (6, "no_help")])
def test_equal_figures_of_few_seeds_rule_nothing_out(seeds: int, outcome: str) -> None:
    """Eight test examples, all right in every run: the interval has no width, and says little."""
    same = dict.fromkeys(range(seeds), 1.0)
    decision = decide([Scores(label, same, same) for label in ("primary_only", "multitask", "flip")], 0.005).decision
    assert decision.outcome == outcome and decision.seeds_needed == (6 if outcome == "unclear" else None)


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_decide_nothing(seeds: int) -> None:
    """A gain of 20 points, the same but for a hair: the t-test of two seeds would be sure."""
    figures = {"primary_only": (0.5, 0.5), "multitask": (0.7, 0.7001)}
    scores = [Scores(label, *[dict(enumerate(values[:seeds]))] * 2) for label, values in figures.items()]
    decision = decide(scores, 0.005).decision
    assert (decision.outcome, decision.strategy, decision.row) == ("unclear", None, "multitask")
    assert decision.seeds_needed == 5 and "raise compare.seeds to at least 5" in decision.text
    assert "interval" not in decision.text and "nan" not in decision.text


def test_rows_without_a_common_seed_decide_nothing() -> None:
    """Each diverged where the other did not."""
    scores = [Scores("primary_only", {0: 0.5, 1: 0.5}, {0: 0.5, 1: 0.5}), Scores("multitask", {2: 0.9}, {2: 0.9})]
    assert outcome(decide(scores, 0.005)) == ("unclear", None)


def test_a_row_that_lost_seeds_is_not_recommended() -> None:
    """Its figures are those of the runs that did not diverge."""
    whole = rows(primary_only=0.8, multitask=0.82, flip=0.9)
    assert outcome(decide(whole, 0.005)) == ("use", "flip")
    validation, test = ({seed: side[seed] for seed in range(4)} for side in (whole[2].validation, whole[2].test))
    assert outcome(decide([*whole[:2], Scores("flip", validation, test)], 0.005)) == ("use", "multitask")


def test_harm_is_no_help() -> None:
    assert outcome(decide(rows(primary_only=0.8, multitask=0.7, flip=0.6), 0.005)) == ("no_help", "primary_only")


def test_a_gain_too_small_to_be_worth_it() -> None:
    figures = rows(0.0002, primary_only=0.8, multitask=0.801, flip=0.802)
    assert outcome(decide(figures, 0.01)) == ("no_help", "primary_only")
    assert outcome(decide(figures, 0.0)) == ("use", "flip")


def test_promising_but_uncertain_gain_asks_for_seeds() -> None:
    table = decide(rows(0.03, primary_only=0.8, multitask=0.8, flip=0.83), 0.005)
    assert outcome(table) == ("unclear", None)
    assert "show a difference of 3 points" in table.decision.text


def test_selection_looks_at_validation_alone() -> None:
    """flip is best on test by far, but not on validation: the decision must not notice."""
    table = decide(rows(primary_only=0.8, multitask=(0.9, 0.82), flip=(0.85, 0.99)), 0.005)
    assert outcome(table) == ("use", "multitask")
    table = decide(rows(primary_only=(0.9, 0.5), multitask=(0.8, 0.9)), 0.005)
    assert table.baseline == "primary_only"


def test_p_values_are_corrected_over_the_rows() -> None:
    figures = rows(0.01, primary_only=0.8, multitask=0.79, flip=0.815, pcgrad=0.81)
    table = decide(figures, 0.005)
    base = list(figures[0].test.values())
    raw = [stats.ttest_rel(list(row.test.values()), base).pvalue for row in figures[1:]]
    found = {row.label: row.to_primary_only.p for row in table.rows if row.to_primary_only}
    smallest = int(np.argmin(raw))
    assert found[figures[1 + smallest].label] == pytest.approx(min(1, 3 * raw[smallest]))
    assert all(corrected >= p for corrected, p in zip(found.values(), raw, strict=True))


def test_rows_are_compared_over_the_seeds_they_share() -> None:
    figures = rows(primary_only=0.8, multitask=0.82)
    lame = Scores("flip", {0: 0.5, 3: 0.5}, {0: 0.8, 3: 0.8})
    table = decide([*figures, lame], 0.005)
    assert [row.to_baseline.n for row in table.rows if row.label == "flip" and row.to_baseline] == [2]


@given(st.lists(st.floats(0, 1).map(lambda x: round(x, 3)), min_size=12, max_size=12), st.floats(0, 0.05))
def test_no_decision_without_evidence(values: list[float], worthwhile: float) -> None:
    """Whatever the figures are: "use" comes with a significant gain, "no help" with an interval below a useful gain."""
    figures = [
        Scores(label, dict(enumerate(values[4 * i : 4 * i + 4])), dict(enumerate(values[4 * i : 4 * i + 4])))
        for i, label in enumerate(("primary_only", "multitask", "flip"))
    ]
    table = decide(figures, worthwhile)
    gains = {row.label: row.to_primary_only for row in table.rows if row.to_primary_only}
    if table.decision.outcome == "use":
        gain = gains[table.decision.strategy or ""]
        assert gain.mean > 0 and gain.p < 0.05
    if table.decision.outcome == "no_help":
        assert any(gain.high < worthwhile for gain in gains.values())
    assert (table.decision.outcome == "unclear") == (table.decision.strategy is None)


# ------------------------------------------------------------------------------------------------ as a reader sees it


def shown(result: dict[str, object]) -> list[str]:
    plain = io.StringIO()
    show(result, Console(file=plain))
    return plain.getvalue().splitlines()


def row_of(lines: list[str], label: str, table: int) -> dict[str, str]:
    """The cells of a row in the terminal's table number `table`, by their headings."""
    heads = [i for i, line in enumerate(lines) if line.startswith("| strategy")]
    found = next(line for line in lines[heads[table] :] if line.startswith(f"| {label} "))
    return dict(
        zip(*([cell.strip() for cell in line.split("|")[1:-1]] for line in (lines[heads[table]], found)), strict=True)
    )


GAIN = [0.80, 0.81, 0.82, 0.80]
LOSS = [0.60, 0.61, 0.63, 0.60]
BASE = [0.70, 0.71, 0.72, 0.71]


def test_one_table_decides_everywhere(tmp_path: Path) -> None:
    """flip gains at equal steps and loses at equal seconds: file, terminal and decision speak of the latter."""
    steps = {"primary_only": BASE, "multitask": [0.5] * 4, "flip": GAIN}
    seconds = {"primary_only": BASE, "multitask": [0.5] * 4, "flip": LOSS}
    result = made_up(tmp_path, steps, seconds)
    decision = result["decision"]
    assert (decision["table"], decision["outcome"], decision["row"]) == ("Equal seconds", "no_help", "primary_only")
    assert result["tables"][0]["decision"]["outcome"] == "use"
    lines = shown(result)
    assert lines[-1] == f"Decision at equal seconds: {decision['text']}"
    assert [line.split("|")[1].strip() for line in lines if "◀" in line and line.startswith("|")] == ["primary_only ◀"]
    assert row_of(lines, "primary_only", 1)["strategy"] == "primary_only ◀"
    assert row_of(lines, "flip", 0)["difference"] == "▲ +9.8" and row_of(lines, "flip", 1)["difference"] == "▼ -10.0"
    assert any(line.startswith("At equal steps alone it would be: Use flip") for line in lines)
    alone = made_up(tmp_path / "steps", steps)
    assert alone["decision"]["table"] == "Equal steps" and shown(alone)[-1].startswith(
        "Decision at equal steps: Use flip"
    )


def test_marks_follow_the_corrected_p_values(tmp_path: Path) -> None:
    """Eight rows of the same small gain: each would be significant alone, none is among eight."""
    base = [0.70, 0.72, 0.71, 0.70, 0.72]
    gain = [value + more for value, more in zip(base, (0.05, 0.02, 0.06, 0.01, 0.04), strict=True)]
    rows = {"primary_only": base, "multitask": [0.5] * 5, **{f"flip rank={i}": gain for i in range(8)}}
    assert stats.ttest_rel(gain, base).pvalue < ALPHA
    result = made_up(tmp_path, rows)
    difference = result["tables"][0]["rows"][2]["to_baseline"]
    assert difference["low"] > 0 and difference["p"] > ALPHA  # the interval is about this row alone
    cells = row_of(shown(result), "flip rank=0", 0)
    assert cells["difference"] == "= +3.6" and float(cells["p"]) > ALPHA
    alone = made_up(tmp_path / "alone", {label: rows[label] for label in ("primary_only", "multitask", "flip rank=0")})
    assert row_of(shown(alone), "flip rank=0", 0)["difference"] == "▲ +3.6"


@given(st.lists(st.lists(st.floats(0, 1), min_size=4, max_size=4), min_size=3, max_size=6))
def test_no_interval_leaves_its_range(values: list[list[float]]) -> None:
    labels = ("primary_only", "multitask", *(f"s{i}" for i in range(len(values) - 2)))
    scores = [Scores(label, *[dict(enumerate(row))] * 2) for label, row in zip(labels, values, strict=True)]
    for row in decide(scores, 0.005).rows:
        for side in (row.validation, row.test):
            assert 0 <= side.low <= side.mean + 1e-12 and side.mean - 1e-12 <= side.high <= 1
        for found in (row.to_baseline, row.to_primary_only, row.to_multitask):
            assert found is None or -1 <= found.low <= found.high <= 1


def test_two_seeds_are_shown_one_by_one(tmp_path: Path) -> None:
    """Their t-intervals reached from -43 to 148 per cent."""
    result = made_up(tmp_path, {"primary_only": [0.45, 0.60], "multitask": [0.40, 0.5], "flip": [0.6, 0.9]})
    row = result["tables"][0]["rows"][2]
    for found in (row["test"], row["validation"], row["to_baseline"]):
        assert found["low"] is found["high"] is None and found["n"] == 2
    assert row["to_baseline"]["p"] is None
    lines = shown(result)
    cells = row_of(lines, "flip", 0)
    assert "95 %" not in cells and cells["single seeds"] == "60.0 / 90.0" and cells["seed by seed"] == "+15.0 / +30.0"
    assert cells["difference"] == "? +22.5" and cells["p"] == ""
    assert row_of(lines, "primary_only", 0)["seed by seed"] == ""
    assert any("With fewer than 3 seeds there is no interval and no test" in line for line in lines)
    assert not re.search(r"nan|None| to [+-]?\d", "\n".join(line for line in lines if line.startswith("|")))
    # A file that an earlier version wrote, whose intervals leave the range.
    row["test"] |= {"low": -0.43, "high": 1.48}
    row["to_baseline"] |= {"low": -0.7, "high": 1.2, "p": 0.01}
    del result["decision"]["table"], result["decision"]["row"]
    assert row_of(shown(result), "flip", 0) == cells | {"strategy": "flip"}  # it did not say which row it is about


def test_a_row_that_lost_seeds_shows_those_that_are_left(tmp_path: Path) -> None:
    result = made_up(tmp_path, {"primary_only": BASE, "multitask": LOSS, "flip": [0.8, 0.9]})
    cells = row_of(shown(result), "flip", 0)
    assert cells["95 %"] == "80.0 / 90.0" and cells["95 % of it"] == "+10.0 / +19.0" and cells["p"] == ""
    assert row_of(shown(result), "multitask", 0)["95 %"].count(" to ") == 1
    assert any("flip diverged with seed 2, 3" in note for note in notes(result))


def test_figures_of_single_labels() -> None:
    """With an interval inside of the range, the single values where they are few, and in words where there is none."""
    labels = {
        "wide": {"n": 3, "mean": 0.98, "std": 0.02, "low": 0.93, "high": 1.03, "values": [1.0, 0.96, 0.98]},
        "few": {"n": 2, "mean": 0.7, "std": 0.1, "low": None, "high": None, "values": [0.6, 0.8]},
        "none": {"n": 1, "mean": None, "std": None, "low": None, "high": None, "values": []},
        "older": {"n": 2, "mean": 0.7, "std": 0.1, "low": -0.2, "high": 1.6},
    }
    (row,) = by_label({"rows": [{"label": "flip", "labels": labels}]})
    assert row == {
        "strategy": "flip",
        "wide": "98.0 (93.0 to 100.0)",
        "few": "70.0 (60.0 / 80.0)",
        "none": "undefined",
        "older": "70.0",
    }


# ------------------------------------------------------------------------------------------------------------ durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("30m", 1800),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1 h 30 m", 5400),
        ("0.5h", 1800),
        ("45", 45),
        ("1d", 86400),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "30x", "-5m", "0s", "5m5m", "1h30", "thirty", "nan", "1e3s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(InputError, match="write for example 90s"):
        parse_duration(text)


@given(st.integers(1, 10**6))
def test_durations_can_be_read_back(seconds: int) -> None:
    text = readable(seconds).replace("min", "m").replace(" ", "")
    assert parse_duration(text) == pytest.approx(seconds, rel=0.02, abs=0.5)
