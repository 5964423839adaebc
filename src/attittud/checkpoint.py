"""Save a guide in files that any number and kind of workers can load: shards under FSDP2, replicas,
or one process.

    checkpoint.save(guide, folder)      # safetensors and JSON; every worker calls it
    checkpoint.load(guide, folder)

The basis is saved by parameter, and each worker writes its shards. Neither format can hold code, so
`load` runs none. The JSON file has SHA-256 checksums of the shards and of its own content, so `load`
refuses a checkpoint in which a single bit has changed.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
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
from attittud.workers.replicas import Replicas

if TYPE_CHECKING:
    from attittud.guide import Guide

__all__ = ["load", "save"]

FORMAT = 2
STATE = "guide.json"
BASIS = "basis"  # a folder
CURE = "use another copy of the checkpoint, or continue without the guide's state"


def save(guide: Guide, folder: str | PathLike[str], *, writes: bool | None = None) -> None:
    """Write a guide into a folder; every worker must call this, between two steps.

    Args:
        guide: the guide.
        folder: created if needed. An older guide in it is replaced; other files stay.
        writes: whether this worker writes the files that all workers share; by default the first
            worker does.
    """
    _require_safetensors()
    state, basis = _parts(guide)
    if writes is None:
        one_process = not (dist.is_available() and dist.is_initialized())
        writes = one_process or dist.get_rank(_group(guide)) == 0
        if not writes and guide._workers.size == 1:
            warnings.warn(
                f"worker {dist.get_rank()} of {dist.get_world_size()} has not saved its guide: only worker 0 saves one that "
                "knows of no other workers. Where each has a guide of its own, pass writes=True and a folder for each; else make "
                "the guide of the DistributedDataParallel model or with process_group=, or pass writes=False",
                stacklevel=2,
            )
    folder = Path(folder)
    if writes:
        # Without its JSON file a folder counts as incomplete. Shards of an older guide must not
        # stay among the new shards.
        (folder / BASIS).mkdir(parents=True, exist_ok=True)
        for old in [folder / STATE, *(folder / BASIS).glob("*.safetensors")]:
            old.unlink(missing_ok=True)
    checksums: dict[str, str] = {}
    if basis and (guide.sharded or writes):
        # With shards, torch begins with an exchange, so no worker writes before the old files are
        # gone.
        writer = HuggingFaceStorageWriter(str(folder / BASIS), save_distributed=True)
        with _without_warnings():
            save_entries(basis, storage_writer=writer, no_dist=not guide.sharded)
        # (Of replicas, only the worker that has written the files comes here and reads them.)
        checksums = _saved_checksums(guide, folder / BASIS)
    if writes:
        rows: int | None = None
        if basis:
            rows = next(iter(basis.values())).shape[0]
        content: dict[str, Any] = {
            "format": FORMAT,
            "rows": rows,
            "state": state,
            "files": checksums,
        }
        content["sha256"] = _checksum_of_content(content)
        (folder / STATE).write_text(json.dumps(content), encoding="utf-8")
    if guide.sharded:
        gather(guide, None)  # all files exist before any worker continues


def load(guide: Guide, folder: str | PathLike[str]) -> None:
    """Load a guide from a folder that `save` wrote. Every worker must call this.

    An error while a worker reads a file is raised on all workers, before the guide has changed.
    """
    _require_safetensors()
    folder = Path(folder)
    basis: dict[str, Tensor] = {}
    with together(guide):
        if not (folder / STATE).is_file():
            raise FileNotFoundError(f"{folder}: there is no {STATE} of a guide here; {CURE}")
        content = read_json(folder / STATE)
        if content.get("format") != FORMAT:
            raise UnreadableError(
                f"{folder / STATE}: format {content.get('format')!r:.40} cannot be read, only {FORMAT}; {CURE}"
            )
        _check_checksums(guide, folder, content)
        if content["rows"] is not None:
            basis = _allocate(guide, folder / BASIS, content["rows"])
    # Under FSDP2 workers read shards together. They begin when no worker has found an error so far.
    with together(guide):
        if basis:
            _fill(guide, folder / BASIS, basis)
    restore(guide, content["state"] | {"basis": basis or None}, folder / STATE)


def _parts(guide: Guide) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a guide's state as plain data, and a copy of its basis by parameter: for each name the
    rows k x shape, of which each worker has its shards under FSDP2. Empty if no basis is stored.
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


def _checksum(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _checksum_of_content(content: Mapping[str, Any]) -> str:
    """Return the checksum of what the JSON file holds, except for this checksum itself."""
    others = {name: value for name, value in content.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(others).encode()).hexdigest()


def _saved_checksums(guide: Guide, folder: Path) -> dict[str, str]:
    """Return the checksums of all files of the basis, by name. Each worker reads the files that it
    has written, because it may not see the files of other machines at once.
    """
    rank = 0
    if guide.sharded:
        rank = dist.get_rank()
    shards = folder.glob(f"shard-{rank + 1:05}-*.safetensors")
    checksums = {shard.name: _checksum(shard) for shard in shards}
    if guide.sharded:
        for others in gather(guide, checksums):
            checksums |= others
    return checksums


def _check_checksums(guide: Guide, folder: Path, content: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that has changed since it was saved. Each worker reads some of the
    files.
    """
    # The text is compared too, because another last digit of a long number may be read as the same
    # number.
    same_text = (folder / STATE).read_text(encoding="utf-8") == json.dumps(content)
    if not same_text or content.get("sha256") != _checksum_of_content(content):
        raise UnreadableError(f"{folder / STATE}: has changed since it was saved; {CURE}")
    checksums = content["files"]
    names = {file.name for file in (folder / BASIS).glob("*.safetensors")}
    different = sorted(names ^ checksums.keys())
    if different:
        problem = "is not part of this checkpoint"
        if different[0] in checksums:
            problem = "is missing"
        raise UnreadableError(f"{folder / BASIS / different[0]}: {problem}; {CURE}")
    rank = 0
    if guide._workers.size > 1:
        rank = dist.get_rank(_group(guide))
    for name in sorted(names)[rank :: guide._workers.size]:
        file = folder / BASIS / name
        if _checksum(file) != checksums[name]:
            raise UnreadableError(f"{file}: has changed since it was saved; {CURE}")


