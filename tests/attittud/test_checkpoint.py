"""A guide in files: the same steps after a load, and no file that runs code or is mistaken for something else."""

import copy
import json
import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import metadata as torch_metadata

from attittud import Eta, Guide, checkpoint
from tests.helpers.hostile import WRONG, Runs, damaged, payloads
from tests.helpers.zoo import problem

pytest.importorskip("safetensors", reason="needs the extra 'checkpoint'")


from safetensors.torch import load_file, save, save_file

SETTINGS: dict[str, dict[str, Any]] = {
    "sketch": {},
    "exact": {"basis": "exact"},
    "svd": {"basis": "svd"},
    "mean": {"basis": "mean", "include_mean": True},
    "random": {"basis": "random"},
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
            self.problem.model, **{"eta": Eta(1, 0.5, -1), "rank": 3, "refresh_every": 5} | SETTINGS[setting] | changes
        )

    def train(self, first: int, steps: int) -> list[torch.Tensor]:
        grads = []
        for i in range(first, first + steps):
            at = slice(i % 5, i % 5 + 6)
            self.problem.model.zero_grad()
            more = {"judge": lambda: self.problem.losses(slice(0, 4))} if self.guide.eta == "auto" else {}
            self.guide.backward(lambda at=at: self.problem.losses(at), self.problem.loss(at), **more)
            grads += [p.grad.clone() for p in self.problem.model.parameters()]
        return grads


def dcp_save(entries: Any, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.save(entries, checkpoint_id=folder)


def save_in(form: str, guide: Guide, folder: Path) -> None:
    if form == "files":
        checkpoint.save(guide, folder)
    else:
        dcp_save({"other": torch.ones(2), "guide": checkpoint.entries(guide)}, folder)


FORMS = ("files", "dcp")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_loaded_guide_continues_bit_for_bit(tmp_path: Path, setting: str, form: str) -> None:
    run, other = Run(setting), Run(setting)
    run.train(0, 7)
    save_in(form, run.guide, tmp_path / "guide")
    other.train(3, 2)
    checkpoint.load(other.guide, tmp_path / "guide")
    for mine, theirs in zip(other.train(7, 5), run.train(7, 5), strict=True):
        assert torch.equal(mine, theirs)


def test_a_basis_of_few_examples_is_saved_with_its_rows(tmp_path: Path) -> None:
    run = Run("few examples")
    run.train(0, 1)
    checkpoint.save(run.guide, tmp_path)
    rows = load_file(tmp_path / "basis" / "rows.safetensors")
    assert {tensor.shape[0] for tensor in rows.values()} == {6}


@pytest.mark.parametrize("form", FORMS)
def test_a_guide_can_be_saved_before_its_first_step(tmp_path: Path, form: str) -> None:
    run, other = Run(), Run()
    save_in(form, run.guide, tmp_path)
    other.train(0, 2)
    checkpoint.load(other.guide, tmp_path)
    assert other.guide.refresh_due and other.guide.subspace is None


def test_the_files_are_safetensors_and_json_alone(tmp_path: Path) -> None:
    run = Run("auto")
    run.train(0, 3)
    checkpoint.save(run.guide, tmp_path)
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"guide.json", "basis/rows.safetensors"}
    assert json.loads((tmp_path / "guide.json").read_text())["version"] == 1


