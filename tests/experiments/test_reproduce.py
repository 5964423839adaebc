"""The paper's experiments in miniature, and the files their results are kept in."""

import itertools
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from attittud_lab.compare.candidates import Budget, candidates
from attittud_lab.config.load import load
from attittud_lab.config.schema import Config
from attittud_lab.errors import InputError
from attittud_lab.output.progress import Progress
from attittud_lab.runs.result import RunResult
from experiments.reproduce import __main__ as command
from experiments.reproduce import experiments, portfolio, runner
from experiments.reproduce.experiments import EXPERIMENTS, SEARCHED, superclasses
from experiments.reproduce.fingerprint import fingerprint
from experiments.reproduce.miniature import save_table, write_miniature
from experiments.reproduce.plan import Plan
from experiments.reproduce.results import Job, Results, curves, read_lines
from experiments.reproduce.run import parts, reproduce
from tests.helpers.interrupting import interrupted
from tests.helpers.processes import ready_processes
from tests.helpers.superclasses import SUPERCLASSES

CONFIGS = Path(__file__).parents[2] / "experiments" / "configs"
RESULTS = CONFIGS.parent / "results"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduce")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_runs_in_miniature(
    name: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        command.main([name, "--quick", "--work", str(work)])
    assert exit_.value.code == 0, capsys.readouterr().err
    archive = work / "results" / f"{EXPERIMENTS[name].runs_of or name}.jsonl"
    assert str(archive) in "".join(capsys.readouterr().out.split())
    lines = read_lines(archive)
    runs = {(line["part"], line["run"].rpartition("/")[0]): [] for line in lines}
    for line in lines:
        runs[line["part"], line["run"].rpartition("/")[0]].append(line["result"]["seed"])
        assert line["made_with"]["repeatable"] is True and line["seconds"] > 0
        figures = {"loss", "accuracy", "macro_f1", line["result"]["metric"]}
        assert {name for name in line["result"]["test"] if "/" not in name} == figures
        # Different splits of the primary data, the same one for all strategies of a seed.
        assert line["split"] == line["result"]["seed"] % 2
    assert all(sorted(seeds) == [0, 1] for seeds in runs.values())
    assert {run.partition("/")[0] for _, run in runs} >= {"primary_only", "multitask"}
    guided = [
        line for line in lines if line["run"].startswith(("flip", "orthogonal", "drop_harmful"))
    ]
    assert guided and all(
        0 <= value <= 1.0001 for line in guided for value in line["curves"]["captured_primary"]
    )


def test_rows_of_the_chest_xray_table_start_from_the_weights_of_their_seed(
    work: Path, tmp_path: Path
) -> None:
    """In the runs of the miniature above, made here where that test ran in another process."""
    with pytest.raises(SystemExit):
        command.main(["table3-chest-xray", "--quick", "--work", str(work)])
    config = load(CONFIGS / "table3-chest-xray.yaml")
    labels = [candidate.label.replace(" ", "-") for candidate in candidates(config)]
    etas = [
        "orthogonal_flip-primary_weight=0",
        "flip-primary_weight=0",
        "orthogonal-primary_weight=0",
    ]
    assert labels == ["primary_only", "multitask", *etas, "pretrain", "auto"]
    assert [c.label for c in candidates(load(CONFIGS / "table3-chest-xray-none.yaml"))] == [
        "primary_only",
        "multitask",
    ]
    assert (
        config.data.primary.group == "patient"
    )  # so that a patient in two splits would be refused
    folder = work / "quick" / "table3-chest-xray"
    runs = sorted((folder / "table3-chest-xray" / "runs").glob("*/**/run.json"))
    assert len(runs) == 2 * len(labels)
    for path in runs:
        weights, seed = json.loads(path.read_text())["config"]["model"]["weights"], path.parent.name
        assert (folder / Path(weights.replace("seed-{seed}", seed)).relative_to(folder)).is_file()
    starts = [
        line
        for line in read_lines(work / "results" / "table3-chest-xray.jsonl")
        if line["part"] == "start"
    ]
    assert [line["result"]["seed"] for line in starts] == [0, 1]
    test = starts[0]["result"]["test"]
    assert {name for name in test if name.startswith("auc/")} >= {"auc/Edema", "auc/Effusion"}
    with pytest.raises(InputError, match="there is no folder nih_chest_xray in it"):
        quick(tmp_path, names=["table3-chest-xray"], data=tmp_path, quick=False)


