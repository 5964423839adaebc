"""A guide in files, from which another number or kind of workers can go on: FSDP2 on 2 workers, replicas, one process.

    checkpoint.save(guide, folder)      # safetensors and JSON; every worker calls it
    checkpoint.load(guide, folder)

Or a guide in a checkpoint of one's own, by `torch.distributed.checkpoint`; the same `load` reads it:

    dcp.save({"model": ..., "optimizer": ..., "guide": checkpoint.entries(guide)}, checkpoint_id=folder)

The basis is saved by parameter, and each worker writes its shards. No file that `load` reads can run code, whoever made it.
"""

from __future__ import annotations

import json
import math
import pickle
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from io import BytesIO
from os import PathLike
from pathlib import Path
from pickletools import genops
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load as load_entries
from torch.distributed.checkpoint.state_dict_saver import save as save_entries
from torch.futures import Future

if TYPE_CHECKING:
    from attittud.guide import Guide

__all__ = ["entries", "load", "save"]

STATE = "guide.json"
BASIS = "basis"  # a folder
METADATA = ".metadata"  # it makes a folder one of torch's checkpoints
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
CURE = "use another copy of the checkpoint, or go on without the guide's state: the next step then computes the basis again"


def entries(guide: Guide) -> dict[str, Any]:
    """What to put under a key of one's own into the dict given to `torch.distributed.checkpoint.save`."""
    state, basis = _parts(guide)
    return {"state": json.dumps(state), "basis": basis}


def save(guide: Guide, folder: str | PathLike[str], *, writes: bool | None = None) -> None:
    """Write a guide into a folder; every worker must call this, between two steps.

    Args:
        guide: the guide.
        folder: is made if needed. An older guide in it is replaced, other files stay.
        writes: whether this worker writes what all workers have in common; by default the first worker does.
    """
    safetensors = _import_safetensors("save")
    state, basis = _parts(guide)
    if writes is None:
        writes = not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0
    folder, rows = Path(folder), next((tensor.shape[0] for tensor in basis.values()), None)
    _wait(guide)  # somebody may still be loading the files that are replaced here
    if writes:
        # A folder without its JSON is incomplete, and no shard of an older guide may stay among the new ones.
        (folder / BASIS).mkdir(parents=True, exist_ok=True)
        for old in [folder / STATE, *(folder / BASIS).glob("*.safetensors")]:
            old.unlink(missing_ok=True)
    if basis and guide.sharded:
        # It begins with an exchange, so nobody writes before the old files are gone, and ends when all have written.
        save_entries(basis, storage_writer=HuggingFaceStorageWriter(str(folder / BASIS), save_distributed=True))
    elif basis and writes:
        safetensors.save_file(basis, folder / BASIS / "rows.safetensors")
    if writes:
        (folder / STATE).write_text(json.dumps(state | {"rows": rows}), encoding="utf-8")
    _wait(guide)  # nobody loads before the state is there


def _wait(guide: Guide) -> None:
    """Wait for all workers, where they share the files."""
    if guide.sharded:
        dist.all_gather_object([None] * dist.get_world_size(), None)


def load(guide: Guide, checkpoint_id: str | PathLike[str], *, key: str = "guide") -> None:
    """Let a guide go on from a folder of `save`, or from a checkpoint of torch that has its `entries` under `key`.

    Every worker must call this.
    """
    folder = Path(checkpoint_id)
    file = next((folder / name for name in (STATE, METADATA) if (folder / name).is_file()), None)
    if file is None:
        raise FileNotFoundError(
            f"{folder}: there is no guide, since neither {STATE} nor {METADATA} is in this folder; {CURE}"
        )
    state, basis = _load_saved(guide, folder) if file.name == STATE else _load_entries(guide, folder, key)
    restore(guide, state | {"basis": basis or None}, file)


def _parts(guide: Guide) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A guide's state, plain data alone, and a copy of its basis by parameter; empty if none is stored."""
    state = guide.state_dict(include_basis=False)
    del state["basis"], state["worker"]
    space = guide.subspace
    if space is None or space.rows is None:
        return state, {}
    if guide.sharded:
        packed = guide._workers.pack(space.layout, space.rows)
        assert isinstance(packed, dict)
        return state, packed
    views = zip(space.layout.names, space.layout.views(space.rows), strict=True)
    return state, {name: view.clone(memory_format=torch.contiguous_format) for name, view in views}


def _import_safetensors(verb: str) -> Any:
    try:
        return import_module("safetensors.torch")
    except ImportError as error:
        raise ImportError(
            f"attittud.checkpoint.{verb} needs the extra 'checkpoint': pip install 'attittud[checkpoint]' ({error})"
        ) from error


# ------------------------------------------------------------------------------------------------ reading


