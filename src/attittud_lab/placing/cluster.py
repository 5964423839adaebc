"""Run jobs on a cluster through Ray: `--ray`.

Ray decides where a job runs. Nodes need no common file system: data, other files and the files of a
job's folder travel through Ray's object store.
"""

from __future__ import annotations

import hashlib
import runpy
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from attittud_lab.errors import InputError, one_line, optional
from attittud_lab.files import COPIES, make_folder, scratch_folder, write_atomically
from attittud_lab.output.progress import Progress
from attittud_lab.placing.job import (
    Event,
    Job,
    Lost,
    Message,
    OtherProcesses,
    Outcome,
    Place,
    Reports,
    perform,
)

Files = dict[str, bytes]
"""The content of files, by their path in a folder."""
EVERY = 1.0
"""Seconds between two checks of what the jobs report."""
SENT_EVERY = 20.0
"""Seconds after which a node sends a new checkpoint, to continue from if the node is lost."""
_AGAIN = "then give the same command again"


def pack(path: Path) -> Files:
    """Return the files of a folder, or a single file under the name "".

    The file that changed last comes last. A file that only grows, such as the metrics, is then at
    least as long as an earlier checkpoint says.
    """
    if path.is_file():
        return {"": path.read_bytes()}
    paths = sorted(_files(path), key=lambda file: file.stat().st_mtime_ns)
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in paths}


def _files(folder: Path) -> list[Path]:
    """Return the files of a folder, without those whose names begin with a dot."""
    paths = folder.rglob("*")
    return [path for path in paths if path.is_file() and not path.name.startswith(".")]


def unpack(files: Mapping[str, bytes], folder: Path, *, whole: bool = False) -> None:
    """Write files in their order, so that each is whole or absent; `whole` removes all others."""
    for name, content in files.items():
        make_folder((folder / name).parent)
        write_atomically(folder / name, content)
    if whole:
        for path in _files(folder):
            if path.relative_to(folder).as_posix() not in files:
                path.unlink()


@cache
def _code() -> str:
    """Return a checksum of this package and torch's version.

    Nodes with other code would give other results.
    """
    import torch

    import attittud

    digest = hashlib.sha256(torch.__version__.encode())
    for package in (Path(attittud.__file__).parent, Path(__file__).parents[1]):
        for path in sorted(package.rglob("*.py")):
            digest.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


# ---------------------------------------------------------------------------------------- on a node

_cached: dict[str, Any] = {}
"""The data of the latest job of this process, with their reference."""


def _on_node(
    number: int, job: Job, files: Files, refs: Mapping[str, Any], queue: Any, command: Command
) -> tuple[Outcome, Files]:
    """Run a job on a node, and return its outcome with the files of its folder.

    `number` is the key of the job, which its messages in `queue` have. `files` are the files of its
    folder at the beginning. `refs` are references to what it reads, by the names in `job.reads`, and
    to its data, under the name "". A node whose code differs from that of `command` returns an
    error. Paths of this node in an input error become the names that the user knows.
    """
    import ray

    code, script = command
    if code != _code():
        node = ray.util.get_node_ip_address()
        reason = f"the node {node} has other code than this machine, so results would differ"
        advice = "install the same versions of attittud and torch on all nodes"
        return Outcome(None, InputError(f"--ray: {reason}; {advice}"), []), {}
    if script is not None:
        _run_script(*script)
    with scratch_folder() as scratch:
        folder = scratch / "run"
        copies = {key: scratch / str(position) for position, key in enumerate(job.reads)}
        for key, path in copies.items():
            unpack(ray.get(refs[key][0]), path)
        folder.mkdir()
        unpack(files, folder)
        news = _News(folder)
        reports = Reports(lambda events: queue.put((number, events, news.files())), EVERY)
        COPIES.update(copies)  # so that the job finds the copies under the names that it knows
        try:
            outcome = perform(job, folder, _data_of(refs[""]), reports)
        finally:
            COPIES.clear()
        if isinstance(outcome.error, InputError):
            path_of_name = {**copies, str(job.folder or "."): folder}
            message = str(outcome.error)
            for name, path in path_of_name.items():
                message = message.replace(str(path), name)
            outcome.error.args = (message,)
        if job.folder is None:
            return outcome, {}
        return outcome, pack(folder)