def quick(work: Path, **options: Any) -> Any:
    usual = {
        "configs": CONFIGS,
        "results": work / "results",
        "work": work,
        "progress": Progress(),
        "overrides": [],
    }
    usual |= {"names": ["figure2-samples"], "data": None, "quick": True}
    return reproduce(**(usual | options))


def test_runs_that_are_in_the_results_are_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ["compare.strategies=[]"]
    first = quick(tmp_path / "first", results=tmp_path / "results", overrides=few)
    assert first.missing == []
    before = first.results[0].read_text()
    monkeypatch.setattr(runner, "train", lambda *_, **__: pytest.fail("a run was repeated"))
    # On another machine: other folders, the same results.
    again = quick(
        tmp_path / "second", results=tmp_path / "results", overrides=[*few, "log_every=1"]
    )
    assert again.missing == [] and again.results[0].read_text() == before
    with pytest.raises(pytest.fail.Exception, match="a run was repeated"):
        quick(
            tmp_path / "third", results=tmp_path / "results", overrides=[*few, "model.dropout=0.2"]
        )


def test_runs_that_diverged_are_kept_as_that_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draw that cannot be trained is never chosen by a search, nor tried again on another
    machine.
    """
    search = [
        "compare.strategies=[]",
        "compare.draws=2",
        "compare.space={training.guided.lr: ['1e30', '1e-3']}",
    ]
    search += ["training.guided.clip=null", "log_every=1", "training.guided.steps=8"]
    first = quick(tmp_path / "first", results=tmp_path / "results", overrides=search)
    assert first.missing == []
    lines = read_lines(first.results[0])
    lost = [line for line in lines if "training.guided.lr=1e30" in line["run"]]
    assert {(line["run"].partition("/")[0], line["run"].rpartition("/")[2]) for line in lost} == {
        (label, "seed-0")
        for label in ("primary_only", "multitask", "orthogonal-primary_weight=0.01")
    }
    for line in lost:
        assert line["result"] is None and line["diverged"].startswith("training diverged in step ")
        assert (line["split"], line["curves"]) == (0, {}) and line["made_with"]["device"] == "cpu"
    kept = [line for line in lines if line not in lost]
    assert len(kept) == 3 * 2 and all(
        "diverged" not in line and line["result"]["test"] for line in kept
    )
    monkeypatch.setattr(runner, "train", lambda *_, **__: pytest.fail("a run was repeated"))
    before = first.results[0].read_text()
    again = quick(tmp_path / "second", results=tmp_path / "results", overrides=search)
    assert again.missing == [] and again.results[0].read_text() == before


def test_a_part_with_another_strategy_copies_what_another_part_has_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = {
        "names": ["table4-bases"],
        "only": ["table4-bases"],
        "overrides": ["compare.strategies=[]"],
    }
    first = read_lines(quick(tmp_path, **few).results[0])
    trained, train = list[str](), runner.train

    def watched(config: Config, **options: Any) -> RunResult:
        trained.append(config.strategy.name)
        return train(config, **options)

    monkeypatch.setattr(runner, "train", watched)
    few |= {"only": ["table4-bases-exact"], "overrides": ["compare.strategies=[pretrain]"]}
    lines = read_lines(quick(tmp_path, **few).results[0])
    assert trained == ["pretrain", "pretrain"] and lines[: len(first)] == first
    copies = [line for line in lines[len(first) :] if not line["run"].startswith("pretrain/")]
    assert sorted(map(json.dumps, copies)) == sorted(
        json.dumps({**line, "part": "table4-bases-exact"}) for line in first
    )
    with pytest.raises(SystemExit):
        command.main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "runs that another part has made are copied" in said
        and "training apart: use --results FOLDER" in said
    )


def test_several_processes_share_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No run is made twice, none is left out, and what was measured on a shared device says so."""
    monkeypatch.setattr("attittud_lab.placing.processes.get_context", lambda _: ready_processes())
    arguments = [
        "figure2-samples",
        "figure2-rank",
        "--part",
        "figure2-rank-50",
        "--quick",
        "compare.strategies=[]",
    ]
    with pytest.raises(SystemExit) as exit_:
        command.main([*arguments, "--workers=2", "--beside=1", "--work", str(tmp_path)])
    assert exit_.value.code == 0
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["figure2-rank.jsonl"]
    lines = read_lines(tmp_path / "results" / "figure2-rank.jsonl")
    runs = [(line["run"].partition("/")[0], line["result"]["seed"]) for line in lines]
    assert len(runs) == len(set(runs)) == 6
    assert all(
        line["part"] == "figure2-rank-50" and line["made_with"]["side_by_side"] == 3
        for line in lines
    )


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_an_interrupt_of_the_first_process_ends_the_others_at_once(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "experiments.reproduce",
        "figure2-samples",
        "--quick",
        "--workers=2",
    ]
    words += [
        "--work",
        str(tmp_path),
        "compare.strategies=[]",
        "training.guided.steps=10000000",
        "checkpoint_every=2",
    ]
    code, err = interrupted(words, lambda: len(list(tmp_path.rglob("checkpoint.safetensors"))) == 2)
    words = (
        f"interrupted; finished runs are kept in {tmp_path / 'results'}, the same command goes on"
    )
    assert (code, err) == (130, f"attittud: {words}\n")
    assert len(list(tmp_path.rglob("checkpoint.safetensors"))) == 2 and not list(
        tmp_path.rglob("result.json")
    )


