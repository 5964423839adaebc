"""Save a guide in files that any number and kind of workers can load: shards under FSDP2, replicas, or one process.

    checkpoint.save(guide, folder)      # safetensors and JSON; every worker calls it
    checkpoint.load(guide, folder)

Or save the guide in your own checkpoint with `torch.distributed.checkpoint`; the same `load` reads it:

    dcp.save({"model": ..., "optimizer": ..., "guide": checkpoint.entries(guide)}, checkpoint_id=folder)

The basis is saved by parameter, and each worker writes its shards. `load` never runs code from a file, whoever made the file.
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
from torch.distributed.checkpoint import metadata as saved
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load as load_entries
from torch.distributed.checkpoint.state_dict_saver import save as save_entries
from torch.futures import Future

from attittud.autograd.layout import local

if TYPE_CHECKING:
    from attittud.guide import Guide

__all__ = ["entries", "load", "save"]

STATE = "guide.json"
BASIS = "basis"  # a folder
METADATA = ".metadata"  # a folder with this file is a checkpoint of torch
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
CURE = (
    "use another copy of the checkpoint, or continue without the guide's state: the next step then recomputes the basis"
)


def entries(guide: Guide) -> dict[str, Any]:
    """Return a guide's entries. Put them under any key into the dict that you pass to `torch.distributed.checkpoint.save`."""
    state, basis = _parts(guide)
    return {"state": json.dumps(state), "basis": basis}


def save(
    guide: Guide, folder: str | PathLike[str], *, writes: bool | None = None, files: Mapping[str, Any] | None = None
) -> None:
    """Write a guide into a folder; every worker must call this, between two steps.

    Args:
        guide: the guide.
        folder: created if needed. An older guide in it is replaced; other files stay.
        writes: whether this worker writes the files that all workers share; by default the first worker does.
        files: further JSON files to write into the folder, by name.
    """
    safetensors = _import_safetensors("save")
    state, basis = _parts(guide)
    if writes is None:
        writes = not (dist.is_available() and dist.is_initialized()) or dist.get_rank(_group(guide)) == 0
    folder, rows = Path(folder), next((tensor.shape[0] for tensor in basis.values()), None)
    if writes:
        # Without its JSON file a folder counts as incomplete. Shards of an older guide must not stay among the new shards.
        (folder / BASIS).mkdir(parents=True, exist_ok=True)
        for old in [folder / STATE, *(folder / BASIS).glob("*.safetensors")]:
            old.unlink(missing_ok=True)
    if basis and guide.sharded:
        # torch starts with an exchange between the workers, so no worker writes before the old files are gone. It returns
        # when all workers have written.
        save_entries(basis, storage_writer=HuggingFaceStorageWriter(str(folder / BASIS), save_distributed=True))
    elif basis and writes:
        safetensors.save_file(basis, folder / BASIS / "rows.safetensors")
    if writes:
        for name, content in {**(files or {}), STATE: state | {"rows": rows}}.items():
            (folder / name).write_text(json.dumps(content), encoding="utf-8")
    if guide.sharded:
        gather(guide, None)  # all files exist before any worker continues


