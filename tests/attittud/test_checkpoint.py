"""A guide is saved as safetensors and JSON, and continues bit for bit."""

import copy
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attittud import Eta, Guide, checkpoint
from tests.helpers.zoo import problem

pytest.importorskip("safetensors", reason="needs the extra 'checkpoint'")

from safetensors.torch import load_file, save, save_file

SETTINGS: dict[str, dict[str, Any]] = {
    "sketch": {},
    "canonical": {"basis": "canonical"},
    "bf16": {"basis_dtype": torch.bfloat16},
    "few examples": {"rank": 40},  # a basis of 6 rows
    "auto": {"eta": "auto", "judge_every": 2},
}


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
def test_a_loaded_guide_continues_bit_for_bit(tmp_path: Path, setting: str) -> None:
    run, other = Run(setting), Run(setting)
    run.train(0, 7)
    checkpoint.save(run.guide, tmp_path / "guide")
    other.train(3, 2)
    checkpoint.load(other.guide, tmp_path / "guide")
    for mine, theirs in zip(other.train(7, 5), run.train(7, 5), strict=True):
        assert torch.equal(mine, theirs)


def test_a_guide_can_be_saved_before_its_first_step(tmp_path: Path) -> None:
    run, other = Run(), Run()
    checkpoint.save(run.guide, tmp_path)
    other.train(0, 2)
    checkpoint.load(other.guide, tmp_path)
    assert other.guide.refresh_due and other.guide.subspace is None


def test_the_files_are_safetensors_and_json_alone(tmp_path: Path) -> None:
    run = Run("auto")
    run.train(0, 3)
    checkpoint.save(run.guide, tmp_path)
    files = {
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()
    }
    assert files == {"guide.json", "basis/rows.safetensors"}
    assert json.loads((tmp_path / "guide.json").read_text())["version"] == 1


def test_a_guide_is_saved_between_steps(tmp_path: Path) -> None:
    run = Run()
    run.guide.primary(run.problem.losses(slice(0, 6)))
    with pytest.raises(RuntimeError, match="step"):
        checkpoint.save(run.guide, tmp_path / "guide")
    assert not (tmp_path / "guide").exists()


def test_without_safetensors_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run()
    run.train(0, 1)
    checkpoint.save(run.guide, tmp_path)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(
        ImportError,
        match=r"attittud\[checkpoint\]",
    ):
        checkpoint.load(run.guide, tmp_path)


def test_a_folder_without_a_guide_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        checkpoint.load(Run().guide, tmp_path)


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [({"rank": 2}, "rank|rows"), ({"seed": 5}, "seed")],
    ids=str,
)
def test_the_state_of_another_guide_is_refused(
    tmp_path: Path, changes: dict[str, Any], culprit: str
) -> None:
    run = Run()
    run.train(0, 1)
    checkpoint.save(run.guide, tmp_path)
    with pytest.raises(ValueError, match=f"(?s)^{tmp_path}.*({culprit})"):
        checkpoint.load(Run(**changes).guide, tmp_path)


# ------------------------------------------------------------------------------------ damaged files


def saved(folder: Path) -> Run:
    run = Run("auto", rank=3)
    run.train(0, 3)
    checkpoint.save(run.guide, folder)
    return run


def refused(run: Run, folder: Path, culprit: str) -> None:
    """The error names the culprit, and the guide is as it was."""
    before = copy.deepcopy(run.guide.state_dict())
    with pytest.raises(ValueError, match=f"^{folder}.*{culprit}"):
        checkpoint.load(run.guide, folder)
    after = run.guide.state_dict()
    assert torch.equal(before.pop("basis"), after.pop("basis")) and repr(before) == repr(after)


def seal(folder: Path) -> None:
    """Write the checksums of the files as they are now, to reach the checks behind them."""
    file = folder / "guide.json"
    content = json.loads(file.read_text())
    del content["sha256"]
    content["files"] = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (folder / "basis").glob("*.safetensors")
    }
    content["sha256"] = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    file.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    folder = tmp_path_factory.mktemp("guide")
    return saved(folder), folder


