"""Labels that look wrong: planted ones are found, and the file holds no formula."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from attittud_lab.config.load import loads
from attittud_lab.portfolio import suspicious
from attittud_lab.portfolio.run import run
from attittud_lab.portfolio.suspicious import (
    FILE,
    PARTS,
    RATE,
    Suspect,
    examine,
    probabilities,
    within_rate,
    write_csv,
)
from attittud_lab.report import write_report
from attittud_lab.report.outcome import outcome
from attittud_lab.uses.problem import Problem, SourceData
from tests.helpers.portfolios import board
from tests.helpers.simple_jobs import text_job

PRIMARY, CLASSES = 60, 3


def example(
    *, same_classes: bool, shift: int = 0, wrong: float = 0.2
) -> tuple[Problem, np.ndarray, np.ndarray]:
    """A problem, the right labels of its source, and which labels of the source are wrong."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(PRIMARY + 600, 6)).astype(np.float32)
    right = features[:, :CLASSES].argmax(axis=1)
    labels = right[PRIMARY:].copy()
    planted = generator.random(600) < wrong
    labels[planted] = (labels[planted] + generator.integers(1, CLASSES, planted.sum())) % CLASSES
    names = ["a", "b", "c"] if same_classes else ["x", "y", "z"]
    source = SourceData("web", features[PRIMARY:], (labels + shift) % CLASSES, names, same_classes)
    problem = Problem(features[:PRIMARY], right[:PRIMARY], ["a", "b", "c"], False, {"web": source})
    return problem, right[PRIMARY:], planted


@pytest.mark.parametrize(("same_classes", "shift"), [(True, 0), (False, 0), (False, 1)])
def test_planted_labels_are_found(same_classes, shift):
    problem, _, planted = example(same_classes=same_classes, shift=shift)
    source = problem.sources["web"]
    likely, by_chance = probabilities(problem, source, np.random.default_rng(0), 0)
    assert (by_chance is not None) == same_classes
    np.testing.assert_allclose(likely.sum(axis=1), 1)
    of_label = likely[np.arange(len(planted)), source.labels]
    assert roc_auc_score(planted, -of_label) > 0.85
    suspects = examine(problem, source, 0)
    chances = [suspect.label_probability for suspect in suspects.listed]
    assert np.mean(chances) <= RATE
    assert chances == sorted(chances)
    assert all(suspect.proposed != suspect.label for suspect in suspects.listed)
    assert planted[suspects.rows].mean() > 0.7


@pytest.mark.parametrize("same_classes", [True, False])
def test_a_label_is_judged_by_models_that_saw_no_label_of_its_part(same_classes):
    problem, _, _ = example(same_classes=same_classes)
    source = problem.sources["web"]
    part = np.random.default_rng(0).permutation(len(source.labels)) % PARTS
    judged, others = np.flatnonzero(part == 0), np.flatnonzero(part != 0)
    labels = source.labels.copy()
    labels[judged[::2]] = (labels[judged[::2]] + 1) % CLASSES
    changed = replace(source, labels=labels)
    before, _ = probabilities(problem, source, np.random.default_rng(0), 0)
    after, _ = probabilities(problem, changed, np.random.default_rng(0), 0)
    np.testing.assert_array_equal(after[judged[1::2]], before[judged[1::2]])
    assert not np.allclose(after[others], before[others])


@pytest.mark.parametrize(("same_classes", "wrong"), [(True, 0.3), (False, 0.1)])
def test_each_of_several_labels_is_a_question_with_a_list_of_its_own(same_classes, wrong):
    generator = np.random.default_rng(0)
    features = generator.normal(size=(PRIMARY + 400, 6)).astype(np.float32)
    right = (features[:, :2] > 0).astype(np.int64)
    labels = right[PRIMARY:].copy()
    planted = generator.random(400) < wrong
    labels[planted, 0] = 1 - labels[planted, 0]
    labels[:50, 1] = -1
    own = right[:PRIMARY].copy()
    own[:10, 0] = -1
    source = SourceData("web", features[PRIMARY:], labels, ["cat", "dog"], same_classes)
    problem = Problem(features[:PRIMARY], own, ["cat", "dog"], True, {"web": source})
    suspects = examine(problem, source, 0)
    assert suspects.examined == 400 + 350
    cats = [suspect.row for suspect in suspects.listed if "cat" in suspect.label]
    assert planted[cats].mean() > 0.8
    assert len(cats) > max(planted.sum() / 3, len(suspects.listed) / 2)
    for suspect in suspects.listed:
        name, answer = suspect.label.split(": ")
        assert suspect.proposed == f"{name}: {'no' if answer == 'yes' else 'yes'}"
        assert labels[suspect.row, ["cat", "dog"].index(name)] == ["no", "yes"].index(answer)
    chances = [suspect.label_probability for suspect in suspects.listed]
    assert chances == sorted(chances)


