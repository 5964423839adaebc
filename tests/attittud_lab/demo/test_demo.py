"""The runs of `attittud demo`."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attittud_lab.compare.decide import Scores, decide
from attittud_lab.config.load import load
from attittud_lab.data.prepare import Prepared
from attittud_lab.demo import (
    CONFIG,
    QUALITIES,
    ROWS,
    Cell,
    conclusions,
    config,
    grid,
    job_of,
    rich_table,
)
from attittud_lab.files import without_nan
from attittud_lab.output.progress import Progress
from attittud_lab.placing.job import in_this_process
from attittud_lab.runs.result import RunResult
from attittud_lab.training.train import load_data

RIGHT, RANDOM, SHIFTED = QUALITIES


def measured(cell: Cell, folder: Path) -> RunResult:
    with in_this_process() as place:
        ((_, (result, _)),) = place.run([job_of(cell, 4, folder)], Progress())
    return result


def data(row: str, quality: str, seed: int) -> Prepared:
    return load_data(config((row, quality, seed), 200))


def test_every_image_is_in_one_part():
    found = data("multitask", RIGHT, 1)
    assert found.primary.examples.targets.bincount().tolist() == [10] * 10
    assert found.validation.targets.bincount().tolist() == [5] * 10
    rows = [set(found.record["primary"][name]["rows"]) for name in ("train", "validation", "test")]
    rows.append(set(found.record["auxiliary"]["others"]["rows"]))
    assert sum(map(len, rows)) == len(set.union(*rows)) == 1797 and len(rows[2]) == 500


def test_test_images_are_the_same_for_all_seeds_and_the_clean_ones_are_not():
    first, second = (data("multitask", RIGHT, seed).record["primary"] for seed in (0, 1))
    assert first["test"]["rows"] == second["test"]["rows"]
    assert first["train"]["rows"] != second["train"]["rows"]


def test_only_auxiliary_labels_are_made_wrong():
    right, shifted, random = (data("multitask", quality, 0) for quality in QUALITIES)
    for other in (random, shifted):
        assert other.primary.examples.targets.tolist() == right.primary.examples.targets.tolist()
        assert other.test.targets.tolist() == right.test.targets.tolist()
        inputs = other.auxiliary["others"].examples.inputs
        assert inputs.equal(right.auxiliary["others"].examples.inputs)
    truth, moved = (found.auxiliary["others"].examples.targets for found in (right, random))
    touched = truth != moved
    assert int(touched.sum()) == round(len(truth) / 2)
    assert moved[touched].equal((truth[touched] + 1) % 10)


def test_every_row_is_a_strategy_with_the_same_number_of_steps():
    others = {"own_head": "multitask", "simple_learner": "portfolio"}
    for row in ROWS:
        settings = config((row, SHIFTED, 3), 7)
        assert settings.strategy.name == others.get(row, row)
        assert settings.training.guided.steps == 7 and settings.training.mode == "joint"


def test_the_baseline_ignores_the_auxiliary_data_and_the_control_has_a_second_output_layer(
    tmp_path,
):
    alone = [measured(("primary_only", quality, 0), tmp_path) for quality in QUALITIES]
    assert alone[0].test == alone[1].test == alone[2].test
    shared = measured(("multitask", RIGHT, 0), tmp_path).parameters
    own = measured(("own_head", RIGHT, 0), tmp_path).parameters
    assert own - shared == 65 * 10


def test_the_configuration_can_be_compared():
    assert load(CONFIG).compare.seeds == 6
    assert load(CONFIG, ["strategy=flip"]).strategy.name == "flip"


def made_up(rows: Mapping[str, list[float]]) -> dict[str, Any]:
    """A result with the same accuracies in every quality."""
    by_seed = {row: dict(enumerate(values)) for row, values in rows.items()}
    scores = [Scores(row, values, values) for row, values in by_seed.items()]
    table = without_nan(asdict(decide(scores, 0.005)))
    seeds = list(range(len(rows["primary_only"])))
    for row in table["rows"]:
        row["values"] = {str(seed): {"test": rows[row["label"]][seed]} for seed in seeds}
    tables = [{"name": quality, "rows": table["rows"]} for quality in QUALITIES]
    return {"seeds": seeds, "tables": tables}


BASE = [0.80, 0.85, 0.90, 0.82, 0.87]

EXAMPLE = made_up(
    {
        "primary_only": BASE,
        "multitask": [0.82, 0.871, 0.919, 0.84, 0.89],
        "flip": [0.70, 0.752, 0.798, 0.72, 0.77],
        "auto": [0.83, 0.82, 0.91, 0.85, 0.84],
    }
)


def test_differences_are_paired():
    """Seeds differ by ten points, rows by two: only pairs of seeds show the difference."""
    expected = {"primary_only": "", "multitask": "▲", "flip": "▼", "auto": "="}
    assert {label: cells[0][1] for label, cells in grid(EXAMPLE).items()} == expected


def test_conclusions_follow_from_the_marks():
    lines = conclusions(EXAMPLE)
    assert "labels right: of 3 rows, gains 1, losses 1, no significant difference 1." in lines
    assert lines[-1].endswith("multitask, auto.")
    few = made_up({"primary_only": [0.8, 0.8], "multitask": [0.9, 0.91]})
    assert "use more (--seeds)" in conclusions(few)[0]
    assert grid(few)["multitask"][0] == ("90.5", "?", "+10.5")
    caption = str(rich_table(few).caption)
    assert caption == "mean over 2 seeds; ? too few seeds to tell"
    assert "interval" in str(rich_table(EXAMPLE).caption)


def test_the_portfolio_is_compared_with_the_simple_learner_seed_by_seed():
    same = ("primary_only", "multitask", "simple_learner")
    rows = dict.fromkeys(same, BASE) | {"portfolio": [value + 0.03 for value in BASE]}
    assert "labels right +3.0;" in conclusions(made_up(rows))[-2]