class UnreadableError(ValueError):
    """A file of a checkpoint is damaged, crafted or not of this library."""


class ForbiddenError(pickle.UnpicklingError):
    """A pickle asks for something that torch's metadata never needs."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong with a file into one sentence that names the file and the cure."""
    try:
        yield
    except (Exception, CheckpointException) as error:
        # The second is what torch makes of the errors of all workers.
        found = next(iter(error.failures.values()))[0] if isinstance(error, CheckpointException) else error
        if isinstance(found, UnreadableError):
            raise UnreadableError(*found.args) from None
        reason = " ".join(f"{type(found).__name__} {found}".split())[:200]
        if isinstance(found, pickle.UnpicklingError) and not isinstance(found, ForbiddenError):
            # (torch's own message goes on to recommend weights_only=False.)
            reason = "it is damaged, or holds more than tensors, numbers and texts, which could run code"
        raise UnreadableError(f"{path}: cannot be read as part of a guide's checkpoint ({reason}); {CURE}") from None


def restore(guide: Guide, state: Mapping[str, Any], file: Path) -> None:
    """Load a guide's state; errors name the file that it comes from."""
    try:
        guide.load_state_dict(state)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that must hold a JSON object."""
    with reading(path):
        return _json_object(path.read_text(encoding="utf-8"))


def _json_object(text: Any) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError(f"a JSON object was expected, not a {type(found).__name__}")
    return found


def _load_saved(guide: Guide, folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """State and basis from what `save` wrote."""
    state = read_json(folder / STATE)
    rows = state.pop("rows", None)
    if rows is None:
        return state, {}
    safetensors = _import_safetensors("load")
    for file in sorted((folder / BASIS).glob("*.safetensors")):
        with reading(file), safetensors.safe_open(file, "pt"):
            pass  # torch reads all headers below, and would not say which one is damaged
    reader = _SafetensorsReader(str(folder / BASIS))
    with reading(folder / BASIS):
        room = _room(guide, reader.read_metadata().state_dict_metadata, "", folder / BASIS)
        if [tensor.shape[0] for tensor in room.values()] != [rows] * len(room) or not room:
            raise ValueError(f"it lacks the rows of the basis that {STATE} speaks of")
    _fill(room, reader, folder / BASIS)
    return state, room


def _load_entries(guide: Guide, folder: Path, key: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """State and basis from a checkpoint of torch with the `entries` of a guide."""
    reader = _EntriesReader(folder, f"{key}.")
    found, state, prefix = reader.read_metadata().state_dict_metadata, f"{key}.state", f"{key}.basis."
    if state not in found:
        raise ValueError(
            f"the checkpoint {str(folder)!r} has no guide under {key!r}, only {sorted(reader.keys)}; save one with "
            f"{{{key!r}: attittud.checkpoint.entries(guide)}}"
        )
    with reading(folder / METADATA):
        taken: dict[str, Any] = {state: "", **_room(guide, found, prefix, folder / METADATA)}
    _fill(taken, reader, folder)
    with reading(folder):
        loaded = _json_object(taken.pop(state))
    return loaded, {path.removeprefix(prefix): rows for path, rows in taken.items()}


def _room(guide: Guide, found: Mapping[str, Any], prefix: str, file: Path) -> dict[str, Tensor]:
    """Memory for this worker's part of a saved basis. The sizes are checked before anything is allocated."""
    parameters, room = dict(guide._workers.named(guide.model)), {}
    saved = {path: entry for path, entry in found.items() if path.startswith(prefix)}
    for path, entry in saved.items():
        name = path.removeprefix(prefix)
        if name not in parameters:
            raise UnreadableError(f"{file}: the checkpoint belongs to another model: here is no parameter {name!r}")
        needed, shape = tuple(parameters[name].shape), tuple(entry.size)
        if shape[1:] != needed or not 0 <= shape[0] <= guide.rank or entry.properties.dtype not in DTYPES:
            raise UnreadableError(
                f"{file}: the saved basis over the parameter {name!r} is {shape} of {entry.properties.dtype}, and this guide "
                f"needs at most {guide.rank} rows of {needed}; build the guide with the settings of the saved run"
            )
        # Where a file is missing, memory would stay as it happens to be.
        if sum(math.prod(chunk.sizes) for chunk in entry.chunks) != math.prod(shape):
            raise ValueError(f"not all of the basis over the parameter {name!r} is there")
        room[path] = guide._workers.empty_rows(parameters[name], shape[0], entry.properties.dtype)
    return room


def _fill(into: dict[str, Any], reader: FileSystemReader, folder: Path) -> None:
    """Read what belongs to this worker, as torch plans it."""
    with warnings.catch_warnings(), reading(folder):
        # In one process torch warns that it is only one.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        load_entries(into, storage_reader=reader, planner=_Planner())