def rule(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of two columns, and right labels that a linear model fits only in part."""
    features = np.random.default_rng(0).uniform(-1, 1, (count, 2)).astype(np.float32)
    inside = (features[:, 0] > -0.2) & (np.abs(features[:, 1]) < 0.6)
    return features, inside.astype(np.int64)


def test_right_labels_are_not_listed_by_a_learner_that_fits():
    features, right = rule(1200)
    own = Problem(features[:200], right[:200], ["no", "yes"])
    listed = {}
    for wrong in (0.0, 0.3):
        labels = right[200:].copy()
        planted = np.random.default_rng(1).random(1000) < wrong
        labels[planted] = 1 - labels[planted]
        source = SourceData("web", features[200:], labels, ["no", "yes"], same_classes=True)
        problem = replace(own, sources={"web": source})
        for judge in ("linear", "kernel"):
            rows = examine(problem, source, 0, judge).rows
            listed[judge, wrong] = len(rows), planted[rows].mean() if len(rows) else 1.0
    assert listed["kernel", 0.0][0] < 20 < listed["linear", 0.0][0]
    assert listed["kernel", 0.3][0] > 150
    assert listed["kernel", 0.3][1] > 1 - RATE


def test_a_slow_learner_judges_fewer_labels(monkeypatch):
    features, right = rule(260)
    source = SourceData("web", features[60:], right[60:], ["no", "yes"], same_classes=True)
    problem = Problem(features[:60], right[:60], ["no", "yes"], sources={"web": source})
    monkeypatch.setattr(suspicious, "MOST_EXAMINED", 100)
    assert examine(problem, source, 0, "linear").examined == 100
    assert examine(problem, source, 0, "extra trees").examined == 25


def test_the_learner_that_is_best_alone_judges(tmp_path):
    """If it is not the linear one, the command also proposes to pool."""
    features, right = rule(300)
    for name, rows in (("primary", slice(0, 120)), ("auxiliary", slice(120, 300))):
        lines = [
            f"{x:.4f},{y:.4f},{['no', 'yes'][c]}"
            for (x, y), c in zip(features[rows], right[rows], strict=True)
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join(["x,y,label", *lines]))
    job = {
        "strategy": "portfolio",
        "data": {
            "kind": "table",
            "primary": {"path": str(tmp_path / "primary.csv"), "test": 0, "validation": 0},
            "auxiliary": {"web": {"path": str(tmp_path / "auxiliary.csv"), "share_head": True}},
        },
        "portfolio": {"learners": ["linear", "kernel"]},
    }
    run(loads(json.dumps(job)), run_dir=tmp_path / "run")
    (listed,) = board(tmp_path / "run")["suspicious"]
    assert listed["judge"] == "kernel"
    proposed = [step["command"] for step in outcome(tmp_path / "run").next]
    assert any("pooled" in line for line in proposed)
    job["portfolio"]["learners"] = ["linear"]
    run(loads(json.dumps(job)), run_dir=tmp_path / "linear")
    proposed = [step["command"] for step in outcome(tmp_path / "linear").next]
    assert not any("pooled" in line for line in proposed)


def test_several_labels_of_which_one_is_missing_or_always_the_same():
    features = np.random.default_rng(0).normal(size=(80, 3)).astype(np.float32)
    labels = np.zeros((60, 3), dtype=np.int64)
    labels[:, 1] = -1
    labels[:, 2] = features[20:, 0] > 0
    own = np.full((20, 3), -1)
    own[:, 2] = features[:20, 0] > 0
    source = SourceData("web", features[20:], labels, ["a", "b", "c"], same_classes=True)
    suspects = examine(
        Problem(features[:20], own, ["a", "b", "c"], True, {"web": source}), source, 0
    )
    assert suspects.examined == 120
    assert {suspect.label for suspect in suspects.listed} <= {"c: no", "c: yes"}


def test_primary_labels_that_say_nothing_list_nothing():
    """Probabilities of a model that is too sure listed labels that were right."""
    problem, _, planted = example(same_classes=True)
    listed = []
    for seed in range(6):
        labels = np.random.default_rng(seed).permutation(problem.labels)
        suspects = examine(replace(problem, labels=labels), problem.sources["web"], seed)
        listed.append(len(suspects.listed))
    assert np.median(listed) == 0
    assert len(examine(problem, problem.sources["web"], 0).listed) > planted.sum() / 3


@pytest.mark.parametrize(
    ("right", "by_chance", "count"),
    [
        ([0.1, 0.2, 0.3], [], 3),
        ([0.1, 0.2, 0.3], [0.05], 0),
        ([0.1] * 9 + [0.2], [0.15], 10),
        ([0.1] * 9 + [0.2, 0.3], [0.1, 0.25], 10),
        ([0.1] * 19 + [0.3], [0.2, 0.25], 20),
        ([], [0.1], 0),
    ],
)
def test_the_longest_list_within_the_rate(right, by_chance, count):
    assert within_rate(np.array(right), np.array(by_chance)) == count


def test_no_cell_is_a_formula_or_begins_a_row(tmp_path):
    suspect = Suspect(0, "+a", "-b", 0.9, 0.1)
    write_csv(tmp_path / FILE, [suspect.cells("=web", "@first\r\n=second")])
    with (tmp_path / FILE).open(newline="") as file:
        heading, row = csv.reader(file)
    assert len(heading) == len(row) == 6
    assert row == ["'=web", "'@first\r\n'=second", "'+a", "'-b", "0.9", "0.1"]


def test_a_portfolio_writes_the_list_and_the_report_shows_it(tmp_path):
    run(loads(text_job(tmp_path)), tmp_path / "run")
    page = write_report(tmp_path / "run").read_text()
    content = board(tmp_path / "run")
    sources = ["more"]
    assert [table["source"] for table in content["translations"]] == sources
    assert [one["source"] for one in content["suspicious"]] == sources
    with (tmp_path / "run" / FILE).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(one["listed"] for one in content["suspicious"])
    shown = json.loads((tmp_path / "run" / "report.json").read_text())["portfolio"]
    assert len(shown["translations"]) == len(sources)
    assert 'id="translations"' in page
    assert ('id="suspicious"' in page) == bool(rows)
