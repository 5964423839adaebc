"""`attittud demo`: the data it compares on, the runs, and the table made of them."""

import json
import math
from dataclasses import replace
from importlib.metadata import version
from io import StringIO

import pytest
import torch
from rich.console import Console
from scipy import stats

import attittud
from attittud_lab.demo.data import QUALITIES, corrupt, digits, generator, images, split
from attittud_lab.demo.experiment import cells, measure, run
from attittud_lab.demo.rows import BASELINE, ROWS, Row
from attittud_lab.demo.table import WIDE, Estimate, conclusions, markdown, rich_table, summarise
from attittud_lab.demo.train import Settings, accuracy, train

QUICK = Settings(steps=4)


@pytest.mark.parametrize("seed", [0, 1])
def test_split_is_disjoint_complete_and_stratified(seed):
    labels, part = images()[1], split(seed)
    everything = torch.cat([part.primary, part.auxiliary, part.test])
    assert torch.equal(everything.sort().values, torch.arange(len(labels)))
    assert labels[part.primary].bincount().tolist() == [10] * 10
    share = labels.bincount() / len(labels)
    for indices in (part.auxiliary, part.test):
        assert ((labels[indices].bincount() / len(indices)) - share).abs().max() < 0.005
    assert len(part.test) == 500


def test_test_images_are_the_same_for_all_seeds_and_the_clean_ones_are_not():
    assert torch.equal(split(0).test, split(1).test)
    assert not torch.equal(split(0).primary.sort().values, split(1).primary.sort().values)


def test_corruption():
    truth = torch.arange(10).repeat(200)
    half = len(truth) // 2
    assert torch.equal(corrupt(truth, "right", 0), truth)
    moved = corrupt(truth, "shifted", 0)
    assert (moved != truth).sum() == half
    assert torch.equal(moved[moved != truth], (truth[moved != truth] + 1) % 10)
    # Half are drawn anew, a tenth of them the right class again.
    wrong = int((corrupt(truth, "random", 0) != truth).sum())
    assert stats.binomtest(wrong, half, 0.9).pvalue > 1e-4
    assert not torch.equal(corrupt(truth, "random", 0), corrupt(truth, "random", 1))
    with pytest.raises(ValueError, match=r"'shift'.*'shifted'"):
        corrupt(truth, "shift", 0)


def test_only_auxiliary_labels_are_corrupted():
    right, shifted = digits("right", 0), digits("shifted", 0)
    assert torch.equal(right.primary[1], shifted.primary[1])
    assert torch.equal(right.test[1], shifted.test[1])
    assert torch.equal(right.auxiliary[0], shifted.auxiliary[0])
    assert (right.auxiliary[1] != shifted.auxiliary[1]).sum() == len(right.auxiliary[1]) // 2


def test_every_preset_has_a_row():
    assert set(attittud.presets()) <= {row.name for row in ROWS}


def by_name(name: str) -> Row:
    return next(row for row in ROWS if row.name == name)


def test_baseline_ignores_the_auxiliary_data():
    weights = [train(by_name(BASELINE), digits(quality, 0), 0, QUICK).state_dict() for quality in QUALITIES]
    for name, value in weights[0].items():
        assert all(torch.equal(value, other[name]) for other in weights[1:])


def test_multitask_is_the_plain_sum_of_the_losses():
    """The row, with Guide, against a loop without it."""
    data, settings = digits("right", 0), replace(QUICK, steps=3, learning_rate=0.5)
    model = train(by_name("multitask"), data, 0, settings)
    plain = train(by_name("multitask"), data, 0, replace(settings, steps=0))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5, momentum=settings.momentum)
    batches = generator("batches", 0)
    for _ in range(settings.steps):
        i = torch.randint(len(data.auxiliary[1]), (settings.auxiliary_batch,), generator=batches)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(plain(data.primary[0]), data.primary[1])
        loss = loss + torch.nn.functional.cross_entropy(plain(data.auxiliary[0][i]), data.auxiliary[1][i])
        loss.backward()
        optimizer.step()
    for found, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_own_head_is_a_second_output_layer():
    data = digits("right", 0)
    assert len(list(train(by_name("own_head"), data, 0, QUICK).parameters())) == 8
    assert len(list(train(by_name("multitask"), data, 0, QUICK).parameters())) == 6