class _News:
    """The files of a job's folder whenever it has a new checkpoint, but not too often."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sent = time.time()

    def files(self) -> Files:
        """Return all files to send now; none if there is no new checkpoint, or if the last files
        were sent less than `SENT_EVERY` seconds ago.
        """
        now = time.time()
        if now - self._sent < SENT_EVERY:
            return {}
        written = [path.stat().st_mtime for path in self._folder.rglob("checkpoint*")]
        if max(written, default=0.0) < self._sent:
            return {}
        self._sent = now
        return pack(self._folder)


def _data_of(boxed: list[Any]) -> Any:
    """Return the data of a job; a process has the data of its latest job already.

    `boxed` has one reference, or none if the job has no data.
    """
    import ray

    if not boxed:
        return None
    reference = boxed[0].hex()
    if reference not in _cached:
        _cached.clear()  # not two at the same time
        _cached[reference] = ray.get(boxed[0])
    return _cached[reference]


@cache
def _run_script(name: str, content: bytes) -> None:
    """Run a person's own script once in this process: it registers strategies and models."""
    with scratch_folder() as folder:
        path = folder / name
        path.write_bytes(content)
        runpy.run_path(str(path), run_name="__mp_main__")


# ----------------------------------------------------------------------------- where the command is

Command = tuple[str, tuple[str, bytes] | None]
"""What nodes must know about the command: its code, and the name and text of its own script."""


def _this_command() -> Command:
    """Describe the running command; a script is a main module without a specification."""
    main = sys.modules["__main__"]
    if main.__spec__ is not None or getattr(main, "__file__", None) is None:
        return _code(), None
    path = Path(main.__file__ or "")
    return _code(), (path.name, path.read_bytes())