def test_a_folder_may_be_used_again(tmp_path: Path) -> None:
    """Nothing of the older guide stays, and nothing else in the folder is touched."""
    first, second = Run(), Run("canonical")
    first.train(0, 1)
    (tmp_path / "model.safetensors").write_bytes(b"not ours")
    checkpoint.save(first.guide, tmp_path)
    save_file({"strange": torch.ones(2)}, tmp_path / "basis" / "shard-00009-model-00001-of-00001.safetensors")
    checkpoint.save(first.guide, tmp_path)
    checkpoint.load(Run().guide, tmp_path)
    second.train(0, 1)
    checkpoint.save(second.guide, tmp_path)
    assert not list((tmp_path / "basis").iterdir())
    checkpoint.load(Run("canonical").guide, tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == b"not ours"


def test_a_guide_is_saved_between_steps(tmp_path: Path) -> None:
    run = Run()
    run.guide.primary(run.problem.losses(slice(0, 6)))
    with pytest.raises(RuntimeError, match="finish the step first"):
        checkpoint.save(run.guide, tmp_path / "guide")
    assert not (tmp_path / "guide").exists()


@pytest.mark.parametrize("verb", ["save", "load"])
def test_without_safetensors_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    run = Run()
    run.train(0, 1)
    checkpoint.save(run.guide, tmp_path)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ImportError, match=rf"attittud.checkpoint.{verb} needs .* pip install 'attittud\[checkpoint\]'"):
        getattr(checkpoint, verb)(run.guide, tmp_path)