def load(guide: Guide, checkpoint_id: str | PathLike[str], *, key: str = "guide") -> None:
    """Load a guide from a folder that `save` wrote, or from a checkpoint of torch that has its `entries` under `key`.

    Every worker must call this.
    """
    folder, prefix = Path(checkpoint_id), f"{key}.basis."
    state: dict[str, Any] | None = None
    taken: dict[str, Any]
    reader: FileSystemReader | None
    with together(guide):
        if (folder / STATE).is_file():
            file, prefix = folder / STATE, ""
            state, taken, reader = _open_files(guide, folder)
        elif (folder / METADATA).is_file():
            file = folder / METADATA
            taken, reader = _open_entries(guide, folder, key)
        else:
            raise FileNotFoundError(
                f"{folder}: there is no guide in this folder, because it has neither {STATE} nor {METADATA}; {CURE}"
            )
    with together(guide), warnings.catch_warnings():
        if reader is not None:
            # torch warns if there is only one process.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
            with reading(Path(reader.path)):
                load_entries(taken, storage_reader=reader, planner=_Planner(), no_dist=not guide.sharded)
                for path, rows in taken.items():
                    # Every worker checks its own part, because a damaged shard may be on one worker alone.
                    if isinstance(rows, Tensor) and not local(rows).isfinite().all():
                        raise ValueError(f"the basis over the parameter {path.removeprefix(prefix)!r} has NaN or Inf")
        if state is None:
            with reading(folder):
                state = _json_object(taken.pop(f"{key}.state"))
    basis = {path.removeprefix(prefix): rows for path, rows in taken.items()}
    restore(guide, state | {"basis": basis or None}, file)


def _parts(guide: Guide) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a guide's state as plain data, and a copy of its basis by parameter (empty if no basis is stored)."""
    state = guide.state_dict(include_basis=False)
    del state["basis"], state["worker"]
    space = guide.subspace
    if space is None or space.rows is None or not state["shared"]:
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
            f"attittud.checkpoint.{verb} needs the extra 'checkpoint': pip install 'attittud[checkpoint]', or in a "
            f"checkout pip install '.[checkpoint]' ({error})"
        ) from error


# ------------------------------------------------------------------------------------------------ workers


def _group(guide: Guide) -> dist.ProcessGroup | None:
    """The workers that share a guide's files. For a sharded guide these are all workers, because torch writes all shards."""
    return None if guide.sharded else getattr(guide._workers, "group", None)


def gather(guide: Guide, message: str | None) -> list[str | None]:
    """Collect a message from every worker of a guide; waits for all of them."""
    if guide._workers.size == 1:
        return [message]
    messages: list[str | None] = [None] * dist.get_world_size(_group(guide))
    dist.all_gather_object(messages, message, group=_group(guide))
    return messages


@contextmanager
def together(guide: Guide) -> Iterator[None]:
    """Read files on all workers: after all of them have saved, and before any of them saves again.

    An error on one worker is raised on all workers, which would otherwise wait for it forever in the next step.
    """
    gather(guide, None)
    try:
        yield
    except Exception as error:
        gather(guide, str(error))
        raise
    for message in gather(guide, None):
        if message is not None:
            raise UnreadableError(message)


# ------------------------------------------------------------------------------------------------ reading


class UnreadableError(ValueError):
    """A file of a checkpoint is damaged or malicious, or does not come from this library."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any error while reading a file into one sentence that names the file and the cure."""
    try:
        yield
    except (Exception, CheckpointException) as error:
        # A CheckpointException holds the errors of all workers.
        found = next(iter(error.failures.values()))[0] if isinstance(error, CheckpointException) else error
        if isinstance(found, UnreadableError):
            raise UnreadableError(*found.args) from None
        reason = " ".join(f"{type(found).__name__} {found}".split())[:200]
        if isinstance(found, pickle.UnpicklingError):
            # (torch's own message recommends weights_only=False, which would run the code.)
            reason = "it is damaged, or holds objects other than tensors, numbers and texts, which could run code"
        raise UnreadableError(f"{path}: cannot be read as part of a guide's checkpoint ({reason}); {CURE}") from None