def jobs(plan: Plan, done: dict[str, dict[str, Any]]) -> list[tuple[str, str, int]]:
    """What a plan asks for while some of its runs are known: part, strategy and seed of those that
    are missing.
    """
    missing = [job for job in plan.jobs(lambda job: done.get(job.run)) if job.run not in done]
    return [(job.part, job.config.strategy.name, job.config.seed) for job in missing]


def a_plan(*overrides: str) -> Plan:
    steps = ["training.guided.epochs=null", "training.guided.steps=2"]
    config = load(
        CONFIGS / "figure2-samples.yaml",
        [*steps, "compare.strategies=[]", "compare.seeds=2", *overrides],
    )
    return Plan("x", {"x": config}, ["x"], ["x"], lambda _: Budget(2, 2))


def line_of(validation: float, **more: Any) -> dict[str, Any]:
    return {
        "result": {"metric": "accuracy", "validation": {"accuracy": validation, "loss": 1.0}}
    } | more


def test_what_needs_no_choice_is_run_before_the_search_is_over() -> None:
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
    assert sorted(set(jobs(plan, lines))) == [
        ("x", "multitask", 0),
        ("x", "orthogonal", 1),
        ("x", "primary_only", 1),
    ]
    assert len(list(weighted._search(0.0))) == 6 and len(jobs(weighted, {})) == 6


def test_a_search_is_over_all_of_its_parts_and_leaves_out_what_diverged() -> None:
    plan = a_plan("compare.draws=2", "compare.space={training.guided.lr: ['1e-2', '1e-3']}")
    config = next(iter(plan.parts.values()))
    shared = Plan("x", dict.fromkeys("abc", config), ["a", "b"], ["b", "c"], lambda _: Budget(2, 2))
    multitask = next(c for c in shared.candidates if c.label == "multitask")
    first, second = shared.variants["multitask"]
    figures = {("a", first): 0.9, ("b", first): 0.1, ("a", second): 0.6, ("b", second): 0.6}
    lines = {
        (part, shared.job(part, multitask, v, 0).run): line_of(x)
        for (part, v), x in figures.items()
    }

    def find(job: Job) -> Any:
        return lines.get((job.part, job.run))

    assert shared.chosen(multitask, find) == second
    after = [
        job
        for job in shared.jobs(find)
        if job.config.strategy.name == "multitask" and find(job) is None
    ]
    assert [(job.part, job.config.seed) for job in after] == [("c", 0), ("b", 1), ("c", 1)]
    assert all(second.changes[0].partition("=")[2] in job.run for job in after)
    lines["b", shared.job("b", multitask, second, 0).run] = line_of(
        0.0, result=None, diverged="nan"
    )
    assert shared.chosen(multitask, find) == first
    del lines["a", shared.job("a", multitask, first, 0).run]
    assert shared.chosen(multitask, find) is None
    assert shared.missing(find) == {"b", "c"}


