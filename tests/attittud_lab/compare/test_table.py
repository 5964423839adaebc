"""The tables of a comparison and what is printed with them."""

import io
import re
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text
from scipy import stats

from attittud_lab.compare.table import bar, by_label, notes, show
from attittud_lab.statistics import ALPHA
from tests.helpers.comparisons import finished
from tests.helpers.made_up import made_up

__all__ = ["finished"]  # fixtures


def test_the_decision_comes_after_the_tables(finished: tuple[Path, dict[str, Any]]) -> None:
    _, result = finished
    plain = io.StringIO()
    show(result, Console(file=plain))
    lines = plain.getvalue().strip().splitlines()
    (place,) = (i for i, line in enumerate(lines) if line.startswith("Decision"))
    assert lines[place] == f"Decision at equal seconds: {result['decision']['text']}"
    assert not any(line.startswith("|") for line in lines[place:]) and lines[place - 2].startswith(
        "|"
    )
    assert "\x1b" not in plain.getvalue()
    for label in ("primary_only", "multitask", "flip"):
        assert sum(line.startswith(f"| {label}") for line in lines) == 2
    # The row that the decision is about is marked, in the table that decided and nowhere else.
    seconds = next(i for i, line in enumerate(lines) if line.startswith("Equal seconds"))
    assert [
        i > seconds for i, line in enumerate(lines) if line.startswith("|") and "◀" in line
    ] == [True]
    assert any(line.startswith(f"| {result['decision']['row']} ◀") for line in lines)
    fixed = {
        **result["tuning"],
        "weights": [1.0],
        "runs_each": 1,
        "space": {"training.guided.lr": ["0.02"]},
    }
    said = "Nothing was tuned: every strategy has the weight 1 and training.guided.lr 0.02."
    assert said in notes({**result, "tuning": fixed}, Path())
    for width in (60, 80, 200):
        shown = io.StringIO()
        show(result, Console(file=shown, force_terminal=True, width=width))
        lines = Text.from_ansi(shown.getvalue()).plain.splitlines()
        assert max(map(len, lines)) <= width and not any("…" in line for line in lines)
        assert (
            ("also show std" in " ".join(lines))
            == (width < 110)
            == (" std " not in " ".join(lines[:4]))
        )


# ------------------------------------------------------------------------------ as a reader sees it


def shown(result: dict[str, object]) -> list[str]:
    plain = io.StringIO()
    show(result, Console(file=plain))
    return plain.getvalue().splitlines()


def row_of(lines: list[str], label: str, table: int) -> dict[str, str]:
    """The cells of a row in the terminal's table number `table`, by their headings."""
    heads = [i for i, line in enumerate(lines) if line.startswith("| strategy")]
    found = next(line for line in lines[heads[table] :] if line.startswith(f"| {label} "))
    return dict(
        zip(
            *(
                [cell.strip() for cell in line.split("|")[1:-1]]
                for line in (lines[heads[table]], found)
            ),
            strict=True,
        )
    )


GAIN = [0.80, 0.81, 0.82, 0.80]
LOSS = [0.60, 0.61, 0.63, 0.60]
BASE = [0.70, 0.71, 0.72, 0.71]


def test_the_same_table_decides_in_every_output(tmp_path: Path) -> None:
    """flip gains at equal steps and loses at equal seconds: file, terminal and decision go by equal
    seconds.
    """
    steps = {"primary_only": BASE, "multitask": [0.5] * 4, "flip": GAIN}
    seconds = {"primary_only": BASE, "multitask": [0.5] * 4, "flip": LOSS}
    result = made_up(tmp_path, steps, seconds)
    decision = result["decision"]
    assert (decision["table"], decision["outcome"], decision["row"]) == (
        "Equal seconds",
        "no_help",
        "primary_only",
    )
    assert result["tables"][0]["decision"]["outcome"] == "use"
    lines = shown(result)
    assert f"Decision at equal seconds: {decision['text']}" in lines
    assert [
        line.split("|")[1].strip() for line in lines if "◀" in line and line.startswith("|")
    ] == ["primary_only ◀"]
    assert row_of(lines, "primary_only", 1)["strategy"] == "primary_only ◀"
    assert (
        row_of(lines, "flip", 0)["difference"] == "▲ +9.8"
        and row_of(lines, "flip", 1)["difference"] == "▼ -10.0"
    )
    assert any(
        line.startswith("At equal steps alone the decision would be: Use flip") for line in lines
    )
    alone = made_up(tmp_path / "steps", steps)
    assert alone["decision"]["table"] == "Equal steps"
    assert any(line.startswith("Decision at equal steps: Use flip") for line in shown(alone))