def restore(guide: Guide, state: Mapping[str, Any], source: object) -> None:
    """Load a guide's state; errors name the file or the entry from which it was read."""
    try:
        guide.load_state_dict(state)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that must hold a JSON object."""
    with reading(path):
        return _json_object(path.read_text(encoding="utf-8"))


def _json_object(text: Any) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError(f"a JSON object was expected, not a {type(found).__name__}")
    return found


def _open_files(guide: Guide, folder: Path) -> tuple[dict[str, Any], dict[str, Tensor], FileSystemReader | None]:
    """Return the state that `save` wrote, empty memory for the basis, and the reader that fills this memory."""
    state = read_json(folder / STATE)
    rows = state.pop("rows", None)
    if rows is None:
        return state, {}, None
    safetensors = _import_safetensors("load")
    for file in sorted((folder / BASIS).glob("*.safetensors")):
        with reading(file), safetensors.safe_open(file, "pt"):
            pass  # this check names a damaged file; torch reads the same headers below, but its error names no file
    reader = HuggingFaceStorageReader(str(folder / BASIS))
    with reading(folder / BASIS):
        room = _room(guide, reader.read_metadata().state_dict_metadata, "", folder / BASIS)
        if [tensor.shape[0] for tensor in room.values()] != [rows] * len(room) or not room:
            raise ValueError(f"it lacks the rows of the basis that {STATE} lists")
    return state, room, reader


def _open_entries(guide: Guide, folder: Path, key: str) -> tuple[dict[str, Any], FileSystemReader]:
    """Return empty memory for the `entries` of a guide in a checkpoint of torch, and the reader that fills this memory."""
    reader = _EntriesReader(folder, f"{key}.")
    found, state = reader.read_metadata().state_dict_metadata, f"{key}.state"
    if state not in found:
        raise ValueError(
            f"the checkpoint {str(folder)!r} has no guide under {key!r}, only {sorted(reader.keys)}; save one with "
            f"{{{key!r}: attittud.checkpoint.entries(guide)}}"
        )
    with reading(folder / METADATA):
        return {state: "", **_room(guide, found, f"{key}.basis.", folder / METADATA)}, reader


def _room(guide: Guide, found: Mapping[str, Any], prefix: str, file: Path) -> dict[str, Tensor]:
    """Allocate memory for this worker's part of a saved basis, after checking the sizes."""
    parameters, room = dict(guide._workers.named(guide.model)), {}
    for path, entry in found.items():
        if not path.startswith(prefix):
            continue
        name = path.removeprefix(prefix)
        if name not in parameters:
            raise UnreadableError(
                f"{file}: the checkpoint belongs to another model, since this model has no parameter {name!r}; load it into a "
                "guide of the model that it was saved with"
            )
        needed, shape = tuple(parameters[name].shape), tuple(entry.size)
        if shape[1:] != needed or not 0 <= shape[0] <= guide.rank or entry.properties.dtype not in DTYPES:
            raise UnreadableError(
                f"{file}: the saved basis over the parameter {name!r} has shape {shape} and type {entry.properties.dtype}, but "
                f"this guide needs at most {guide.rank} rows of shape {needed}; build the guide with the settings of the saved "
                "run"
            )
        # If a file was missing, memory would stay uninitialised.
        if sum(math.prod(chunk.sizes) for chunk in entry.chunks) != math.prod(shape):
            raise ValueError(f"a part of the basis over the parameter {name!r} is missing")
        room[path] = guide._workers.empty_rows(parameters[name], shape[0], entry.properties.dtype)
    return room


class _Planner(DefaultLoadPlanner):
    """Loads into a flat dict; values that are not tensors must be plain data."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def load_bytes(self, read_item: ReadItem, value: BytesIO) -> None:
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)


# ------------------------------------------------------------------------------------------------ torch's own format


class _EntriesReader(FileSystemReader):
    """Reads a checkpoint of torch, whose metadata is a pickle, without running any code from the pickle.

    It reads only the entries whose names begin with `prefix`, and checks the types of these entries.
    """

    def __init__(self, folder: Path, prefix: str) -> None:
        super().__init__(folder)
        with reading(folder / METADATA):
            content = (folder / METADATA).read_bytes()
            for opcode, argument, _ in genops(content):
                # The unpickler would allocate as much memory as a damaged or malicious number asks for.
                if "PUT" in opcode.name and int(argument or 0) > len(content):
                    raise ValueError(f"it asks for memory for {argument} objects")
            found = _Unpickler(BytesIO(content)).load()
            described, stored = found.fields("Metadata", "state_dict_metadata", "storage_data")
            self.keys = {name.split(".")[0] for name in described}
            own = {name: _described(entry) for name, entry in described.items() if name.startswith(prefix)}
            self.metadata = saved.Metadata(own, storage_data=dict(_stored(stored, prefix)))

    def read_metadata(self, *_: Any, **__: Any) -> saved.Metadata:
        return self.metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read one file after the other, so that an error names its file."""
        files: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            files.setdefault(self.storage_data[item.storage_index].relative_path, []).append(item)
        for file, items in files.items():
            with reading(Path(self.path) / file):
                super().read_data(replace(plan, items=items), planner).wait()
        return super().read_data(replace(plan, items=[]), planner)