def test_a_run_of_another_process_is_not_begun(tmp_path: Path) -> None:
    job = Job("x", "part", "run/seed-0", load(CONFIGS / "figure2-samples.yaml"))
    first, second = (Results(tmp_path, tmp_path / "locks") for _ in range(2))
    assert first.claim(job) and not second.claim(job)
    first.release(job)
    assert second.claim(job)
    second.release(job)


def test_while_others_are_busy_a_later_run_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of the parts says what matters most: after each run the first missing one is looked
    for again.
    """
    order = list[str]()

    def train(self: runner.Runner, job: Job, _: Path) -> None:
        order.append(f"{job.part} {job.config.strategy.name}")
        self.results._known[job.fingerprint] = line_of(0.5)
        self.results._written[job.experiment, job.part, job.run] = job.fingerprint
        self.results.release(job)

    def claim(self: Results, job: Job) -> bool:
        return (job.part != "first" or bool(order)) and take(
            self, job
        )  # until the first run is over, others are at it

    take = Results.claim
    monkeypatch.setattr(runner.Runner, "_train", train)
    monkeypatch.setattr(Results, "claim", claim)
    plans = []
    for part, rank in (("first", 5), ("second", 6)):
        config = next(
            iter(a_plan(f"strategy.rank={rank}", f"model.dropout=0.{rank}").parts.values())
        )
        config = replace(config, compare=replace(config.compare, seeds=1))
        plans.append(Plan("x", {part: config}, [part], [part], lambda _: Budget(2, 2)))
    found = runner.Runner(
        Results(tmp_path, tmp_path / "locks"), tmp_path, Progress(), runner.Clock()
    ).run(plans)
    assert found.finished == ["first", "second"] and found.missing == []
    names = ("primary_only", "multitask", "orthogonal")
    assert order == [
        "second primary_only",
        *(f"first {name}" for name in names),
        "second multitask",
        "second orthogonal",
    ]


def test_an_interrupt_says_where_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "train", stop)
    with pytest.raises(SystemExit) as exit_:
        command.main(["figure2-samples", "--quick", "--work", str(tmp_path)])
    words = (
        f"interrupted; finished runs are kept in {tmp_path / 'results'}, the same command goes on"
    )
    assert exit_.value.code == 130 and capsys.readouterr().err == f"attittud: {words}\n"


def test_no_run_is_begun_when_the_time_is_over(tmp_path: Path) -> None:
    outcome = quick(tmp_path, budget=0.0)
    assert (
        outcome.finished == []
        and outcome.missing == ["figure2-samples"]
        and not outcome.results[0].exists()
    )


def test_a_fingerprint_belongs_to_the_run() -> None:
    config = load(CONFIGS / "table2-cat-vs-dog.yaml")
    usual = ["strategy.primary_weight=null", "strategy.basis_batch=64"]
    usual += ["training.guided.epochs=12", "training.guided.evaluations=12"]
    same = load(
        CONFIGS / "figure2-samples.yaml", ["data.primary.path=/elsewhere", "log_every=3", *usual]
    )
    assert fingerprint(config) == fingerprint(same)
    for change in (
        "seed=1",
        "model.dropout=0.2",
        "training.guided.lr=1e-2",
        "data.primary.train=90",
        "strategy.rank=6",
    ):
        assert fingerprint(load(CONFIGS / "table2-cat-vs-dog.yaml", [change])) != fingerprint(
            config
        ), change


@pytest.mark.parametrize(
    "name", ["table2-cat-vs-dog", "table4-bases", "figure2-samples", "figure2-rank"]
)
def test_committed_runs_belong_to_the_configurations(name: str, tmp_path: Path) -> None:
    """All seeds and draws have the fingerprint of what their names say.

    A setting that was added without `later=True` would have all of them run again.
    """
    for part, config in parts(name, tmp_path, CONFIGS, []).items():
        lines = {
            line["run"]: line
            for line in read_lines(RESULTS / f"{name}.jsonl")
            if line["part"] == part
        }
        steps = Budget(
            *(phase["steps"] for phase in next(iter(lines.values()))["result"]["phases"])
        )
        plan, planned = (
            Plan(name, {part: config}, [part], [part], lambda _, steps=steps: steps),
            dict[str, str](),
        )
        for candidate, seed in itertools.product(plan.candidates, range(config.compare.seeds)):
            for variant in plan.variants[candidate.label]:
                job = plan.job(part, candidate, variant, seed)
                planned[job.run] = job.fingerprint
        assert {run: planned.get(run) for run in lines} == {
            run: line["fingerprint"] for run, line in lines.items()
        }


@pytest.fixture
def twenty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The superclasses of CIFAR-100, without its images."""
    monkeypatch.setattr(experiments, "superclasses", lambda _: SUPERCLASSES)


