"""Save a guide in files that any number and kind of workers can load: shards under FSDP2, replicas,
or one process.

    checkpoint.save(guide, folder)      # safetensors and JSON; every worker calls it
    checkpoint.load(guide, folder)

The basis is saved by parameter, and each worker writes its shards. Neither format can hold code, so
`load` runs none. The JSON file has SHA-256 checksums of all files and of its own content, so `load`
refuses a checkpoint with a single changed bit.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_entries
from torch.distributed.checkpoint.state_dict_saver import save as save_entries

from attittud.autograd.layout import local

if TYPE_CHECKING:
    from attittud.guide import Guide

__all__ = ["load", "save"]

STATE = "guide.json"
BASIS = "basis"  # a folder
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
CURE = "use another copy of the checkpoint, or continue without the guide's state: the next step then recomputes the basis"


def save(
    guide: Guide,
    folder: str | PathLike[str],
    *,
    writes: bool | None = None,
    files: Mapping[str, Any] | None = None,
) -> None:
    """Write a guide into a folder; every worker must call this, between two steps.

    Args:
        guide: the guide.
        folder: created if needed. An older guide in it is replaced; other files stay.
        writes: whether this worker writes the files that all workers share; by default the first
            worker does.
        files: further JSON files to write into the folder, by name.
    """
    safetensors = _import_safetensors("save")
    state, basis = _parts(guide)
    if writes is None:
        writes = (
            not (dist.is_available() and dist.is_initialized()) or dist.get_rank(_group(guide)) == 0
        )
    folder = Path(folder)
    rows = next((tensor.shape[0] for tensor in basis.values()), None)
    if writes:
        # Without its JSON file a folder counts as incomplete. Shards of an older guide must not
        # stay among the new shards.
        (folder / BASIS).mkdir(parents=True, exist_ok=True)
        for old in [folder / STATE, *(folder / BASIS).glob("*.safetensors")]:
            old.unlink(missing_ok=True)
    if basis and guide.sharded:
        # torch starts with an exchange between the workers, so no worker writes before the old
        # files are gone. It returns when all workers have written.
        save_entries(
            basis,
            storage_writer=HuggingFaceStorageWriter(str(folder / BASIS), save_distributed=True),
        )
    elif basis and writes:
        safetensors.save_file(basis, folder / BASIS / "rows.safetensors")
    sums = _gather_sums(guide, folder / BASIS) if basis and guide.sharded else {}
    if writes:
        # (A worker may not see the files of other machines at once, so each has summed its own.)
        for file in (folder / BASIS).glob("*.safetensors"):
            if file.name not in sums:
                sums[file.name] = _sum_of(file)
        state |= {"rows": rows, "files": sums}
        state["sha256"] = _sum_of_state(state)
        for name, content in {**(files or {}), STATE: state}.items():
            (folder / name).write_text(json.dumps(content), encoding="utf-8")
    if guide.sharded:
        gather(guide, None)  # all files exist before any worker continues


def load(guide: Guide, folder: str | PathLike[str]) -> None:
    """Load a guide from a folder that `save` wrote. Every worker must call this."""
    folder = Path(folder)
    basis: dict[str, Tensor] = {}
    with together(guide):
        if not (folder / STATE).is_file():
            raise FileNotFoundError(
                f"{folder}: there is no guide in this folder, because it has no {STATE}; {CURE}"
            )
        state = read_json(folder / STATE)
        _check_sums(guide, folder, state)
        rows = state.pop("rows")
        if rows is not None:
            basis = _allocate(guide, folder / BASIS, rows)
    with together(guide):
        if basis:
            _fill(guide, folder / BASIS, basis)
    restore(guide, state | {"basis": basis or None}, folder / STATE)


def _parts(guide: Guide) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a guide's state as plain data, and a copy of its basis by parameter (empty if no basis
    is stored).
    """
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


