"""The paper's experiments in miniature, and the files their results are kept in."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from attittud_lab.compare.candidates import Budget
from attittud_lab.config.load import load
from attittud_lab.errors import InputError
from attittud_lab.output.progress import Progress
from experiments.reproduce import __main__ as command
from experiments.reproduce import runner
from experiments.reproduce.experiments import EXPERIMENTS, superclasses
from experiments.reproduce.fingerprint import fingerprint
from experiments.reproduce.miniature import write_miniature
from experiments.reproduce.plan import Plan
from experiments.reproduce.results import Job, Results, read_lines
from experiments.reproduce.run import reproduce

CONFIGS = Path(__file__).parents[2] / "experiments" / "configs"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduce")


IN_MINUTES = "figure2-samples"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == IN_MINUTES else pytest.mark.nightly)
        for name in EXPERIMENTS
    ],
)
def test_every_experiment_runs_in_miniature(name, work, capsys):
    with pytest.raises(SystemExit) as exit_:
        command.main([name, "--quick", "--work", str(work)])
    assert exit_.value.code == 0, capsys.readouterr().err
    archive = work / "results" / f"{EXPERIMENTS[name].runs_of or name}.jsonl"
    assert str(archive) in "".join(capsys.readouterr().out.split())
    runs = defaultdict(list)
    for line in read_lines(archive):
        run = line["run"].rpartition("/")[0]
        runs[line["part"], run].append(line["result"]["seed"])
        assert line["made_with"]["repeatable"] is True and line["seconds"] > 0
        figures = {"loss", "accuracy", "macro_f1", line["result"]["metric"]}
        assert {name for name in line["result"]["test"] if "/" not in name} == figures
        # Different splits of the primary data, the same one for all strategies of a seed.
        assert line["split"] == line["result"]["seed"] % 2
        if run.startswith(("flip", "orthogonal", "drop_harmful")):
            captured = line["curves"]["captured_primary"]
            assert captured and min(captured) >= 0 and max(captured) <= 1.0001
    assert all(sorted(seeds) == [0, 1] for seeds in runs.values())
    labels = {run.partition("/")[0] for _, run in runs}
    assert labels > {"primary_only", "multitask"}


def quick(work: Path, **options: Any) -> Any:
    usual = {"names": ["figure2-samples"], "data": None, "quick": True, "overrides": []}
    usual |= {"results": work / "results", "work": work, "progress": Progress()}
    return reproduce(**(usual | options))


def test_runs_that_are_in_the_results_are_not_repeated(tmp_path, monkeypatch):
    few = ["compare.strategies=[]"]
    results = tmp_path / "results"
    first = quick(tmp_path / "first", results=results, overrides=few)
    assert first.missing == []
    before = first.results[0].read_text()
    monkeypatch.setattr(runner, "train", lambda *_, **__: pytest.fail("a run was repeated"))
    # On another machine: other folders, the same results.
    again = quick(tmp_path / "second", results=results, overrides=[*few, "log_every=1"])
    assert again.missing == [] and again.results[0].read_text() == before
    with pytest.raises(pytest.fail.Exception, match="a run was repeated"):
        quick(tmp_path / "third", results=results, overrides=[*few, "model.dropout=0.2"])


def jobs(plan: Plan, done: dict[str, dict[str, Any]]) -> list[tuple[str, str, int]]:
    """The runs that a plan asks for while others are known: part, strategy and seed."""
    missing = [job for job in plan.jobs(lambda job: done.get(job.run)) if job.run not in done]
    return [(job.part, job.config.strategy.name, job.config.seed) for job in missing]


def a_plan(*overrides: str) -> Plan:
    usual = ["training.guided.epochs=null", "training.guided.steps=2"]
    usual += ["compare.strategies=[]", "compare.seeds=2"]
    config = load(CONFIGS / "figure2-samples.yaml", [*usual, *overrides])
    return Plan("x", {"x": config}, ["x"], ["x"], lambda _: Budget(2, 2))


def line_of(validation: float, **more: Any) -> dict[str, Any]:
    figures = {"accuracy": validation, "loss": 1.0}
    return {"result": {"metric": "accuracy", "validation": figures}} | more


def test_what_needs_no_choice_is_run_before_the_search_is_over():
    """Otherwise processes that share an experiment would wait for the last run of a search."""
    plan = a_plan("compare.draws=2", "compare.space={strategy.primary_weight: ['0.01', '1']}")
    weighted = a_plan("compare.draws=2", "compare.space={training.guided.lr: ['1e-2', '1e-3']}")
    search = list(plan._search(0.0))
    assert [(job.config.strategy.name, job.config.seed) for job in search] == [
        ("primary_only", 0),
        ("multitask", 0),
        ("orthogonal", 0),  # whose weight the configuration fixes
        ("multitask", 0),
    ]
    lines = {job.run: line_of(0.5) for job in search[:3]}
    expected = [("x", "multitask", 0), ("x", "orthogonal", 1), ("x", "primary_only", 1)]
    assert sorted(set(jobs(plan, lines))) == expected
    assert len(list(weighted._search(0.0))) == 6 and len(jobs(weighted, {})) == 6


def test_a_search_is_over_all_of_its_parts_and_leaves_out_what_diverged():
    plan = a_plan("compare.draws=2", "compare.space={training.guided.lr: ['1e-2', '1e-3']}")
    config = next(iter(plan.parts.values()))
    shared = Plan("x", dict.fromkeys("abc", config), ["a", "b"], ["b", "c"], lambda _: Budget(2, 2))
    multitask = next(c for c in shared.candidates if c.label == "multitask")
    first, second = shared.variants["multitask"]
    figures = {("a", first): 0.9, ("b", first): 0.1, ("a", second): 0.6, ("b", second): 0.6}
    lines = {}
    for (part, variant), figure in figures.items():
        lines[part, shared.job(part, multitask, variant, 0).run] = line_of(figure)

    def find(job: Job) -> Any:
        return lines.get((job.part, job.run))

    assert shared.chosen(multitask, find) == second
    after = []
    for job in shared.jobs(find):
        if job.config.strategy.name == "multitask" and find(job) is None:
            assert second.changes[0].partition("=")[2] in job.run
            after.append((job.part, job.config.seed))
    assert after == [("c", 0), ("b", 1), ("c", 1)]
    diverged = line_of(0.0, result=None, diverged="nan")
    lines["b", shared.job("b", multitask, second, 0).run] = diverged
    assert shared.chosen(multitask, find) == first
    del lines["a", shared.job("a", multitask, first, 0).run]
    assert shared.chosen(multitask, find) is None
    assert shared.missing(find) == {"b", "c"}


def test_a_run_of_another_process_is_not_begun(tmp_path):
    job = Job("x", "part", "run/seed-0", load(CONFIGS / "figure2-samples.yaml"))
    first, second = (Results(tmp_path, tmp_path / "locks") for _ in range(2))
    assert first.claim(job) and not second.claim(job)
    first.release(job)
    assert second.claim(job)
    second.release(job)


def test_an_interrupt_says_where_to_go_on(tmp_path, monkeypatch, capsys):
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "train", stop)
    with pytest.raises(SystemExit) as exit_:
        command.main(["figure2-samples", "--quick", "--work", str(tmp_path)])
    assert exit_.value.code == 130
    assert f"kept in {tmp_path / 'results'}" in capsys.readouterr().err


def test_no_run_is_begun_when_the_time_is_over(tmp_path):
    outcome = quick(tmp_path, budget=0.0)
    assert outcome.finished == []
    assert outcome.missing == ["figure2-samples"]
    assert not outcome.results[0].exists()


def test_a_fingerprint_belongs_to_the_run():
    path = CONFIGS / "table2-cat-vs-dog.yaml"
    expected = fingerprint(load(path))
    usual = ["strategy.primary_weight=null", "strategy.basis_batch=64"]
    usual += ["training.guided.epochs=12", "training.guided.evaluations=12"]
    usual += ["data.primary.path=/elsewhere", "log_every=3"]
    assert fingerprint(load(CONFIGS / "figure2-samples.yaml", usual)) == expected
    for change in ("seed=1", "model.dropout=0.2", "data.primary.train=90", "strategy.rank=6"):
        assert fingerprint(load(path, [change])) != expected, change


def test_broken_results_are_refused(tmp_path):
    (tmp_path / "figure2-samples.jsonl").write_text("{\n")
    with pytest.raises(InputError, match="is not a file of results"):
        Results(tmp_path, tmp_path / "locks")


def test_superclasses_come_from_the_columns(tmp_path):
    found = superclasses(write_miniature(tmp_path, "cifar100"))
    assert found == {
        "first": [f"fine0{i}" for i in (0, 2, 4, 6)],
        "second": [f"fine0{i}" for i in (1, 3, 5, 7)],
    }


def test_superclasses_share_a_search(tmp_path):
    """The first of the two made-up superclasses chooses the settings of both."""
    draws = ["compare.draws=2", "compare.seeds=2", "compare.strategies=[pretrain]"]
    outcome = quick(tmp_path, names=["table2-multicifar100"], overrides=draws)
    assert (outcome.finished, outcome.missing) == (["first", "second"], [])
    tried: dict[tuple[str, str], set[str]] = {}
    for line in read_lines(outcome.results[0]):
        label, *_, changes, _, seed = line["run"].split("/")
        tried.setdefault((label, line["part"]), set()).add(f"{changes} {seed}")
    labels = {label for label, _ in tried}
    assert labels == {"primary_only", "multitask", "flip-primary_weight=0.1", "pretrain"}
    for label in labels:
        assert len(tried[label, "first"]) == 3 and tried[label, "second"] < tried[label, "first"]
    names = ["table2-multicifar100"]
    again = quick(tmp_path, names=names, overrides=draws, only=["second"], budget=0.0)
    assert again.finished == ["second"]


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["table4-bases", "nothing"], "nothing"),
        (["table4-bases", "--quick", "--part", "other"], "--part other"),
        (["table4-bases"], "--data"),
        (["table1-text"], "--model"),
    ],
)
def test_wrong_input_is_explained(arguments, culprit, capsys, tmp_path):
    with pytest.raises(SystemExit) as exit_:
        command.main([*arguments, "--work", str(tmp_path)])
    assert exit_.value.code == 2 and culprit in capsys.readouterr().err