class _Cluster(OtherProcesses):
    """The nodes of a Ray cluster. The key of a job is a number, since its messages come through a
    queue.
    """

    tries = 4
    cure = f"check the cluster, {_AGAIN}"

    def __init__(self, ray: Any) -> None:
        """Look at the nodes of the connected cluster, and open a queue for messages of jobs."""
        super().__init__()
        self._ray = ray
        self._numbers = count()
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self.gpus = int(sum(node.get("GPU", 0) for node in nodes))
        cores = [node.get("CPU", 0) for node in nodes]
        # One job for each GPU, or for each core where there is no GPU.
        self.at_once = max(1, self.gpus or int(sum(cores)))
        # A run that wants more cores than any node has still runs, more slowly; Ray would wait for
        # such a node for ever.
        self._cores = max(1, *map(int, cores))
        self._function = ray.remote(_on_node)
        # On this node, so that messages are lost only with the command itself.
        node = ray.get_runtime_context().get_node_id()
        affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        options = {"num_cpus": 0, "scheduling_strategy": affinity}
        self._queue = ray.util.queue.Queue(actor_options=options)
        self._running: dict[Any, int] = {}  # keys by Ray's references to the outcomes
        self._files: dict[Path, Any] = {}  # references to what jobs read, by path
        self._command = _this_command()

    @property
    def most(self) -> int:
        """Some more than run at once, so that no node waits for the next job."""
        return 2 * self.at_once

    def run(self, jobs: Iterable[Job], progress: Progress) -> Iterator[tuple[Job, Any]]:
        try:
            yield from super().run(jobs, progress)
        except self._ray.exceptions.RayError as error:
            reason = f"the cluster was lost ({type(error).__name__}: {one_line(error, 300)})"
            raise InputError(f"--ray: {reason}; start it again, {_AGAIN}") from None

    def start(self, job: Job) -> int:
        """Hand a job to Ray with its files and references to its data; returns its key.

        Refuses devices that Ray cannot give it.
        """
        if job.device.startswith("cuda:"):
            problem = (
                f"{job.device!r} names a GPU of one machine, but with --ray Ray chooses the GPU"
            )
            raise InputError(f"device: {problem}; use device=cuda or device=auto")
        if job.device == "cuda" and not self.gpus:
            reason = "'cuda' cannot be used, because no node of the cluster has a GPU"
            raise InputError(f"device: {reason}; use device=auto")
        on_gpu = self.gpus > 0 and job.device not in ("cpu", "mps")
        # References are in lists: Ray would fetch bare ones before it starts a job, for each again.
        refs: dict[str, list[Any]] = {"": []}
        if job.data is not None:
            refs[""].append(self.form(job.data))
        for name, path in job.reads.items():
            if path not in self._files:
                self._files[path] = self._ray.put(pack(path))
            refs[name] = [self._files[path]]
        files: Files = {}
        if job.folder is not None and job.folder.is_dir():
            files = pack(job.folder)
        # A lost job is started again here, with the files that it has sent.
        function = self._function.options(
            num_cpus=min(job.threads, self._cores),
            num_gpus=int(on_gpu),
            max_retries=0,
            name=job.name,
        )
        number = next(self._numbers)
        alone = replace(job, data=None)
        reference = function.remote(number, alone, files, refs, self._queue, self._command)
        self._running[reference] = number
        return number

    def messages(self, jobs: Mapping[Any, Job]) -> Iterator[tuple[Any, Message]]:
        """Wait for a job to end, but no longer than `EVERY` seconds; events come first."""
        done, _ = self._ray.wait([*self._running], num_returns=1, timeout=EVERY)
        yield from self._events(jobs)
        for reference in done:
            number = self._running.pop(reference)
            yield number, self._ended(reference, jobs[number])

    def _events(self, jobs: Mapping[Any, Job]) -> Iterator[tuple[int, list[Event]]]:
        """Yield what jobs have reported, and write the files that they have sent."""
        for number, events, files in self._queue.get_nowait_batch(self._queue.qsize()):
            if number in jobs:
                folder = jobs[number].folder
                if folder is not None:
                    unpack(files, folder)
                yield number, events

    def _ended(self, reference: Any, job: Job) -> Outcome | Lost:
        """Return the outcome of a job, and write its files; `Lost` if its node was lost.

        Files that a successful job has not left are removed from its folder.
        """
        outcome: Outcome
        try:
            outcome, files = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:  # before the job began
            reason = f"a node cannot run it ({one_line(error.cause, 300)})"
            advice = "install the same packages on all nodes"
            raise InputError(f"--ray: {job.name}: {reason}; {advice}, {_AGAIN}") from None
        except self._ray.exceptions.RayError as error:
            return Lost(f"was lost ({type(error).__name__})")
        if job.folder is not None:
            make_folder(job.folder)
            unpack(files, job.folder, whole=outcome.error is None)
        return outcome

    def stop(self, jobs: Mapping[Any, Job]) -> None:
        """Keep what unfinished jobs have sent; they end with the connection.

        Ray (2.60) could cancel them, but it aborts this process if one ends at the same moment.
        """
        if jobs:
            with suppress(self._ray.exceptions.RayError):
                list(self._events(jobs))

    def hand_over(self, data: Any) -> Any:
        return self._ray.put(data)


@contextmanager
def on_ray(address: str = "auto") -> Iterator[Place]:
    """Use the cluster at an address; `auto` is the cluster that this machine is part of."""
    ray = optional("ray", "ray", "--ray")
    for module in ("queue", "scheduling_strategies"):
        optional(f"ray.util.{module}", "ray", "--ray")
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="CRITICAL")
    # No cluster, another version of Ray or Python, a wrong address: each has its own error.
    except Exception as error:
        reason = f"no cluster can be used there ({one_line(error, 200)})"
        start = "start one (`ray start --head`, on other machines `ray start --address=HOST:6379`)"
        raise InputError(f"--ray {address}: {reason}; {start}, or use --workers N") from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray has replaced it
    try:
        yield _Cluster(ray)
    finally:
        ray.shutdown()