class _Record:
    """Replaces every class in torch's metadata: it stores the state that it is given and does nothing else."""

    state: Any = None

    def __new__(cls, *_: Any) -> _Record:
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def fields(self, kind: str, *names: str) -> list[Any]:
        """Return the values of some fields; None for a missing field. Raises TypeError if the record is not of this kind."""
        if type(self).__name__ != kind:
            raise TypeError(f"a {kind} was expected, not a {type(self).__name__}")
        return [self.state.get(name) for name in names]


RECORDS = {
    "torch.distributed.checkpoint.metadata": (
        *("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "_MEM_FORMAT_ENCODING"),
        *("TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata"),
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),
    **dict.fromkeys(("pathlib", "pathlib._local"), ("PosixPath", "WindowsPath")),  # pathlib._local since Python 3.13
}
"""The names in a pickle of torch's metadata, by module. The pickle also has torch.Size and the types of tensors."""


class _Unpickler(pickle.Unpickler):
    """Accepts only the names that torch's metadata needs, and turns all of them into plain data."""

    def find_class(self, module: str, name: str) -> Any:
        if name in RECORDS.get(module, ()):
            return type(name, (_Record,), {})  # a new class each time, since a pickle can set attributes of a class
        if module == "torch" and name == "Size":
            return tuple
        if module == "torch" and isinstance(dtype := vars(torch).get(name), torch.dtype):
            return dtype
        raise ValueError(f"it contains {module}.{name}, which torch's metadata never needs and which could run code")


def _described(entry: _Record) -> saved.TensorStorageMetadata | saved.BytesStorageMetadata:
    """Describe an entry: type, size and chunks of a tensor, or a mark that it is not a tensor."""
    if type(entry).__name__ == "BytesStorageMetadata":
        return saved.BytesStorageMetadata()
    properties, size, chunks = entry.fields("TensorStorageMetadata", "properties", "size", "chunks")
    dtype = properties.state[0]
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"a torch.dtype was expected, not a {type(dtype).__name__}")
    found = [map(torch.Size, chunk.fields("ChunkStorageMetadata", "offsets", "sizes")) for chunk in chunks]
    parts = [saved.ChunkStorageMetadata(*sizes) for sizes in found]
    return saved.TensorStorageMetadata(saved.TensorProperties(dtype), torch.Size(size), parts)


def _stored(stored: Mapping[_Record, _Record], prefix: str) -> Iterator[tuple[saved.MetadataIndex, Any]]:
    """Yield file, offset and length of every entry."""
    fields = ("relative_path", "offset", "length", "transform_descriptors")
    for index, info in stored.items():
        name, offset, hint = index.fields("MetadataIndex", "fqn", "offset", "index")
        if name.startswith(prefix):
            where = SimpleNamespace(**dict(zip(fields, info.fields("_StorageInfo", *fields), strict=True)))
            if Path(where.relative_path).name != where.relative_path or where.relative_path == "..":
                raise ValueError(f"it refers to the file {where.relative_path!r} outside of its folder")
            yield saved.MetadataIndex(name, offset, hint), where
