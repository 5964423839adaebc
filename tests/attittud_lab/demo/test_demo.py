"""The runs of `attittud demo`."""

from pathlib import Path

from attittud_lab.config.load import load
from attittud_lab.data.prepare import Prepared
from attittud_lab.demo import CONFIG, QUALITIES, ROWS, Cell, config, job_of
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


def test_every_image_is_in_one_part() -> None:
    found = data("multitask", RIGHT, 1)
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
        assert other.auxiliary["others"].examples.inputs.equal(
            right.auxiliary["others"].examples.inputs
        )
    truth, moved = (found.auxiliary["others"].examples.targets for found in (right, random))
    touched = truth != moved
    assert int(touched.sum()) == round(len(truth) / 2) and moved[touched].equal(
        (truth[touched] + 1) % 10
    )


def test_every_row_is_a_strategy_with_the_same_number_of_steps() -> None:
    others = {"own_head": "multitask", "simple_learner": "portfolio"}
    for row in ROWS:
        settings = config((row, SHIFTED, 3), 7)
        assert settings.strategy.name == others.get(row, row)
        assert settings.training.guided.steps == 7 and settings.training.mode == "joint"


def test_the_baseline_ignores_the_auxiliary_data_and_the_control_has_a_second_output_layer(
    tmp_path: Path,
) -> None:
    alone = [measured(("primary_only", quality, 0), tmp_path) for quality in QUALITIES]
    assert alone[0].test == alone[1].test == alone[2].test
    shared, own = (
        measured((row, RIGHT, 0), tmp_path).parameters for row in ("multitask", "own_head")
    )
    assert own - shared == 65 * 10


def test_the_configuration_can_be_compared() -> None:
    assert (
        load(CONFIG).compare.seeds == 6 and load(CONFIG, ["strategy=flip"]).strategy.name == "flip"
    )
