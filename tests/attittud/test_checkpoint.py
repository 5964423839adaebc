"""A guide is saved as safetensors and JSON, and continues bit for bit."""

import copy
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from attittud import Eta, Guide, checkpoint
from tests.helpers.zoo import problem

SETTINGS: dict[str, dict[str, Any]] = {
    "sketch": {},
    "canonical": {"basis": "canonical"},
    "bf16": {"basis_dtype": torch.bfloat16},
    "few examples": {"rank": 40},  # a basis of 6 rows
    "auto": {"eta": "auto", "judge_every": 2},
}

ROWS = "basis/shard-00001-model-00001-of-00001.safetensors"


class Run:
    """A model in training; what a step sees depends on its number alone."""

    def __init__(self, setting: str = "sketch", **changes: Any) -> None:
        self.problem = problem("mlp", m=12, n=12)
        self.guide = Guide(
            self.problem.model,
            **{"eta": Eta(1, 0.5, -1), "rank": 3, "refresh_every": 5} | SETTINGS[setting] | changes,
        )

    def train(self, first: int, steps: int) -> list[torch.Tensor]:
        grads = []
        for i in range(first, first + steps):
            at = slice(i % 5, i % 5 + 6)
            self.problem.model.zero_grad()
            more = (
                {"judge": lambda: self.problem.losses(slice(0, 4))}
                if self.guide.eta == "auto"
                else {}
            )
            self.guide.backward(
                lambda at=at: self.problem.losses(at), self.problem.loss(at), **more
            )
            grads += [p.grad.clone() for p in self.problem.model.parameters()]
        return grads


@pytest.mark.parametrize("setting", ["sketch", "canonical", "bf16", "few examples", "auto"])
def test_a_loaded_guide_continues_bit_for_bit(tmp_path, setting):
    run, other = Run(setting), Run(setting)
    run.train(0, 7)
    checkpoint.save(run.guide, tmp_path / "guide")
    other.train(3, 2)
    checkpoint.load(other.guide, tmp_path / "guide")
    for mine, theirs in zip(other.train(7, 5), run.train(7, 5), strict=True):
        assert torch.equal(mine, theirs)


def test_a_guide_can_be_saved_before_its_first_step(tmp_path):
    run, other = Run(), Run()
    checkpoint.save(run.guide, tmp_path)
    other.train(0, 2)
    checkpoint.load(other.guide, tmp_path)
    assert other.guide.refresh_due and other.guide.subspace is None


def test_the_files_are_safetensors_and_json_alone(tmp_path):
    run = Run("auto")
    run.train(0, 3)
    checkpoint.save(run.guide, tmp_path)
    files = {
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()
    }
    assert files == {"guide.json", ROWS}


def test_a_guide_is_saved_between_steps(tmp_path):
    run = Run()
    run.guide.primary(run.problem.losses(slice(0, 6)))
    with pytest.raises(RuntimeError, match="step"):
        checkpoint.save(run.guide, tmp_path / "guide")
    assert not (tmp_path / "guide").exists()


def test_a_worker_that_writes_no_files_reads_none(tmp_path):
    """Replicas wait for nobody here, so a file may come and go while the first worker writes."""
    run = Run()
    run.train(0, 1)
    (tmp_path / ROWS).mkdir(parents=True)  # a path that cannot be read
    checkpoint.save(run.guide, tmp_path, writes=False)
    assert not (tmp_path / "guide.json").exists()


def test_without_safetensors_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"attittud\[checkpoint\]"):
        checkpoint.save(Run().guide, tmp_path)


