"""The figures of a report: curves, joined seeds, and files that are damaged."""

import json

import pytest

from attittud_lab.errors import InputError
from attittud_lab.report.curves import curves
from attittud_lab.strategies.guided import PARTS


def test_curves_show_the_metrics_of_the_run(run_dir):
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    found = curves([run_dir], 1000)
    logged = [line for line in lines if "loss/primary" in line]
    assert found["train"]["step"] == [*range(2, 25, 2), *range(26, 33, 2)]
    shown = found["train"]["loss/primary"]
    assert shown == pytest.approx([line["loss/primary"] for line in logged], rel=1e-4)
    guided = [line for line in logged if line["phase"] == "guided"]
    for i, line in enumerate(guided):
        squares = [line[f"attittud/{part}"] ** 2 for part in PARTS]
        shares = [found["train"][f"share/{part}"][i] for part in PARTS]
        assert shares == pytest.approx([square / sum(squares) for square in squares], rel=1e-4)
        assert shares[0] + shares[1] == pytest.approx(line["attittud/captured_auxiliary"], rel=1e-3)
    assert found["train"]["share/helpful"][len(guided) :] == [None] * 4  # fine-tuning has none
    assert found["phases"][1]["name"] == "finetune" and found["phases"][1]["step"] == 24
    seconds = found["train"]["seconds"]
    assert seconds == sorted(seconds) and found["phases"][1]["seconds"] == seconds[len(guided) - 1]
    layers = found["layers"]
    assert layers["step"] == [6, 12, 18, 24] and layers["names"]
    for i in range(len(layers["names"])):
        for j in range(4):
            assert sum(layers[part][i][j] for part in PARTS) == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize("line", ["[" * 100_000, '{"step": 1,'])
def test_a_damaged_line_of_metrics_does_not_end_a_curve(line, run_dir, tmp_path):
    """Only the very last line may be half: a run is just writing it, or was killed."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    whole = curves([run_dir], 1000)["logged"]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines[:4], line, *lines[4:]]) + "\n")
    with pytest.raises(InputError, match=r"metrics.jsonl:5: is not a line of metrics"):
        curves([tmp_path], 1000)
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 1,']))
    assert curves([tmp_path], 1000)["logged"] == whole


def test_seeds_without_a_figure_do_not_count_in_its_mean(tmp_path):
    """As where the labels of one seed have no defined area under the curve."""
    for seed, figures in enumerate([{"loss/a": 1.0, "loss/b": 3.0}, {"loss/a": 2.0}]):
        folder = tmp_path / str(seed)
        folder.mkdir()
        line = {"phase": "guided", "step": 1, "seconds": 1.0, **figures}
        (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    train = curves([tmp_path / "0", tmp_path / "1"], 10)["train"]
    assert (train["loss/a"], train["loss/b"]) == ([1.5], [3])