def test_training_learns_and_leaves_the_random_state_alone():
    data = digits("right", 0)
    before = torch.get_rng_state()
    model = train(by_name("multitask"), data, 0, Settings(steps=60))
    assert torch.equal(torch.get_rng_state(), before)
    assert accuracy(model, *data.test) > 80


def test_results_hold_each_cell():
    calls = []
    found = run(2, QUICK, 1, lambda: calls.append(1))
    assert len(calls) == len(cells(2)) == 2 * (1 + 3 * (len(ROWS) - 1))
    index = [row.name for row in ROWS].index("flip")
    assert found["accuracy"]["flip"]["shifted"] == [measure((index, "shifted", seed), QUICK)[0] for seed in range(2)]
    assert found["settings"]["steps"] == 4
    assert found["made_with"]["torch"] == version("torch")
    json.dumps(found)


def results(**rows: list[float]) -> dict:
    """A result with the same accuracies in every quality."""
    return {
        "settings": {"seeds": [0, 1, 2]},
        "qualities": QUALITIES,
        "rows": dict.fromkeys(rows, "does things"),
        "accuracy": {row: dict.fromkeys(QUALITIES, values) for row, values in rows.items()},
    }


EXAMPLE = results(
    primary_only=[80.0, 85.0, 90.0], gains=[82.0, 87.1, 91.9], loses=[70.0, 75.2, 79.8], noise=[83.0, 82.0, 91.0]
)


def test_estimate_is_the_t_interval():
    values = [91.0, 88.5, 90.25, 93.0]
    low, high = stats.t.interval(0.95, 3, loc=sum(values) / 4, scale=stats.sem(values))
    found = Estimate.of(values)
    assert found.mean - found.half == pytest.approx(low)
    assert found.mean + found.half == pytest.approx(high)
    assert math.isnan(Estimate.of([90.0]).half)


def test_differences_are_paired():
    """The seeds differ by ten points, the rows by two: only seed by seed that is a difference."""
    cell = summarise(EXAMPLE)["gains"]["right"]
    assert cell.accuracy.half > 10
    assert cell.difference.half < 0.3
    verdicts = {row: cell["right"].verdict for row, cell in summarise(EXAMPLE).items()}
    assert verdicts == {"primary_only": "=", "gains": "▲", "loses": "▼", "noise": "="}


@pytest.mark.parametrize("narrow", [False, True])
def test_terminal_table(narrow):
    console = Console(width=80 if narrow else WIDE, file=StringIO())
    console.print(rich_table(EXAMPLE, narrow=narrow))
    text = console.file.getvalue()
    assert "▲ +2.0 ± 0.2" in text and "▼ -10.0 ± 0.5" in text and "85.0 ± 12.4" in text
    assert "over 3 seeds" in text
    assert "…" not in text


def test_markdown_table():
    lines = markdown(EXAMPLE).splitlines()
    assert len(lines) == 2 + 4
    assert len({line.count("|") for line in lines}) == 1
    assert "| `loses` | does things | 75.0 ± 12.2 (▼ -10.0 ± 0.5) |" in markdown(EXAMPLE)


def test_conclusions_follow_from_the_signs():
    lines = conclusions(EXAMPLE)
    assert "labels right: 1 of 3 rows gain, 1 show no difference, 1 lose." in lines
    assert "Rows that no column shows to lose: gains, noise." in lines
    single = results(primary_only=[80.0], other=[90.0])
    assert "more (--seeds)" in conclusions(single)[0]
    assert "?" in markdown(single)