def test_every_output_has_the_same_baseline(tmp_path: Path) -> None:
    """multitask is better than primary_only, and still every difference is from primary_only."""
    result = made_up(tmp_path, {"primary_only": BASE, "multitask": GAIN, "flip": LOSS})
    lines = shown(result)
    assert lines[0].endswith("Differences are relative to primary_only, the baseline.")
    cells = row_of(lines, "primary_only", 0)
    assert (cells["weight"], cells["difference"], cells["its 95 %"], cells["p"]) == (
        "–",
        "baseline",
        "–",
        "–",
    )
    assert row_of(lines, "multitask", 0)["difference"] == "▲ +9.8"
    assert "it gains +9.8 points" in result["decision"]["text"]


def test_equal_figures_have_no_interval(tmp_path: Path) -> None:
    almost = [value + more for value, more in zip(BASE, (1e-5, 2e-5, 3e-5, 2e-5), strict=True)]
    rows = {
        "primary_only": BASE,
        "multitask": [value + 0.1 for value in BASE],
        "flip": almost,
        "auto": [0.9] * 4,
    }
    result = made_up(tmp_path, {**rows, "pcgrad": [0.9]})
    lines = shown(result)
    assert (
        row_of(lines, "multitask", 0)["its 95 %"]
        == "all 4 equal"
        == row_of(lines, "auto", 0)["95 %"]
    )
    assert (
        row_of(lines, "flip", 0)["its 95 %"] == "± 0.001"
    )  # a narrow interval that rounds to its middle
    assert row_of(lines, "pcgrad", 0)["its 95 %"] == "one seed"
    drawn = bar(result["tables"][0]["rows"][1]["to_primary_only"], [0.1] * 4)
    assert drawn is not None and drawn["low"] is drawn["high"] is None


def test_a_weight_at_the_end_of_the_range_is_told_if_it_is_better_than_all_others(
    tmp_path: Path,
) -> None:
    result = made_up(tmp_path, {"primary_only": BASE, "multitask": GAIN})
    for means, end in (
        ((0.9, 0.8), "smallest"),
        ((0.8, 0.9), "largest"),
        ((0.9, 0.9), ""),
        ((None, 0.9), "largest"),
    ):
        tries = [
            {"weight": weight, "mean": mean} for weight, mean in zip((0.3, 1.0), means, strict=True)
        ]
        chosen = {"multitask": 0.3 if end == "smallest" else 1.0}
        tuning = result["tuning"] | {
            "weights": [0.3, 1.0],
            "validation": {"multitask": tries},
            "chosen": chosen,
        }
        said = re.findall(
            r"the (\w+) weight tried", " ".join(notes({**result, "tuning": tuning}, tmp_path))
        )
        assert said == [end] * bool(end)
        inner = {**tuning, "weights": [0.1, 0.3, 1.0, 10.0]}
        assert "weight tried" not in " ".join(notes({**result, "tuning": inner}, tmp_path))


def test_without_a_decision_no_row_looks_decided(tmp_path: Path) -> None:
    result = made_up(tmp_path, {"primary_only": BASE, "multitask": [0.7, 0.72, 0.71, 0.72]})
    assert (result["decision"]["outcome"], result["decision"]["row"]) == ("unclear", "multitask")
    lines = shown(result)
    assert any(
        "◀ marks the strategy with auxiliary data that is best on validation." in line
        for line in lines
    )
    assert not any("row of the decision" in line for line in lines)
    decided = made_up(tmp_path / "gain", {"primary_only": BASE, "multitask": GAIN})
    assert any("◀ marks the row of the decision." in line for line in shown(decided))
    # No strategy has a seed in common with primary_only: there is nothing to mark.
    result["decision"]["row"] = "primary_only"
    assert not any("◀" in line for line in shown(result))


def test_a_small_test_set_is_told_once(tmp_path: Path) -> None:
    """Nine test examples: one is worth 11 points, more than the difference of a point."""
    result = made_up(tmp_path, {"primary_only": BASE, "multitask": [0.7, 0.75, 0.69, 0.74]})
    decision = result["decision"]
    assert (
        decision["few_examples"]
        and decision["seeds_needed"] is None
        and "compare.seeds" not in decision["text"]
    )
    assert (
        "A single test example is worth 11.1 points, too much to show a difference of 1 points"
        in decision["text"]
    )
    assert not any("test examples are few" in note for note in notes(result, tmp_path))


