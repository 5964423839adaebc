"""`attittud demo`: the runs it is made of, and the table made of them."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import attittud
from attittud_lab.compare.decide import Scores, decide
from attittud_lab.config.load import load
from attittud_lab.data.prepare import Prepared
from attittud_lab.demo import CONFIG, QUALITIES, ROWS, WIDE, conclusions, config, grid, measure, rich_table, run_all
from attittud_lab.files import without_nan
from attittud_lab.output.progress import Progress
from attittud_lab.statistics import paired
from attittud_lab.training.train import load_data

RIGHT, RANDOM, SHIFTED = QUALITIES


def data(row: str, quality: str, seed: int) -> Prepared:
    return load_data(config((row, quality, seed), 200))


@pytest.mark.parametrize("seed", [0, 1])
def test_every_image_is_in_one_part(seed: int) -> None:
    found = data("multitask", RIGHT, seed)
    assert found.primary.examples.targets.bincount().tolist() == [10] * 10
    assert found.validation.targets.bincount().tolist() == [5] * 10
    rows = [set(found.record["primary"][name]["rows"]) for name in ("train", "validation", "test")]
    rows.append(set(found.record["auxiliary"]["others"]["rows"]))
    assert sum(map(len, rows)) == len(set.union(*rows)) == 1797 and len(rows[2]) == 500


def test_test_images_are_the_same_for_all_seeds_and_the_clean_ones_are_not() -> None:
    first, second = (data("multitask", RIGHT, seed).record["primary"] for seed in (0, 1))
    assert first["test"]["rows"] == second["test"]["rows"]
    assert first["train"]["rows"] != second["train"]["rows"]


def test_only_auxiliary_labels_are_made_wrong() -> None:
    right, shifted, random = (data("multitask", quality, 0) for quality in QUALITIES)
    for other in (random, shifted):
        assert other.primary.examples.targets.tolist() == right.primary.examples.targets.tolist()
        assert other.test.targets.tolist() == right.test.targets.tolist()
        assert other.auxiliary["others"].examples.inputs.equal(right.auxiliary["others"].examples.inputs)
    truth, moved = (found.auxiliary["others"].examples.targets for found in (right, random))
    touched = truth != moved
    assert int(touched.sum()) == round(len(truth) / 2) and moved[touched].equal((truth[touched] + 1) % 10)


def test_every_preset_has_a_row() -> None:
    assert set(attittud.presets()) <= set(ROWS)
    for row in ROWS:
        assert config((row, SHIFTED, 3), 7).strategy.name == ("multitask" if row == "own_head" else row)


def test_rows_take_as_many_steps() -> None:
    for row in ROWS:
        training = config((row, RIGHT, 0), 10).training
        counts = [training.guided.steps, *([training.finetune.steps] if training.mode == "two_phase" else [])]
        assert sum(counts) == 10 and (row == "pretrain") == (counts == [5, 5])


def test_the_baseline_ignores_the_auxiliary_data_and_the_control_has_a_second_output_layer(tmp_path: Path) -> None:
    alone = [measure(("primary_only", quality, 0), 4, tmp_path)[0] for quality in QUALITIES]
    assert alone[0].test == alone[1].test == alone[2].test
    shared, own = (measure((row, RIGHT, 0), 4, tmp_path)[0].parameters for row in ("multitask", "own_head"))
    assert own - shared == 65 * 10


def test_the_result_is_a_comparison_with_a_table_for_each_quality(tmp_path: Path) -> None:
    calls = []

    class Watched(Progress):
        def comparison(self, runs: int) -> None:
            assert runs == 2 * (1 + 3 * (len(ROWS) - 1))

        def end(self) -> None:
            calls.append(1)

    result = run_all(2, 4, 2, tmp_path, Watched())
    json.dumps(result, allow_nan=False)
    assert len(calls) == 62 and result["seeds"] == [0, 1] and result["took"]["processor_seconds"] > 0
    assert [table["name"] for table in result["tables"]] == list(QUALITIES)
    for table in result["tables"]:
        assert [row["label"] for row in table["rows"]] == list(ROWS)
        assert all((tmp_path / path).is_dir() for row in table["rows"] for path in row["runs"].values())
    (flip,) = (row for row in result["tables"][2]["rows"] if row["label"] == "flip")
    again = [measure(("flip", SHIFTED, seed), 4, tmp_path / "again")[0].test["accuracy"] for seed in range(2)]
    assert [value["test"] for value in flip["values"].values()] == again


def test_the_configuration_can_be_compared() -> None:
    assert load(CONFIG).compare.seeds == 6 and load(CONFIG, ["strategy=flip"]).strategy.name == "flip"


# ---------------------------------------------------------------------------------------------------- the table


def made_up(rows: Mapping[str, list[float]]) -> dict[str, Any]:
    """A result with the same accuracies in every quality."""
    scores = [Scores(row, dict(enumerate(values)), dict(enumerate(values))) for row, values in rows.items()]
    table = without_nan(asdict(decide(scores, 0.005)))
    seeds = list(range(len(rows["primary_only"])))
    return {"seeds": seeds, "tables": [{"name": quality, "rows": table["rows"]} for quality in QUALITIES]}


BASE = [0.80, 0.85, 0.90, 0.82, 0.87]
EXAMPLE = made_up(
    {
        "primary_only": BASE,
        "multitask": [0.82, 0.871, 0.919, 0.84, 0.89],
        "flip": [0.70, 0.752, 0.798, 0.72, 0.77],
        "auto": [0.83, 0.82, 0.91, 0.85, 0.84],
    }
)


def test_differences_are_paired() -> None:
    """The seeds differ by ten points, the rows by two: only seed by seed that is a difference."""
    assert {label: cells[0][1] for label, cells in grid(EXAMPLE).items()} == {
        "primary_only": "",
        "multitask": "▲",
        "flip": "▼",
        "auto": "=",
    }


def test_a_mark_says_no_more_than_the_corrected_p_value() -> None:
    """Each of these rows would be significant alone, but not as one of ten."""
    apart = [0.04, 0.01, 0.03, 0.0, 0.04]
    alone = paired([a + b for a, b in zip(BASE, apart, strict=True)], BASE)
    assert alone.p < 0.05 and alone.low > 0
    names = [row for row in ROWS if row != "primary_only"]
    rows = {
        name: [a + b for a, b in zip(BASE, apart[n % 5 :] + apart[: n % 5], strict=True)]
        for n, name in enumerate(names)
    }
    result = made_up({"primary_only": BASE, **rows})
    assert {sign for label in names for _, sign, _ in grid(result)[label]} == {"="}
    assert "10 do not differ significantly" in conclusions(result)[0]


@pytest.mark.parametrize("width", [80, WIDE])
def test_terminal_table(width: int) -> None:
    console = Console(width=width, file=StringIO())
    console.print(rich_table(EXAMPLE))
    text = console.file.getvalue()
    assert "+2.0 ± 0.1" in text and "-10.0 ± 0.2" in text and "84.8 ± 4.9" in text
    assert "over 5 seeds" in text and "corrected by Holm" in " ".join(text.split())
    assert "…" not in text


def test_conclusions_follow_from_the_marks() -> None:
    lines = conclusions(EXAMPLE)
    assert "labels right: 1 of 3 rows gain, 1 lose, 1 do not differ significantly." in lines
    assert lines[-1].endswith("multitask, auto.")
    few = made_up({"primary_only": [0.8, 0.8], "multitask": [0.9, 0.91]})
    assert "take more (--seeds)" in conclusions(few)[0] and grid(few)["multitask"][0] == ("90.5", "?", "+10.5")