def planned(name: str, overrides: list[str]) -> tuple[Plan, dict[tuple[str, str], str]]:
    """Return the first seed of MultiCifar100 as the command plans it, with the committed results,
    and its runs.
    """
    found = parts(name, Path("cifar100"), CONFIGS, overrides)
    archive = Results(RESULTS, Path("no locks"))
    plan = Plan(
        name,
        found,
        SEARCHED,
        list(found),
        runner.Runner(archive, Path(), Progress(), runner.Clock()).steps,
        1,
    )
    known = {line["fingerprint"]: line for line in read_lines(RESULTS / f"{name}.jsonl")}
    jobs = plan.jobs(lambda job: known.get(job.fingerprint))
    return plan, {(job.part, job.run): job.fingerprint for job in jobs}


@pytest.mark.usefixtures("twenty")
def test_committed_runs_of_multicifar_are_those_that_its_configuration_plans() -> None:
    """The search on four superclasses, then what it chose on all: no run is missing, and none is of
    other settings.
    """
    name = "table2-multicifar100"
    lines = read_lines(RESULTS / f"{name}.jsonl")
    plan, runs = planned(name, [])
    known = {line["fingerprint"]: line for line in lines}
    assert plan.missing(lambda job: known.get(job.fingerprint)) == set()
    assert {(line["part"], line["run"]): line["fingerprint"] for line in lines} == runs
    assert len(lines) == len(runs) == plan.count == 196


def test_broken_results_are_refused(tmp_path: Path) -> None:
    (tmp_path / "figure2-samples.jsonl").write_text("{\n")
    with pytest.raises(InputError, match="is not a file of results"):
        Results(tmp_path, tmp_path / "locks")


def test_made_up_data_are_replaced_whole(tmp_path: Path) -> None:
    """Processes that share the runs each write these data, and must never read a half-written file
    of another process.
    """
    path = write_miniature(tmp_path, "cifar10") / "test-00000-of-00001.parquet"
    with path.open("rb") as reader:
        write_miniature(tmp_path, "cifar10")
        assert os.fstat(reader.fileno()).st_ino != path.stat().st_ino  # a reader keeps the old file
        assert reader.read() == path.read_bytes()
    assert {file.name for file in path.parent.iterdir()} == {
        f"{split}-00000-of-00001.parquet" for split in ("train", "test")
    }


def test_superclasses_come_from_the_columns(tmp_path: Path) -> None:
    found = superclasses(write_miniature(tmp_path, "cifar100"))
    assert found == {
        "first": [f"fine0{i}" for i in (0, 2, 4, 6)],
        "second": [f"fine0{i}" for i in (1, 3, 5, 7)],
    }


def renamed(folder: Path, names: dict[str, list[str]] | None) -> Path:
    """Made-up data whose classes are named by keys of their own, such as fine_label_names, or not
    at all.
    """
    target = write_miniature(folder, "cifar100")
    for path in target.iterdir():
        metadata = {
            f"{column}_names": json.dumps(classes) for column, classes in (names or {}).items()
        }
        save_table(parquet.read_table(path).replace_schema_metadata(metadata), path)
    return target


FINE = [f"fine0{n}" for n in range(8)]