def test_notes_are_short_and_explain_only_what_is_shown(tmp_path: Path) -> None:
    result = made_up(tmp_path, {"primary_only": BASE, "multitask": LOSS}) | {
        "gave_up": "--quick left out: seeds."
    }
    result["whole"] = {
        "command": "attittud compare job.yaml",
        "why": "trains up to 3 more runs, which take about 1 s",
    }
    said = notes(result, tmp_path)
    assert said[0].startswith("Warning: 9 test examples are few. One of them is 11.1 points")
    whole = "The same command without --quick trains up to 3 more runs, which take about 1 s."
    assert (
        said[1] == f"--quick left out: seeds. {whole}" and len(said) == 4
    )  # only Next is a command
    assert max(len(note.split()) for note in said) < 65
    assert "▼ shown to be worse" in said[2] and not set("▲=?") & set(said[2])


def test_marks_follow_the_corrected_p_values(tmp_path: Path) -> None:
    """Eight rows of the same small gain: each would be significant alone, none is among eight."""
    base = [0.70, 0.72, 0.71, 0.70, 0.72]
    gain = [value + more for value, more in zip(base, (0.05, 0.02, 0.06, 0.01, 0.04), strict=True)]
    rows = {
        "primary_only": base,
        "multitask": [0.5] * 5,
        **{f"flip rank={i}": gain for i in range(8)},
    }
    assert stats.ttest_rel(gain, base).pvalue < ALPHA
    result = made_up(tmp_path, rows)
    difference = result["tables"][0]["rows"][2]["to_primary_only"]
    assert difference["low"] > 0 and difference["p"] > ALPHA  # the interval is about this row alone
    cells = row_of(shown(result), "flip rank=0", 0)
    assert cells["difference"] == "= +3.6" and float(cells["p"]) > ALPHA
    alone = made_up(
        tmp_path / "alone",
        {label: rows[label] for label in ("primary_only", "multitask", "flip rank=0")},
    )
    assert row_of(shown(alone), "flip rank=0", 0)["difference"] == "▲ +3.6"


def test_two_seeds_are_shown_one_by_one(tmp_path: Path) -> None:
    """Their t-intervals reached from -43 to 148 per cent."""
    result = made_up(
        tmp_path, {"primary_only": [0.45, 0.60], "multitask": [0.40, 0.5], "flip": [0.6, 0.9]}
    )
    row = result["tables"][0]["rows"][2]
    for found in (row["test"], row["validation"], row["to_primary_only"]):
        assert found["low"] is found["high"] is None and found["n"] == 2
    assert row["to_primary_only"]["p"] is None
    lines = shown(result)
    cells = row_of(lines, "flip", 0)
    assert (
        "95 %" not in cells
        and cells["single seeds"] == "60.0 / 90.0"
        and cells["seed by seed"] == "+15.0 / +30.0"
    )
    assert cells["difference"] == "? +22.5" and cells["p"] == "–"
    assert row_of(lines, "primary_only", 0)["seed by seed"] == "–"
    assert any("With fewer than 3 seeds there is no interval and no test" in line for line in lines)
    assert not re.search(
        r"nan|None| to [+-]?\d", "\n".join(line for line in lines if line.startswith("|"))
    )


def test_a_row_that_lost_seeds_shows_the_remaining_seeds(tmp_path: Path) -> None:
    result = made_up(tmp_path, {"primary_only": BASE, "multitask": LOSS, "flip": [0.8, 0.9]})
    cells = row_of(shown(result), "flip", 0)
    assert (
        cells["95 %"] == "80.0 / 90.0"
        and cells["its 95 %"] == "+10.0 / +19.0"
        and cells["p"] == "–"
    )
    assert row_of(shown(result), "multitask", 0)["95 %"].count(" to ") == 1
    assert any("flip diverged with seed 2, 3" in note for note in notes(result, tmp_path))


def test_results_for_single_labels_are_shown() -> None:
    """They have an interval inside of the range, single values where they are few, and words where
    there is no value.
    """
    labels = {
        "wide": {
            "n": 3,
            "mean": 0.98,
            "std": 0.02,
            "low": 0.93,
            "high": 1.0,
            "values": [1.0, 0.96, 0.98],
        },
        "few": {"n": 2, "mean": 0.7, "std": 0.1, "low": None, "high": None, "values": [0.6, 0.8]},
        "none": {"n": 1, "mean": None, "std": None, "low": None, "high": None, "values": []},
    }
    (row,) = by_label({"rows": [{"label": "flip", "labels": labels}]})
    assert row == {
        "strategy": "flip",
        "wide": "98.0 (93.0 to 100.0)",
        "few": "70.0 (60.0 / 80.0)",
        "none": "undefined",
    }