def _sum_of(file: Path) -> str:
    """The checksum of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _sum_of_state(state: Mapping[str, Any]) -> str:
    """The checksum of the JSON file's content, except for this checksum itself."""
    content = {name: value for name, value in state.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _gather_sums(guide: Guide, folder: Path) -> dict[str, str]:
    """The checksums of all shards: each worker reads the shard that it has written."""
    mine = folder.glob(f"shard-{dist.get_rank() + 1:05}-*.safetensors")
    sums: dict[str, str] = {}
    for message in gather(guide, json.dumps({file.name: _sum_of(file) for file in mine})):
        assert message is not None
        sums |= json.loads(message)
    return sums


def _check_sums(guide: Guide, folder: Path, state: dict[str, Any]) -> None:
    """Refuse a checkpoint whose files have changed since it was saved; removes the checksums from
    `state`.

    The workers share the work: each reads some of the files.
    """
    checksum = state.pop("sha256", None)
    if checksum != _sum_of_state(state):
        raise UnreadableError(
            f"{folder / STATE}: its content and its checksum differ, so it is damaged or comes from another version of "
            f"attittud; {CURE}"
        )
    sums: dict[str, str] = state.pop("files")
    files = {file.name: file for file in (folder / BASIS).glob("*.safetensors")}
    if different := sums.keys() ^ files.keys():
        name = min(different)
        reason = "is missing" if name in sums else "does not belong to this checkpoint"
        raise UnreadableError(f"{folder / BASIS / name}: the file {reason}; {CURE}")
    number = dist.get_rank(_group(guide)) if guide._workers.size > 1 else 0
    for name in sorted(files)[number :: guide._workers.size]:
        with reading(files[name]):
            if _sum_of(files[name]) != sums[name]:
                raise ValueError(f"its checksum is not the one in {STATE}, so it has changed")


def _import_safetensors(verb: str) -> Any:
    try:
        return import_module("safetensors.torch")
    except ImportError as error:
        raise ImportError(
            f"attittud.checkpoint.{verb} needs the extra 'checkpoint': pip install 'attittud[checkpoint]', or in a "
            f"checkout pip install '.[checkpoint]' ({error})"
        ) from error


# ------------------------------------------------------------------------------------------ workers


def _group(guide: Guide) -> dist.ProcessGroup | None:
    """The workers that share a guide's files. For a sharded guide these are all workers, because
    torch writes all shards.
    """
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

    An error on one worker is raised on all workers, which would otherwise wait for it forever in
    the next step.
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


# ------------------------------------------------------------------------------------------ reading


class UnreadableError(ValueError):
    """A file of a checkpoint is damaged, or does not come from this library."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any error while reading a file into one sentence that names the file and the cure."""
    try:
        yield
    except UnreadableError:
        raise
    except (Exception, CheckpointException) as error:
        # A CheckpointException holds the errors of all workers.
        if isinstance(error, CheckpointException):
            first = next(iter(error.failures.values()))[0]
        else:
            first = error
        reason = " ".join(f"{type(first).__name__} {first}".split())[:200]
        raise UnreadableError(
            f"{path}: cannot be read as part of a guide's checkpoint ({reason}); {CURE}"
        ) from None


def restore(guide: Guide, state: Mapping[str, Any], source: object) -> None:
    """Load a guide's state; errors name the file or the entry from which it was read."""
    try:
        guide.load_state_dict(state)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that must hold a JSON object."""
    with reading(path):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise TypeError(f"a JSON object was expected, not a {type(content).__name__}")
        return content


def _allocate(guide: Guide, folder: Path, rows: int) -> dict[str, Tensor]:
    """Allocate memory for this worker's part of a saved basis of so many rows, after checking the
    sizes.
    """
    safetensors = _import_safetensors("load")
    for file in sorted(folder.glob("*.safetensors")):
        with reading(file), safetensors.safe_open(file, "pt"):
            # this check names a damaged file; torch reads the same headers below, but its error
            # names no file
            pass
    with reading(folder):
        described: Mapping[str, Any] = (
            HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
        )
        parameters = dict(guide._workers.named or guide.model.named_parameters())
        basis = {}
        for name, entry in described.items():
            if name not in parameters:
                raise UnreadableError(
                    f"{folder}: the checkpoint belongs to another model, since this model has no parameter {name!r}; load it "
                    "into a guide of the model that it was saved with"
                )
            needed = (rows, *parameters[name].shape)
            dtype = entry.properties.dtype
            if tuple(entry.size) != needed or not 0 <= rows <= guide.rank or dtype not in DTYPES:
                raise UnreadableError(
                    f"{folder}: the saved basis over the parameter {name!r} has shape {tuple(entry.size)} and type {dtype}, but "
                    f"this guide needs {needed}, with at most {guide.rank} rows; build the guide with the settings of the saved "
                    "run"
                )
            # If a file was missing, memory would stay uninitialised.
            if sum(math.prod(chunk.sizes) for chunk in entry.chunks) != math.prod(needed):
                raise ValueError(f"a part of the basis over the parameter {name!r} is missing")
            basis[name] = guide._workers.empty_rows(parameters[name], rows, dtype)
        if not basis:
            raise ValueError(f"it lacks the rows of the basis that {STATE} lists")
    return basis


def _fill(guide: Guide, folder: Path, basis: dict[str, Tensor]) -> None:
    """Read this worker's part of a saved basis into its memory."""
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    reader = HuggingFaceStorageReader(str(folder))
    with reading(folder), warnings.catch_warnings():
        # torch warns if there is only one process.
        warnings.filterwarnings(
            "ignore", message="torch.distributed is disabled", category=UserWarning
        )
        load_entries(dict(basis), storage_reader=reader, planner=planner, no_dist=not guide.sharded)
        for name, rows in basis.items():
            # Every worker checks its own part, because a damaged shard may be on one worker alone.
            if not local(rows).isfinite().all():
                raise ValueError(f"the basis over the parameter {name!r} has NaN or Inf")