@given(
    name=st.sampled_from(["guide.json", "basis/rows.safetensors"]),
    at=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
@settings(max_examples=60, deadline=None)
def test_a_changed_bit_is_refused(honest: tuple[Run, Path], name: str, at: float, bit: int) -> None:
    """Rows that stay almost orthonormal, another age of the basis, another name: none is used."""
    run, folder = honest
    file = folder / name
    content = file.read_bytes()
    changed = bytearray(content)
    changed[int(at * len(content))] ^= 1 << bit
    assume(changed.lower() != content.lower() or name != "guide.json")  # 1e-05 may become 1E-05
    file.write_bytes(changed)
    try:
        refused(run, folder, Path(name).name)
    finally:
        file.write_bytes(content)


def test_a_file_that_was_not_saved_is_refused(tmp_path: Path) -> None:
    run = saved(tmp_path)
    rows = tmp_path / "basis" / "rows.safetensors"
    (tmp_path / "basis" / "other.safetensors").write_bytes(rows.read_bytes())
    refused(run, tmp_path, "other.safetensors")


@pytest.mark.parametrize("name", ["guide.json", "basis/rows.safetensors"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    run = saved(tmp_path)
    file = tmp_path / name
    honest = file.read_bytes()
    for content in (
        b"",
        b"{}",
        b"[]",
        b"\x00" * len(honest),
        honest[: len(honest) // 2],
        b"\xff\xfe" + honest,
    ):
        file.write_bytes(content)
        refused(run, tmp_path, Path(name).name if content != b"{}" else "")


def test_another_version_is_refused(tmp_path: Path) -> None:
    run = saved(tmp_path)
    file = tmp_path / "guide.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": 2}))
    seal(tmp_path)
    refused(run, tmp_path, "version")


@pytest.mark.parametrize("field", ["settings", "refreshes", "judges"])
def test_a_field_of_a_wrong_type_is_named(tmp_path: Path, field: str) -> None:
    run = saved(tmp_path)
    file = tmp_path / "guide.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: "other"}))
    seal(tmp_path)
    refused(run, tmp_path, field)


def first_row_scaled(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([5 * rows[:1], rows[1:]]) for name, rows in tensors.items()}


def first_row_twice(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([rows[:1], rows[:1], rows[2:]]) for name, rows in tensors.items()}


@pytest.mark.parametrize(
    ("change", "culprit"),
    [(first_row_scaled, "row 0"), (first_row_twice, "rows 0 and 1")],
)
def test_a_basis_that_is_not_orthonormal_is_refused(
    tmp_path: Path,
    change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]],
    culprit: str,
) -> None:
    run = saved(tmp_path)
    file = tmp_path / "basis" / "rows.safetensors"
    save_file(change(load_file(file)), file)
    seal(tmp_path)
    refused(run, tmp_path, culprit)


def test_rows_of_zeros_are_no_damage(tmp_path: Path) -> None:
    """A basis has them where examples are linearly dependent."""
    run = saved(tmp_path)
    file = tmp_path / "basis" / "rows.safetensors"
    tensors = {
        name: torch.cat([rows[:-1], 0 * rows[-1:]]) for name, rows in load_file(file).items()
    }
    save_file(tensors, file)
    seal(tmp_path)
    checkpoint.load(run.guide, tmp_path)
    assert int(run.guide.subspace.effective_rank) == 2


@pytest.mark.parametrize("change", ["lost", "shape", "NaN", "offsets"])
def test_a_basis_that_does_not_fit_is_refused(tmp_path: Path, change: str) -> None:
    """Also as large as it says: nothing is allocated before sizes are compared."""
    run = saved(tmp_path / "guide")
    file = tmp_path / "guide" / "basis" / "rows.safetensors"
    tensors = load_file(file)
    name, rows = next(iter(tensors.items()))
    info = None
    if change == "lost":
        del tensors[name]
    elif change == "shape":
        tensors[name] = rows[:, 1:].contiguous()
    elif change == "NaN":
        rows.view(-1)[-1] = float("nan")
    elif change == "offsets":
        offsets = {key: {"saved_offsets": [0] * tensor.ndim} for key, tensor in tensors.items()}
        offsets[name]["saved_offsets"][1] = 10**12
        info = {"DCP_SHARDING_INFO": json.dumps(offsets)}
    file.write_bytes(save(tensors, info))
    seal(tmp_path / "guide")
    refused(run, tmp_path / "guide", "")


def test_a_lost_shard_is_noticed(tmp_path: Path) -> None:
    """The first of two shards: the other one reaches to the end of every parameter, but memory
    would stay uninitialised.
    """
    run = saved(tmp_path / "guide")
    folder = tmp_path / "guide" / "basis"
    tensors = load_file(folder / "rows.safetensors")
    (folder / "rows.safetensors").unlink()
    for number, at in enumerate([slice(0, 2), slice(2, None)]):
        part = {key: tensor[:, at].contiguous() for key, tensor in tensors.items()}
        offsets = {
            key: {"saved_offsets": [0, 2 * number, *[0] * (t.ndim - 2)]} for key, t in part.items()
        }
        (folder / f"{number}.safetensors").write_bytes(
            save(part, {"DCP_SHARDING_INFO": json.dumps(offsets)})
        )
    seal(tmp_path / "guide")
    before = run.guide.subspace.rows.clone()
    checkpoint.load(run.guide, tmp_path / "guide")
    assert torch.equal(run.guide.subspace.rows, before)
    (folder / "0.safetensors").unlink()
    refused(run, tmp_path / "guide", "0.safetensors")
    seal(tmp_path / "guide")
    refused(run, tmp_path / "guide", "missing")