def test_a_folder_without_a_guide_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"neither guide.json nor .metadata"):
        checkpoint.load(Run().guide, tmp_path)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("changes", "message"),
    [({"rank": 2}, "rank|rows"), ({"basis": "svd"}, "basis='sketch'"), ({"seed": 5}, "seed=0")],
    ids=str,
)
def test_the_state_of_another_guide_is_refused_with_the_name_of_the_file(
    tmp_path: Path, form: str, changes: dict[str, Any], message: str
) -> None:
    run = Run()
    run.train(0, 1)
    save_in(form, run.guide, tmp_path)
    with pytest.raises(ValueError, match=f"(?s)^{tmp_path}.*({message}).*build the guide with the settings"):
        checkpoint.load(Run(**changes).guide, tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_another_model_is_refused(tmp_path: Path, form: str) -> None:
    run = Run()
    run.train(0, 1)
    save_in(form, run.guide, tmp_path)
    with pytest.raises(ValueError, match=f"^{tmp_path}.*another model"):
        checkpoint.load(Guide(problem("transformer").model, eta=Eta(1, 1, 0), rank=3), tmp_path)


# ---------------------------------------------------------------------------------------------- hostile and damaged files


def saved(folder: Path, form: str) -> Run:
    run = Run("auto", rank=3)
    run.train(0, 3)
    save_in(form, run.guide, folder)
    return run


FILES = [
    ("files", "guide.json"),
    ("files", "basis/rows.safetensors"),
    ("dcp", ".metadata"),
    ("dcp", "__0_0.distcp"),
]


def refused(run: Run, folder: Path, *names: str) -> None:
    """The sentence names one of these files and the cure, and the guide is as it was."""
    before = copy.deepcopy(run.guide.state_dict())
    with pytest.raises(ValueError, match=str(folder)) as caught:
        checkpoint.load(run.guide, folder)
    message = str(caught.value)
    assert any(message.startswith(str(folder / name)) for name in names), message
    assert "\n" not in message and len(message) < 700, message
    assert any(
        cure in message for cure in ("another copy", "settings of the saved run", "state_dict()", "another model")
    )
    after = run.guide.state_dict()
    assert torch.equal(before.pop("basis"), after.pop("basis")) and repr(before) == repr(after)


@pytest.mark.parametrize(("form", "name"), FILES)
def test_a_planted_pickle_does_not_run(tmp_path: Path, form: str, name: str) -> None:
    run, mark = saved(tmp_path / "guide", form), tmp_path / "ran"
    for content in payloads(mark):
        (tmp_path / "guide" / name).write_bytes(content)
        refused(run, tmp_path / "guide", name)
        assert not mark.exists()


def test_a_pickle_inside_of_honest_metadata_does_not_run(tmp_path: Path) -> None:
    """Everywhere in the tree: among the data of the planner, in place of a size, as the state of an object."""
    run, mark = saved(tmp_path / "guide", "dcp"), tmp_path / "ran"
    file = tmp_path / "guide" / ".metadata"
    honest = file.read_bytes()

    def plant(change: Callable[[Any], None]) -> None:
        found = pickle.loads(honest)
        change(found)
        file.write_bytes(pickle.dumps(found))
        with pytest.raises(ValueError, match=rf"{file}.*(posix|nt)\.system.*could run code.*another copy"):
            checkpoint.load(run.guide, tmp_path / "guide")
        assert not mark.exists()

    def entry(found: Any) -> Any:
        return next(x for x in found.state_dict_metadata.values() if hasattr(x, "chunks"))

    plant(lambda found: setattr(found, "planner_data", Runs(mark)))
    plant(lambda found: setattr(found, "version", Runs(mark)))
    plant(lambda found: setattr(found.storage_meta, "checkpoint_id", Runs(mark)))
    plant(lambda found: setattr(entry(found), "size", Runs(mark)))
    plant(lambda found: setattr(entry(found).properties, "dtype", Runs(mark)))
    plant(lambda found: entry(found).chunks.append(Runs(mark)))
    plant(lambda found: found.state_dict_metadata.update(other=Runs(mark)))
    plant(lambda found: setattr(next(iter(found.storage_data.values())), "relative_path", Runs(mark)))


def test_a_value_that_is_not_a_tensor_does_not_run(tmp_path: Path) -> None:
    """The state of the guide, or the rows over a parameter, is an object that torch.save has pickled."""
    run, mark = saved(tmp_path / "honest", "dcp"), tmp_path / "ran"
    entries = checkpoint.entries(run.guide)
    name = next(iter(entries["basis"]))
    planted = [
        entries | {"state": Runs(mark)},
        entries | {"state": [entries["state"], Runs(mark)]},
        entries | {"basis": entries["basis"] | {name: Runs(mark)}},
    ]
    for number, content in enumerate(planted):
        folder = tmp_path / str(number)
        dcp_save({"guide": content}, folder)
        refused(run, folder, "", ".metadata", "__0_0.distcp")
        assert not mark.exists()


def test_other_entries_of_the_checkpoint_are_not_read(tmp_path: Path) -> None:
    """Objects in the user's own entries are not unpickled, and do not stand in the way."""
    run, mark = saved(tmp_path / "honest", "dcp"), tmp_path / "ran"
    dcp_save({"theirs": Runs(mark), "guide": checkpoint.entries(run.guide)}, tmp_path / "mixed")
    checkpoint.load(run.guide, tmp_path / "mixed")
    assert not mark.exists()


def test_a_tensor_in_torchs_file_that_is_a_pickle_does_not_run(tmp_path: Path) -> None:
    run, mark = saved(tmp_path / "guide", "dcp"), tmp_path / "ran"
    file, data = tmp_path / "guide" / ".metadata", tmp_path / "guide" / "__0_0.distcp"
    content, honest = next(iter(payloads(mark))), data.read_bytes()
    for at in range(20):
        found = pickle.loads(file.read_bytes())
        infos = list(found.storage_data.values())
        if at == len(infos):
            break
        offset = infos[at].offset
        data.write_bytes(honest[:offset] + content + honest[offset + len(content) :])
        if infos[at].length >= len(content) and "guide" in list(found.storage_data)[at].fqn:
            refused(run, tmp_path / "guide", "__0_0.distcp")
        assert not mark.exists()


def test_a_pickle_cannot_change_torchs_classes(tmp_path: Path) -> None:
    """A pickle may set attributes of whatever it names, classes too."""
    run = saved(tmp_path / "guide", "dcp")
    before = dict(vars(torch_metadata.Metadata))
    planted = pickle.GLOBAL + b"torch.distributed.checkpoint.metadata\nMetadata\n"
    planted += pickle.MARK + pickle.NONE + pickle.EMPTY_DICT + pickle.MARK
    planted += b"\x8c\x07planned" + pickle.NEWTRUE + pickle.SETITEMS + pickle.TUPLE + pickle.BUILD + pickle.STOP
    (tmp_path / "guide" / ".metadata").write_bytes(pickle.PROTO + b"\x04" + planted)
    refused(run, tmp_path / "guide", ".metadata")
    assert dict(vars(torch_metadata.Metadata)) == before
    pickle.loads(pickle.PROTO + b"\x04" + planted)  # so it would have been
    assert torch_metadata.Metadata.planned
    del torch_metadata.Metadata.planned


def test_metadata_may_not_ask_for_memory(tmp_path: Path) -> None:
    """A pickle numbers the values that it refers to again: for this number Python would reserve 2 GB."""
    run = saved(tmp_path / "guide", "dcp")
    planted = pickle.PROTO + b"\x04" + pickle.NONE + pickle.LONG_BINPUT + (2**27).to_bytes(4, "little") + pickle.STOP
    (tmp_path / "guide" / ".metadata").write_bytes(planted)
    refused(run, tmp_path / "guide", ".metadata")
    with pytest.raises(ValueError, match="it asks for memory for 134217728 objects"):
        checkpoint.load(run.guide, tmp_path / "guide")


@pytest.mark.parametrize("where", ["../other", "/etc/passwd", "..", "a/b"])
def test_metadata_may_not_point_out_of_the_folder(tmp_path: Path, where: str) -> None:
    run = saved(tmp_path / "guide", "dcp")
    file = tmp_path / "guide" / ".metadata"
    found = pickle.loads(file.read_bytes())
    for index, info in found.storage_data.items():
        if index.fqn.startswith("guide"):
            info.relative_path = where
    file.write_bytes(pickle.dumps(found))
    refused(run, tmp_path / "guide", ".metadata")


@pytest.mark.parametrize(("form", "name"), FILES)
def test_a_damaged_file_is_named(tmp_path: Path, form: str, name: str) -> None:
    run = saved(tmp_path / "guide", form)
    file = tmp_path / "guide" / name
    honest = file.read_bytes()
    for content in damaged(honest):
        file.write_bytes(content)
        try:
            # Other bytes in the middle of a number are another valid number, which nobody can notice.
            checkpoint.load(copy.deepcopy(run.guide), tmp_path / "guide")
        except ValueError:
            refused(run, tmp_path / "guide", name, "guide.json", "basis", ".metadata", "")


@pytest.mark.slow
def test_wrong_types_in_the_state_are_named(tmp_path: Path) -> None:
    run = saved(tmp_path / "guide", "files")
    file = tmp_path / "guide" / "guide.json"
    honest = json.loads(file.read_text())
    for path in places(honest):
        for wrong in [*WRONG, "gone"]:
            content = copy.deepcopy(honest)
            inner = content
            for key in path[:-1]:
                inner = inner[key]
            value = inner[path[-1]]
            allowed = value is None if wrong == "gone" else type(value) is type(wrong) and value == wrong
            if wrong == "gone":
                del inner[path[-1]]
            else:
                inner[path[-1]] = wrong
            file.write_text(json.dumps(content))
            other = copy.deepcopy(run)
            try:
                checkpoint.load(other.guide, tmp_path / "guide")
            except ValueError:
                refused(run, tmp_path / "guide", "guide.json", "basis")
            else:
                assert allowed or path[0] in ("reached_by_auxiliary", "judges", "since_refresh", "rows"), (path, wrong)
                other.train(3, 6)  # what was taken can be used


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything in a nested structure."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in items for place in [(*path, key), *places(item, (*path, key))]]


@pytest.mark.parametrize("change", ["rows", "lost", "renamed", "shape", "type", "NaN", "offsets", "more"])
def test_a_basis_that_does_not_fit_is_refused(tmp_path: Path, change: str) -> None:
    """Also as large as it says: nothing is allocated before sizes are compared."""
    run = saved(tmp_path / "guide", "files")
    file = tmp_path / "guide" / "basis" / "rows.safetensors"
    tensors = load_file(file)
    name, rows = next(iter(tensors.items()))
    info = None
    if change == "rows":
        tensors = {key: tensor[:2] for key, tensor in tensors.items()}
    elif change == "lost":
        del tensors[name]
    elif change == "renamed":
        tensors["other"] = tensors.pop(name)
    elif change == "shape":
        tensors[name] = rows[:, 1:].contiguous()
    elif change == "type":
        tensors[name] = rows.to(torch.int64)
    elif change == "NaN":
        rows.view(-1)[-1] = float("nan")
    elif change == "more":
        tensors = {key: torch.cat([tensor] * 2) for key, tensor in tensors.items()}
    elif change == "offsets":
        offsets = {key: {"saved_offsets": [0] * tensor.ndim} for key, tensor in tensors.items()}
        offsets[name]["saved_offsets"][1] = 10**12
        info = {"DCP_SHARDING_INFO": json.dumps(offsets)}
    file.write_bytes(save(tensors, info))
    refused(run, tmp_path / "guide", "basis", "guide.json")


def test_any_kind_of_sharding_information_is_accepted_or_refused(tmp_path: Path) -> None:
    run = saved(tmp_path / "guide", "files")
    file = tmp_path / "guide" / "basis" / "rows.safetensors"
    tensors = load_file(file)
    for wrong in [*WRONG[1:], {name: {"saved_offsets": ["0"] * 3} for name in tensors}, {name: {} for name in tensors}]:
        file.write_bytes(save(tensors, {"DCP_SHARDING_INFO": json.dumps(wrong)}))
        refused(run, tmp_path / "guide", "basis")


def test_a_lost_shard_is_noticed(tmp_path: Path) -> None:
    """The first of two shards: the other one reaches to the end of every parameter, but memory would stay uninitialised."""
    run = saved(tmp_path / "guide", "files")
    folder = tmp_path / "guide" / "basis"
    tensors = load_file(folder / "rows.safetensors")
    (folder / "rows.safetensors").unlink()
    for number, at in enumerate([slice(0, 2), slice(2, None)]):
        part = {key: tensor[:, at].contiguous() for key, tensor in tensors.items()}
        offsets = {key: {"saved_offsets": [0, 2 * number, *[0] * (t.ndim - 2)]} for key, t in part.items()}
        (folder / f"{number}.safetensors").write_bytes(save(part, {"DCP_SHARDING_INFO": json.dumps(offsets)}))
    before = run.guide.subspace.rows.clone()
    checkpoint.load(run.guide, tmp_path / "guide")
    assert torch.equal(run.guide.subspace.rows, before)
    (folder / "0.safetensors").unlink()
    refused(run, tmp_path / "guide", "basis")


def test_metadata_without_an_entry_is_refused(tmp_path: Path) -> None:
    run = saved(tmp_path / "guide", "dcp")
    file = tmp_path / "guide" / ".metadata"
    honest = pickle.loads(file.read_bytes())
    for index in [index for index in honest.storage_data if index.fqn.startswith("guide")]:
        found = copy.deepcopy(honest)
        del found.storage_data[index]
        file.write_bytes(pickle.dumps(found))
        refused(run, tmp_path / "guide", "")


def test_metadata_of_another_kind_is_refused(tmp_path: Path) -> None:
    """The metadata has objects where other kinds belong."""
    run = saved(tmp_path / "guide", "dcp")
    file = tmp_path / "guide" / ".metadata"
    honest = pickle.loads(file.read_bytes())
    values = [1, "text", [], {}, torch.Size([1]), torch.float32, honest, SimpleNamespace, None]
    for name in ("state_dict_metadata", "storage_data"):
        for wrong in values:
            found = copy.deepcopy(honest)
            setattr(found, name, wrong)
            file.write_bytes(pickle.dumps(found))
            with pytest.raises(ValueError, match=f"{tmp_path / 'guide'}"):
                checkpoint.load(run.guide, tmp_path / "guide")