def test_superclasses_come_from_names_of_each_column(tmp_path: Path) -> None:
    folder = renamed(tmp_path, {"fine_label": FINE, "coarse_label": ["even", "odd"]})
    assert superclasses(folder) == {"even": FINE[::2], "odd": FINE[1::2]}
    folder = renamed(tmp_path, {"fine_label": FINE, "coarse_label": ["even", "odd", "empty"]})
    with pytest.raises(InputError, match="no training image is of the coarse class 'empty'"):
        superclasses(folder)


@pytest.mark.parametrize(
    ("names", "said"), [(None, "0, 1"), ({"coarse_label": ["reptiles", "fish"]}, "reptiles, fish")]
)
def test_no_other_superclass_stands_in_for_a_declared_one(
    names: dict[str, list[str]] | None, said: str, tmp_path: Path
) -> None:
    """On real data: four superclasses choose the settings, and four others have the portfolio."""
    folder = renamed(tmp_path, names)
    options = {"data": folder, "quick": False}
    with pytest.raises(
        InputError,
        match=f"has no class aquatic_mammals, .*; it has {said}. Take CIFAR-100's parquet",
    ):
        quick(tmp_path, names=["table2-multicifar100"], **options)
    with pytest.raises(
        InputError, match=r"has no class (fish, )?household_furniture, .*which the protocol names"
    ):
        portfolio.run_portfolios(
            folder,
            configs=CONFIGS,
            results=tmp_path,
            work=tmp_path,
            progress=Progress(),
            overrides=[],
        )


def test_superclasses_share_a_search(tmp_path: Path) -> None:
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
    again = quick(
        tmp_path, names=["table2-multicifar100"], overrides=draws, only=["second"], budget=0.0
    )
    assert again.finished == ["second"]


def test_seeds_can_be_left_for_later(tmp_path: Path) -> None:
    for seeds in (1, None):
        outcome = quick(
            tmp_path,
            names=["table2-multicifar100"],
            overrides=["compare.strategies=[]"],
            seeds=seeds,
        )
        assert (outcome.finished, outcome.missing) == (["first", "second"], [])
        found = {line["run"].rpartition("/")[2] for line in read_lines(outcome.results[0])}
        assert found == ({"seed-0"} if seeds else {"seed-0", "seed-1"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table4-bases", "nothing"], "there is no experiment 'nothing'"),
        (
            ["table4-bases", "--quick", "--part", "nothing"],
            "--part nothing: there is no such part; table4-bases has",
        ),
        (["nothing"], "there is no experiment 'nothing'; choose one of table2-cat-vs-dog"),
        (["table4-bases"], "name the folder with the parquet files of CIFAR-10 by --data"),
        (
            ["table1-text"],
            "of parquet files by --data and that with a text encoder by --model, or try it with --quick",
        ),
        (["table4-bases", "--data", "/no/such"], "--data /no/such: there is no such folder"),
        (
            ["table4-bases", "--quick", "--configs", "/no/such"],
            "there is no such configuration; leave --configs out",
        ),
    ],
)
def test_wrong_input_is_explained(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as exit_:
        command.main([*arguments, "--work", str(tmp_path)])
    assert exit_.value.code == 2 and message in capsys.readouterr().err


def test_a_line_keeps_the_weights_that_auto_earned(tmp_path: Path) -> None:
    names = (
        "captured_auxiliary",
        "captured_primary",
        "helpful",
        "harmful",
        "neutral",
        "effective_rank",
    )
    earned = ("weight_neutral", "weight_helpful", "weight_harmful")

    def logged(step: int, kinds: tuple[str, ...]) -> dict[str, Any]:
        return {"phase": "guided", "step": step, **{f"attittud/{name}": step / 8 for name in kinds}}

    path = tmp_path / "metrics.jsonl"
    for kinds in (names, (*names, *earned)):
        path.write_text(
            "".join(json.dumps(logged(step, kinds)) + "\n" for step in range(1, 33)),
            encoding="utf-8",
        )
        found = curves(path)
        assert list(found) == ["step", *kinds]
        assert found["step"] == [2 * i + 1.5 for i in range(16)]
        assert all(found[name] == [step / 8 for step in found["step"]] for name in kinds)