def test_a_folder_without_a_guide_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        checkpoint.load(Run().guide, tmp_path)


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [({"rank": 2}, "rank"), ({"seed": 5}, "seed"), ({"basis": "exact"}, "basis")],
    ids=str,
)
def test_the_state_of_another_guide_is_refused(tmp_path, changes, culprit):
    run = Run()
    run.train(0, 1)
    checkpoint.save(run.guide, tmp_path)
    with pytest.raises(ValueError, match=f"(?s)^{tmp_path}.*({culprit})"):
        checkpoint.load(Run(**changes).guide, tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run whose guide is saved in `tmp_path`."""
    run = Run("auto", rank=3)
    run.train(0, 3)
    checkpoint.save(run.guide, tmp_path)
    return run


def seal(folder: Path) -> None:
    """Give changed files the checksums that they would have if they had been saved so."""
    file = folder / "guide.json"
    content = json.loads(file.read_text())
    shards = sorted((folder / "basis").glob("*.safetensors"))
    content["files"] = {shard.name: sha256(shard.read_bytes()).hexdigest() for shard in shards}
    del content["sha256"]
    content["sha256"] = sha256(json.dumps(content).encode()).hexdigest()
    file.write_text(json.dumps(content))


def refused(run: Run, folder: Path, culprit: str) -> None:
    """The error names the culprit, and the guide is as it was."""
    before = copy.deepcopy(run.guide.state_dict())
    with pytest.raises(ValueError, match=f"^{folder}.*{culprit}"):
        checkpoint.load(run.guide, folder)
    after = run.guide.state_dict()
    assert torch.equal(before.pop("basis"), after.pop("basis")) and repr(before) == repr(after)


@pytest.mark.parametrize(("name", "culprit"), [("guide.json", "guide.json"), (ROWS, "basis")])
def test_a_damaged_file_is_refused(run, tmp_path, name, culprit):
    file = tmp_path / name
    honest = file.read_bytes()
    others = (b"", b"{}", b"[]", b"\x00" * len(honest), honest[: len(honest) // 2], honest + b" ")
    for content in others:
        file.write_bytes(content)
        refused(run, tmp_path, culprit)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    run = Run("auto", rank=3)
    run.train(0, 3)
    folder = tmp_path_factory.mktemp("guide")
    checkpoint.save(run.guide, folder)
    return run, folder


@given(
    name=st.sampled_from(["guide.json", ROWS]),
    at=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
@settings(max_examples=60, deadline=None)
def test_a_changed_bit_is_refused(honest, name, at, bit):
    """Rows that stay almost orthonormal, another age of the basis, another name: none is used."""
    run, folder = honest
    file = folder / name
    content = file.read_bytes()
    changed = bytearray(content)
    changed[int(at * len(content))] ^= 1 << bit
    file.write_bytes(changed)
    try:
        refused(run, folder, Path(name).name)
    finally:
        file.write_bytes(content)


def test_a_file_that_was_not_saved_is_refused(run, tmp_path):
    (tmp_path / "basis" / "other.safetensors").write_bytes((tmp_path / ROWS).read_bytes())
    refused(run, tmp_path, "other.safetensors")


@pytest.mark.parametrize("field", ["format", "version", "refreshes", "judges"])
def test_another_format_or_type_is_named(run, tmp_path, field):
    file = tmp_path / "guide.json"
    content = json.loads(file.read_text())
    if field == "format":
        content[field] = 1
    else:
        content["state"][field] = "other"
    file.write_text(json.dumps(content))
    seal(tmp_path)
    refused(run, tmp_path, field)


@pytest.mark.parametrize(
    ("change", "culprit"),
    [
        ("scaled", "row 0"),
        ("twice", "rows 0 and 1"),
        ("lost", "basis"),
        ("shape", "basis"),
        ("NaN", "NaN"),
    ],
)
def test_another_basis_is_refused(run, tmp_path, change, culprit):
    file = tmp_path / ROWS
    tensors = load_file(file)
    name, rows = next(iter(tensors.items()))
    if change == "scaled":
        tensors = {key: torch.cat([5 * x[:1], x[1:]]) for key, x in tensors.items()}
    elif change == "twice":
        tensors = {key: torch.cat([x[:1], x[:1], x[2:]]) for key, x in tensors.items()}
    elif change == "lost":
        del tensors[name]
    elif change == "shape":
        tensors[name] = rows[:, 1:].contiguous()
    elif change == "NaN":
        rows.view(-1)[-1] = float("nan")
    save_file(tensors, file)
    seal(tmp_path)
    refused(run, tmp_path, culprit)


def test_a_lost_shard_is_noticed(run, tmp_path):
    """The first of two shards: the other one reaches to the end of every parameter."""
    tensors = load_file(tmp_path / ROWS)
    (tmp_path / ROWS).unlink()
    for number, at in enumerate([slice(0, 2), slice(2, None)]):
        part = {key: tensor[:, at].contiguous() for key, tensor in tensors.items()}
        offsets = {
            key: {"saved_offsets": [0, 2 * number, *[0] * (t.ndim - 2)]} for key, t in part.items()
        }
        file = tmp_path / "basis" / f"{number}.safetensors"
        save_file(part, file, {"DCP_SHARDING_INFO": json.dumps(offsets)})
    before = run.guide.subspace.rows.clone()
    seal(tmp_path)
    checkpoint.load(run.guide, tmp_path)
    assert torch.equal(run.guide.subspace.rows, before)
    (tmp_path / "basis" / "0.safetensors").unlink()
    refused(run, tmp_path, "0.safetensors")
    seal(tmp_path)
    refused(run, tmp_path, "incomplete")
