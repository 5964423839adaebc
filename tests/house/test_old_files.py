"""Files of revision 878ab49 are read, and what they began goes on: runs, comparisons, configurations, states of guides.

`make_old_files.py` in their folder made them; its first lines say what they are.
"""

import io
import json
import runpy
import shutil
import subprocess
import sys
import tarfile
from contextlib import redirect_stdout
from pathlib import Path
from pydoc import locate
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from attittud import checkpoint
from attittud.integrations.transformers import load_guide
from attittud_lab.config.load import load
from attittud_lab.config.schema import to_dict
from experiments.reproduce.fingerprint import fingerprint

ADAPTERS = {  # imported where their extra is installed
    "transformers": "attittud.integrations.transformers.AttittudTrainer",
    "lightning": "attittud.integrations.lightning.AttittudMixin",
}


# ---------------------------------------------------------------------------------------------------------------------

HERE = Path(__file__).resolve().parents[1]


FILES = HERE if (HERE / "loops.py").exists() else HERE / "old_files"
ROOT = next((folder for folder in (HERE.parent, Path.cwd()) if (folder / "experiments").is_dir()), HERE)


sys.path.insert(0, str(FILES))


import loops  # noqa: E402 - the path is set above

torch.set_num_threads(1)


FINISHED = [path.parent for path in sorted(FILES.glob("trained/*/*/*/result.json"))]
KILLED = [path.parent for path in sorted(FILES.glob("killed/*/*/*/checkpoint.safetensors"))]
AGAIN = sorted(path.parent.name for path in FILES.glob("expected/*/data.json"))
CONFIGS = json.loads((FILES / "configs.json").read_text())
FINGERPRINTS = json.loads((FILES / "fingerprints.json").read_text())
STATES = sorted(set(loops.SETTINGS) - {"sharded"})


pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of tokenizers and transformers
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator:UserWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet implemented"),
]


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to work in: all paths in the files are relative to it."""
    for name in ("trained", "killed"):
        shutil.copytree(FILES / name, tmp_path / name)
    for name in ("jobs", "data", "encoder"):  # only read
        (tmp_path / name).symlink_to(FILES / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def attittud(*arguments: object) -> str:
    """What `python -m attittud` prints; in this process, which has imported torch already."""
    said, words = io.StringIO(), sys.argv
    sys.argv = ["attittud", *map(str, arguments)]
    try:
        with redirect_stdout(said), pytest.raises(SystemExit) as end:
            runpy.run_module("attittud", run_name="__main__")
    finally:
        sys.argv = words
    assert end.value.code == 0, said.getvalue()
    return said.getvalue()


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def job(folder: Path) -> str:
    """The configuration that a run folder belongs to."""
    return f"jobs/{folder.parents[1].name}.yaml"


def needs(name: str) -> None:
    """Texts are read by an encoder of Hugging Face's."""
    if "texts" in name:
        pytest.importorskip("transformers", reason="needs the extra 'transformers'")