def _require_safetensors() -> None:
    """Refuse with the name of the missing extra, before any file is touched."""
    if find_spec("safetensors") is None:
        raise ImportError(
            "attittud.checkpoint needs the extra 'checkpoint': pip install 'attittud[checkpoint]', or in a "
            "checkout pip install '.[checkpoint]'"
        )


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Hide torch's warnings that `torch.distributed` is not used: a single process is fine."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is", UserWarning)
        yield


# ------------------------------------------------------------------------------------------ workers


def _group(guide: Guide) -> dist.ProcessGroup | None:
    """Return the group of the workers that share a guide's files; None stands for all workers. For a
    sharded guide these are all, because torch writes all shards.
    """
    workers = guide._workers
    if not isinstance(workers, Replicas):
        return None
    return workers.groups[0]


def gather(guide: Guide, value: Any) -> list[Any]:
    """Collect a value from every worker of a guide; waits for all of them."""
    if guide._workers.size == 1:
        return [value]
    group = _group(guide)
    values: list[Any] = [None] * dist.get_world_size(group)
    try:
        dist.all_gather_object(values, value, group=group)
    except RuntimeError as error:
        raise RuntimeError(
            f"worker {dist.get_rank(group)} of {len(values)}: waiting for all workers to save or load the guide failed. "
            "Another worker has died (its own message says why), waits elsewhere or makes other calls: every worker must save "
            "and load the guide, between the same two steps. To wait longer, set timeout= of init_process_group. "
            f"torch said: {error}"
        ) from error
    return values


@contextmanager
def together(guide: Guide) -> Iterator[None]:
    """Let all workers begin and end the block together. So files are read after all workers have
    saved, and before any of them saves again.

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
        first: BaseException = error
        if isinstance(error, CheckpointException):  # it holds the errors of all workers
            first = next(iter(error.failures.values()))[0]
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
    """Allocate memory for this worker's part of a saved basis: for each parameter, by name, `rows` x
    shape. Refuses a basis over other parameters or of other shapes.
    """
    parameters = dict(guide._workers.named or guide.model.named_parameters())
    basis = {}
    with reading(folder):
        reader = HuggingFaceStorageReader(str(folder))
        metadata: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
        for name, entry in metadata.items():
            if name not in parameters:
                raise UnreadableError(
                    f"{folder}: the checkpoint belongs to another model, since this model has no parameter {name!r}"
                )
            needed = (rows, *parameters[name].shape)
            if tuple(entry.size) != needed:
                raise UnreadableError(
                    f"{folder}: the saved basis over {name!r} has shape {tuple(entry.size)}, but this guide needs {needed}"
                )
            basis[name] = guide._workers.empty_rows(parameters[name], rows, entry.properties.dtype)
            local(basis[name]).fill_(math.nan)  # so that a part that no file has is noticed
        if not basis:
            raise ValueError(f"it lacks the rows of the basis that {STATE} lists")
    return basis


def _fill(guide: Guide, folder: Path, basis: dict[str, Tensor]) -> None:
    """Read this worker's part of a saved basis into `basis`; refuse it if some of it is missing or
    not finite.
    """
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    reader = HuggingFaceStorageReader(str(folder))
    with reading(folder), _without_warnings():
        load_entries(dict(basis), storage_reader=reader, planner=planner, no_dist=not guide.sharded)
        for name, rows in basis.items():
            # Every worker checks its own part, because a damaged shard may be on one worker alone.
            if not local(rows).isfinite().all():
                raise ValueError(
                    f"the basis over the parameter {name!r} is incomplete, or has NaN or Inf"
                )