class _Planner(DefaultLoadPlanner):
    """Loads into a flat dict; other values than tensors must be plain data."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def load_bytes(self, read_item: ReadItem, value: BytesIO) -> None:
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)


class _Reader(FileSystemReader):
    """Reads one file after the other, so that an error names its file."""

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        files: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            files.setdefault(self.storage_data[item.storage_index].relative_path, []).append(item)
        for file, items in files.items():
            with reading(Path(self.path) / file):
                super().read_data(replace(plan, items=items), planner).wait()
        return super().read_data(replace(plan, items=[]), planner)


class _SafetensorsReader(_Reader, HuggingFaceStorageReader):
    pass


# ------------------------------------------------------------------------------------------------ torch's own format


class _EntriesReader(_Reader):
    """Reads a checkpoint of torch, whose metadata is a pickle, without running anything that a pickle asks for.

    It takes only the entries whose names begin with `prefix`, and checks the types of all that it takes.
    """

    def __init__(self, folder: Path, prefix: str) -> None:
        super().__init__(folder)
        with reading(folder / METADATA):
            content = (folder / METADATA).read_bytes()
            for opcode, argument, _ in genops(content):
                # The unpickler sets aside as much memory as a damaged or crafted number asks for.
                if "PUT" in opcode.name and int(argument or 0) > len(content):
                    raise ValueError(f"it counts to {argument}")
            described, stored = (
                _Unpickler(BytesIO(content)).load().fields("Metadata", "state_dict_metadata", "storage_data")
            )
            self.keys = {name.split(".")[0] for name in described}
            own = {name: _described(entry) for name, entry in described.items() if name.startswith(prefix)}
            self.metadata = Metadata(own, storage_data=dict(_stored(stored, prefix)))

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        return self.metadata


class _Record:
    """Stands in for every class in torch's metadata: it keeps the state that it is given and does nothing."""

    state: Any = None

    def __new__(cls, *_: Any) -> _Record:
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def fields(self, kind: str, *names: str) -> list[Any]:
        """The values of some fields of a record of this kind; None for a field that was left out."""
        if type(self).__name__ != kind:
            raise TypeError(f"a {kind} was expected, not a {type(self).__name__}")
        return [self.state.get(name) for name in names]


class _Unpickler(pickle.Unpickler):
    """Knows the names that torch's metadata needs and no other, and makes plain data of all of them."""

    def find_class(self, module: str, name: str) -> Any:
        if name in RECORDS.get(module, ()):
            return type(name, (_Record,), {})  # a new class each time, since a pickle can set attributes of a class
        if module == "torch" and name == "Size":
            return tuple
        if module == "torch" and isinstance(dtype := vars(torch).get(name), torch.dtype):
            return dtype
        raise ForbiddenError(
            f"it asks for {module}.{name}, which torch's metadata never needs and which could run code"
        )


PATHS = ("PosixPath", "WindowsPath")
RECORDS = {
    "torch.distributed.checkpoint.metadata": (
        "Metadata",
        "StorageMeta",
        "MetadataIndex",
        "TensorStorageMetadata",
        "TensorProperties",
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),
    "pathlib": PATHS,
    "pathlib._local": PATHS,  # Python 3.13
}
"""The names in a pickle of torch's metadata, by module; beside them only torch.Size and the types of tensors."""


def _described(entry: _Record) -> TensorStorageMetadata | BytesStorageMetadata:
    """Type, size and chunks of a tensor, or that an entry is no tensor."""
    if type(entry).__name__ == "BytesStorageMetadata":
        return BytesStorageMetadata()
    properties, size, chunks = entry.fields("TensorStorageMetadata", "properties", "size", "chunks")
    dtype = properties.state[0]
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"a type of tensors was expected, not a {type(dtype).__name__}")
    found = [chunk.fields("ChunkStorageMetadata", "offsets", "sizes") for chunk in chunks]
    parts = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in found]
    return TensorStorageMetadata(TensorProperties(dtype), torch.Size(size), parts)


def _stored(stored: Mapping[_Record, _Record], prefix: str) -> Iterator[tuple[MetadataIndex, Any]]:
    """Where the entries are: file, offset and length."""
    for index, info in stored.items():
        name, offset, hint = index.fields("MetadataIndex", "fqn", "offset", "index")
        if name.startswith(prefix):
            fields = ("relative_path", "offset", "length", "transform_descriptors")
            where = SimpleNamespace(**dict(zip(fields, info.fields("_StorageInfo", *fields), strict=True)))
            if Path(where.relative_path).name != where.relative_path or where.relative_path == "..":
                raise ValueError(f"it points to the file {where.relative_path!r} outside of its folder")
            yield MetadataIndex(name, offset, hint), where