def same_figures(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """All of a result but seconds. Processors round differently: losses may differ a little, or an example or two."""
    for part in ("validation", "test"):
        assert found[part].keys() == expected[part].keys()
        for name, value in expected[part].items():
            near = pytest.approx(value, rel=2e-3) if name == "loss" else pytest.approx(value, abs=0.05)
            assert found[part][name] == near, (part, name)
    for name in ("strategy", "seed", "metric", "parameters", "examples"):
        assert found[name] == expected[name]
    for mine, theirs in zip(found["phases"], expected["phases"], strict=True):
        assert {**mine, "seconds": 0} == {**theirs, "seconds": 0}


def same_curve(folder: Path, expected: list[list[Any]]) -> None:
    """The lines of metrics.jsonl: none is missing, none is there twice."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [[line["phase"], line["step"]] for line in lines] == [point[:2] for point in expected]
    losses = [line.get("loss/primary", line.get("validation/loss")) for line in lines]
    assert losses == pytest.approx([point[2] for point in expected], rel=2e-3)


# ---------------------------------------------------------------------------------------------- runs


@pytest.mark.parametrize("where", KILLED, ids=lambda path: path.parents[1].name)
def test_a_killed_run_continues(old: Path, where: Path) -> None:
    needs(where.parents[1].name)
    folder = old / where.relative_to(FILES)
    assert not (folder / "result.json").exists()
    assert "unfinished" in Path(attittud("report", folder, "-o", "page").strip()).read_text()
    if where.parent.name == "auto":  # once as everybody else does it
        command = [sys.executable, "-m", "attittud", "train", job(where), "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
    else:
        attittud("train", job(where))
    expected = FILES / "expected" / where.parents[1].name
    same_figures(read(folder / "result.json"), read(expected / "result.json"))
    same_curve(folder, read(expected / "curve.json"))
    weights, wanted = load_file(folder / "weights.safetensors"), load_file(expected / "weights.safetensors")
    assert weights.keys() == wanted.keys()
    assert all(torch.allclose(weights[name], wanted[name], rtol=1e-3, atol=2e-3) for name in wanted)
    assert not (folder / "checkpoint.safetensors").exists()


@pytest.mark.parametrize("where", FINISHED, ids=lambda path: path.parents[1].name)
def test_a_finished_run_is_recognised(old: Path, where: Path) -> None:
    folder = old / where.relative_to(FILES)
    said = attittud("train", job(where))
    assert "finished earlier; --fresh trains again" in said
    result = read(where / "result.json")
    for part in ("validation", "test"):
        assert f"{result['metric']} {result[part][result['metric']]:.4f}" in said
    for path in where.iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes(), path.name
    page = Path(attittud("report", folder, "-o", "page").strip())
    assert page.stat().st_size > 10_000
    (table,) = read(page.with_name("report.json"))["tables"]
    cells = {row["cells"][0]: row["cells"][1:] for row in table["rows"]}
    assert cells == {name: [f"{result[part][name]:.4f}" for part in ("validation", "test")] for name in result["test"]}


@pytest.mark.parametrize("where", [*FINISHED, *KILLED], ids=lambda path: path.parents[1].name)
def test_the_configuration_in_a_run_folder_belongs_to_the_run(where: Path) -> None:
    found = to_dict(load(where / "config.yaml"))
    assert missing(read(where / "run.json")["config"], found) == []


@pytest.mark.parametrize("name", [*(path.parents[1].name for path in FINISHED), *AGAIN])
def test_a_job_still_ends_with_the_same_figures(old: Path, name: str) -> None:
    """From its beginning: the same rows of the data, the same initial weights, the same batches."""
    needs(name)
    whole = next((path for path in FINISHED if path.parents[1].name == name), None)
    expected = whole or FILES / "expected" / name
    attittud("train", f"jobs/{name}.yaml", "output=new", "data.cache=trained/tokens")
    (folder,) = old.glob(f"new/{name}/*/*")
    data, wanted = read(folder / "data.json"), read(expected / "data.json")
    if name == "chexpert":  # JPEGs, which not all libraries decode to the same bits
        del data["sha256"], wanted["sha256"]
    assert missing(wanted, data) == []
    same_figures(read(folder / "result.json"), read(expected / "result.json"))
    if whole is None:
        same_curve(folder, read(expected / "curve.json"))


@pytest.mark.usefixtures("old")
def test_a_run_starts_from_old_weights() -> None:
    still = [
        "training.guided.steps=1",
        "training.guided.evaluations=1",
        "training.guided.lr=1e-30",
        "training.mode=joint",
    ]
    weights = "trained/digits/auto/seed-{seed}/weights.safetensors"
    attittud("train", "jobs/digits.yaml", "output=new", f"model.weights={weights}", *still)
    new = load_file("new/digits/auto/seed-0/weights.safetensors")
    first = {name: tensor for name, tensor in load_file(weights.format(seed=0)).items() if name.startswith("body.")}
    assert first and all(torch.equal(new[name], tensor) for name, tensor in first.items())


# ---------------------------------------------------------------------------------------------- a comparison


@pytest.fixture
def compared(old: Path) -> Path:
    with tarfile.open(FILES / "compared.tar.gz") as archive:
        archive.extractall(old, filter="data")
    return old / "compared" / "comparison" / "compare"


def contents(folder: Path) -> dict[str, bytes]:
    """All files of its runs but locks, which are empty."""
    paths = [path for path in (folder / "runs").rglob("*") if path.is_file() and path.name != ".lock"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def measured(found: Any) -> Any:
    """The names and means of a comparison's rows, and the values of single seeds.

    `to_baseline` repeated one of the other differences.
    """
    if isinstance(found, list):
        return [measured(entry) for entry in found]
    if not isinstance(found, dict):
        return None
    kept = {key: found[key] for key in ("label", "mean", "values", "seeds") if key in found}
    inner = {key: value for key, value in found.items() if isinstance(value, (dict, list)) and key != "to_baseline"}
    return kept | {key: measured(value) for key, value in inner.items()}


def test_a_comparison_is_shown_as_it_was(compared: Path) -> None:
    before = read(compared / "report.json")
    attittud("report", compared, "-o", "page")
    now = read(Path("page/report.json"))
    for name in ("kind", "metric", "decision", "curves"):
        assert missing(before[name], now[name]) == [], name
    assert [len(table["rows"]) for table in now["tables"]] == [len(table["rows"]) for table in before["tables"]]


def test_a_finished_comparison_trains_nothing(compared: Path) -> None:
    """Every run is found where it was, and the plan still has the same settings for it."""
    before, figures = contents(compared), read(compared / "comparison.json")
    said = attittud("compare", "jobs/comparison.yaml")
    assert figures["decision"]["text"].split(":")[0] in " ".join(said.split())
    assert contents(compared) == before
    now = read(compared / "comparison.json")
    # Two seeds have no intervals any more; all that was measured is as it was.
    assert measured(figures["tables"]) and missing(measured(figures["tables"]), measured(now["tables"])) == []


def test_a_comparison_continues_with_more_seeds(compared: Path) -> None:
    before = contents(compared)
    attittud("compare", "jobs/comparison.yaml", "compare.seeds=3", "compare.equal=steps")
    now = contents(compared)
    assert {name: now.get(name) for name in before} == before
    more = {name for name in now if name.endswith("result.json")} - set(before)
    assert len(more) == 4 and all("/seed-2/" in name for name in more)
    assert read(compared / "comparison.json")["seeds"] == [0, 1, 2]


# ---------------------------------------------------------------------------------------------- configurations


def missing(old: Any, new: Any, path: str = "") -> list[str]:
    """The values that have changed; values that were added later do not count. Figures may round."""
    if isinstance(old, dict) and isinstance(new, dict):
        gone = [f"{path}.{name} is gone" for name in old if name not in new]
        return gone + [text for name in old if name in new for text in missing(old[name], new[name], f"{path}.{name}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [text for i, pair in enumerate(zip(old, new, strict=True)) for text in missing(*pair, f"{path}[{i}]")]
    same = type(old) is type(new) and old == (pytest.approx(new, rel=1e-9) if isinstance(new, float) else new)
    return [] if same else [f"{path}: was {old!r}, is {new!r}"]


@pytest.mark.parametrize("case", CONFIGS["cases"], ids=lambda case: " ".join([case["file"], *case["overrides"]]))
def test_a_configuration_is_read_as_before(case: dict[str, Any]) -> None:
    found = json.loads(json.dumps(to_dict(load(FILES / case["file"], case["overrides"]))))
    for path, wanted in {**CONFIGS["defaults"], **case["values"]}.items():
        value = found
        for name in path.split("."):
            value = value[name]
        assert missing(wanted, value, path) == []
        if path in ("data.auxiliary", "data.primary.where", "compare.space"):  # names are the user's: none may be new
            assert value.keys() == wanted.keys()


# The case of MultiCifar100 is later than the files: its protocol was written after them, and before its first results.
@pytest.mark.parametrize("case", FINGERPRINTS)
def test_the_fingerprint_of_a_configuration_has_not_changed(case: str) -> None:
    """A committed result counts as long as its run has the fingerprint that it had."""
    name, *overrides = case.split()
    name = name.replace("experiments/", "experiments/configs/")  # where they lie now
    folder = ROOT if name.startswith("experiments/") else FILES
    if not (ROOT / "experiments").is_dir():
        pytest.skip("needs the checkout's experiments/")
    assert fingerprint(load(folder / name, overrides)) == FINGERPRINTS[case]


# ---------------------------------------------------------------------------------------------- guides


def goes_on(loop: loops.Loop, weights: torch.Tensor, tolerances: tuple[float, float] = (1e-6, 1e-5)) -> None:
    """To the parameters after two further steps, and after five, between which the basis is refreshed."""
    for first, steps, wanted, tolerance in zip((0, 2), (2, 3), weights[1:], tolerances, strict=True):
        loop.train(loops.BEFORE + first, steps)
        assert torch.allclose(loop.weights(), wanted, rtol=0, atol=tolerance), steps


def load_pt(name: str) -> Any:
    return torch.load(FILES / "guides" / name, weights_only=True)


@pytest.mark.parametrize("setting", STATES)
def test_a_guide_continues_from_its_state(setting: str) -> None:
    saved = load_pt(f"{setting}.pt")
    loop = loops.Loop(setting, load_pt("data.pt"), init=1)
    loop.load(saved)
    # Rounded to bfloat16 a basis may differ by more; without its basis a guide refreshes at once.
    special = {"bf16": (1e-6, 1e-3), "without_basis": (1e-5, 1e-5)}
    goes_on(loop, saved["weights"], special.get(setting, (1e-6, 1e-5)))


@pytest.mark.parametrize("name", ["dcp_one", "dcp_two"])
def test_one_process_continues_from_a_distributed_checkpoint(name: str) -> None:
    """It was written by one process, and by two with a shard each."""
    saved = load_pt(f"{name}.pt")
    loop = loops.Loop("sharded", load_pt("data.pt"), init=1)
    loop.load(saved)
    checkpoint.load(loop.guide, FILES / "guides" / name)
    goes_on(loop, saved["weights"])


def test_a_trainer_continues_from_the_shards_of_another() -> None:
    saved = load_pt("dcp_two.pt")
    loop = loops.Loop("sharded", load_pt("data.pt"), init=1)
    loop.load(saved)
    assert load_guide(loop.guide, FILES / "guides" / "trainer_two") == {"updown": 14}
    goes_on(loop, saved["weights"])


# ---------------------------------------------------------------------------------------------- adapters

CURVES = read(FILES / "expected" / "curves.json")


def adapter(extra: str) -> Any:
    pytest.importorskip(extra, reason=f"needs the extra {extra!r}")
    found = locate(ADAPTERS[extra])
    assert found is not None, ADAPTERS[extra]
    return found


def test_a_trainer_continues_from_its_checkpoint(tmp_path: Path) -> None:
    trainer = loops.make_trainer(adapter("transformers"), tmp_path, 7)
    trainer.train(resume_from_checkpoint=str(FILES / "trainer" / "checkpoint-4"))
    curve = loops.trainer_curve(trainer)
    assert curve[:4] == CURVES["trainer"][:4]  # as they were written
    assert curve == pytest.approx(CURVES["trainer"], rel=1e-4)


def test_lightning_continues_from_its_checkpoint() -> None:
    module = loops.make_module(adapter("lightning"), load_pt("data.pt"))
    curve = loops.fit(module, 3, checkpoint=str(FILES / "lightning" / "last.ckpt"))
    assert curve == pytest.approx(CURVES["lightning"][8:], rel=1e-4)


def test_accelerate_continues_from_its_checkpoint() -> None:
    pytest.importorskip("accelerate", reason="needs the extra 'accelerate'")
    curve = loops.accelerated(FILES / "accelerate", load_pt("data.pt"), 8, resume=True)
    assert curve == pytest.approx(CURVES["accelerate"][5:], rel=1e-4)
