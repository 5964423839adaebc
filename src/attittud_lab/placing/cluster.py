"""Run jobs on a cluster through Ray: `--ray`.

Ray decides where a job runs, and moves it when a node is lost. Nodes need no common file system:
data, other files and the files of a job's folder travel through Ray's object store.
"""

from __future__ import annotations

import hashlib
import importlib.util
import runpy
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import count, islice
from pathlib import Path
from typing import Any

from attittud_lab.errors import InputError, one_line, optional
from attittud_lab.files import COPIES, make_folder, scratch_folder, write_atomically
from attittud_lab.output.progress import Progress
from attittud_lab.placing.job import Event, Handed, Job, Outcome, Place, Reports, perform, replay

Files = dict[str, bytes]
"""The content of files, by their path in a folder."""
RETRIES = 3
"""How often Ray begins a job again after its process or its node was lost."""
EVERY = 1.0
"""Seconds between two checks of what the jobs report."""
KEEP_EVERY = 20.0
"""Seconds between two checks on a node for something new to continue from, such as a checkpoint."""
_KEPT = "then give the same command again: finished runs are kept"


def pack(path: Path) -> Files:
    """Return the files of a folder, or a single file under the name "".

    The file that changed last comes last. A file that only grows, such as the metrics, is then at
    least as long as an earlier checkpoint says.
    """
    if path.is_file():
        return {"": path.read_bytes()}
    paths = [file for file in path.rglob("*") if file.is_file() and not file.name.startswith(".")]
    paths.sort(key=lambda file: file.stat().st_mtime_ns)
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in paths}


def unpack(files: Mapping[str, bytes], folder: Path, *, whole: bool = False) -> None:
    """Write files in their order, so that each is whole or absent; `whole` removes all others."""
    for name, content in files.items():
        make_folder((folder / name).parent)
        write_atomically(folder / name, content)
    if not whole:
        return
    for path in list(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not path.name.startswith(".") and name not in files:
            path.unlink()


@cache
def _code() -> str:
    """Return a checksum of this package and torch's version.

    Nodes with other code would give other results.
    """
    import torch

    digest = hashlib.sha256(torch.__version__.encode())
    for package in ("attittud", "attittud_lab"):
        spec = importlib.util.find_spec(package)
        folders = spec.submodule_search_locations if spec is not None else None
        for folder in folders or ():
            for path in sorted(Path(folder).rglob("*.py")):
                name = path.relative_to(folder).as_posix()
                digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()


# ---------------------------------------------------------------------------------------- on a node


class _Home:
    """Runs in a process on the machine of the command, and keeps what jobs send before they end."""

    def __init__(self) -> None:
        self._events: list[tuple[int, list[Event]]] = []
        self._files: dict[int, Files] = {}
        self._begun: dict[int, int] = {}

    def begin(self, number: int) -> tuple[int, Files | None]:
        """Return how often this job has been begun, and the files that it sent last."""
        self._begun[number] = self._begun.get(number, 0) + 1
        return self._begun[number], self._files.get(number)

    def tell(self, number: int, events: list[Event]) -> None:
        self._events.append((number, events))

    def keep(self, number: int, files: Files) -> None:
        self._files[number] = files

    def latest(self, number: int) -> Files | None:
        return self._files.get(number)

    def forget(self, number: int) -> None:
        self._files.pop(number, None)

    def take(self) -> list[tuple[int, list[Event]]]:
        events = self._events
        self._events = []
        return events


_cached: dict[str, Any] = {}
"""What this process of a node has for its next job.

These are the data of its latest job, and the script that it has run.
"""


def _on_node(
    number: int, job: Job, files: Files, refs: Mapping[str, Any], home: Any, command: _Command
) -> tuple[Outcome, Files]:
    """Run a job on a node, and return its result with the files of its folder.

    `files` are the files of its folder at the beginning. `refs` are references to what it reads, by
    the names in `job.reads`, and to its data, under the name "".
    """
    import ray

    try:
        command.check()
    except InputError as error:
        return Outcome(None, error, []), {}
    begun, sent = ray.get(home.begin.remote(number))
    reports = Reports(lambda events: home.tell.remote(number, events), EVERY)
    with scratch_folder() as scratch:
        folder = scratch / "run"
        copies = {key: scratch / str(position) for position, key in enumerate(job.reads)}
        for key, path in copies.items():
            unpack(ray.get(refs[key][0]), path)
        folder.mkdir()
        unpack(files if sent is None else sent, folder)
        if begun > 1:
            news = "its process or its node was lost. It continues elsewhere."
            reports.tell("say", f"{job.name}: {news}")
        over = threading.Event()
        arguments = (number, folder, home, over, command.keep_every)
        sender = threading.Thread(target=_send_news, args=arguments, daemon=True)
        sender.start()
        try:
            COPIES.update(copies)
            outcome = perform(job, folder, _data_of(refs[""]), reports)
        finally:
            COPIES.clear()
            over.set()
            sender.join()
        if isinstance(outcome.error, InputError):
            names = {**copies, str(job.folder or "."): folder}
            words = str(outcome.error)
            for name, path in names.items():
                words = words.replace(str(path), name)  # the user knows this name
            outcome.error.args = (words,)
        return outcome, pack(folder) if job.folder is not None else {}


def _send_news(number: int, folder: Path, home: Any, over: threading.Event, every: float) -> None:
    """Send the files of a folder back when there is a new checkpoint.

    So little is lost with the node.
    """
    before: set[tuple[str, int]] = set()
    while not over.wait(every):
        with suppress(OSError):  # a file that is just being replaced: the next check has it
            now = {(str(path), path.stat().st_mtime_ns) for path in folder.rglob("checkpoint*")}
            if now - before:
                home.keep.remote(number, pack(folder))
                before = now


def _data_of(boxed: list[Any]) -> Any:
    """Return the data of a job; a process has the data of its latest job already.

    `boxed` has one reference, or none if the job has no data.
    """
    import ray

    if not boxed:
        return None
    reference = boxed[0].hex()
    if _cached.get("reference") != reference:
        _cached.pop("data", None)  # not two at the same time
        _cached["data"] = ray.get(boxed[0])
        _cached["reference"] = reference
    return _cached["data"]


@dataclass(frozen=True)
class _Command:
    """What nodes must know about the command."""

    code: str
    script: tuple[str, bytes] | None
    """The name and the text of a person's own script.

    Its strategies and models register themselves when it runs.
    """
    keep_every: float

    @classmethod
    def this(cls) -> _Command:
        """Return the running command; a script is a main module without a specification."""
        main = sys.modules["__main__"]
        script = None
        if main.__spec__ is None and getattr(main, "__file__", None) is not None:
            path = Path(main.__file__ or "")
            script = (path.name, path.read_bytes())
        return cls(_code(), script, KEEP_EVERY)

    def check(self) -> None:
        """Refuse a node with other code, and run the script once in this process."""
        if self.code != _code():
            import ray

            node = ray.util.get_node_ip_address()
            cure = "install the same versions of attittud and torch on all nodes"
            reason = f"the node {node} has other code than this machine, so results would differ"
            raise InputError(f"--ray: {reason}; {cure}")
        if self.script is None or _cached.get("script") == self.script:
            return
        name, content = self.script
        with scratch_folder() as folder:
            path = folder / name
            path.write_bytes(content)
            try:
                runpy.run_path(str(path), run_name="__mp_main__")
            except ImportError as error:
                reason = f"{name} cannot be run on a node ({one_line(error, 200)})"
                cure = "install what it imports on all nodes"
                raise InputError(f"--ray: {reason}; {cure}") from None
        _cached["script"] = self.script


# ----------------------------------------------------------------------------- where the command is


class _Cluster(Place):
    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._numbers = count()
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self.gpus = int(sum(node.get("GPU", 0) for node in nodes))
        self.at_once = max(1, self.gpus or int(sum(node.get("CPU", 0) for node in nodes)))
        # A run that wants more cores than any node has still runs, more slowly; Ray would wait for
        # such a node for ever.
        self._cores = max(1, *(int(node.get("CPU", 0)) for node in nodes))
        self._function = ray.remote(_on_node)
        # On this node, so that what it keeps is lost only with the command itself.
        node = ray.get_runtime_context().get_node_id()
        affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        self._home = ray.remote(_Home).options(num_cpus=0, scheduling_strategy=affinity).remote()
        self._data = Handed(ray.put)
        self._files: dict[Path, Any] = {}
        self._command = _Command.this()

    def run(self, jobs: Iterable[Job], progress: Progress) -> Iterator[tuple[Job, Any]]:
        """Submit jobs to Ray and yield their results.

        Once in `EVERY` seconds it shows what the jobs have reported. If it ends early, it fetches
        the checkpoints that unfinished jobs have sent.
        """
        ray = self._ray
        todo = iter(jobs)
        busy: dict[Any, tuple[int, Job, Progress]] = {}
        try:
            while True:
                # Some more than run at once, so that no node waits for the next job.
                for job in islice(todo, max(0, 2 * self.at_once - len(busy))):
                    number = next(self._numbers)
                    needed = [other.data for _, other, _ in busy.values()]
                    reference = self._submit(number, job, needed)
                    busy[reference] = (number, job, progress.begin(job.name))
                if not busy:
                    return
                done, _ = ray.wait([*busy], num_returns=1, timeout=EVERY)
                self._show(busy.values())
                for reference in done:
                    number, job, shown = busy[reference]
                    outcome = self._outcome(reference, job)
                    del busy[reference]
                    self._home.forget.remote(number)
                    replay(shown, outcome.events)
                    if outcome.error is not None:
                        raise outcome.error
                    shown.end()
                    yield job, outcome.result
        except ray.exceptions.RayError as error:  # of a job it is caught above
            why = f"{type(error).__name__}: {one_line(error, 300)}"
            reason = f"the cluster was lost ({why})"
            raise InputError(f"--ray: {reason}; start it again, {_KEPT}") from None
        finally:
            self._keep(busy)

    def _submit(self, number: int, job: Job, needed: Iterable[Any]) -> Any:
        """Hand a job to Ray and return its reference; `needed` are the data of unfinished jobs."""
        if job.device.startswith("cuda:"):
            name = f"{job.device!r} names a GPU of one machine"
            cure = "use device=cuda or device=auto"
            raise InputError(f"device: {name}, but with --ray Ray chooses the GPU; {cure}")
        if job.device == "cuda" and not self.gpus:
            reason = "'cuda' cannot be used, because no node of the cluster has a GPU"
            raise InputError(f"device: {reason}; use device=auto")
        on_gpu = self.gpus > 0 and job.device not in ("cpu", "mps")
        # References are in lists: Ray would fetch bare ones before it starts a job, for each again.
        refs: dict[str, list[Any]] = {"": []}
        if job.data is not None:
            refs[""].append(self._data.over(job.data, needed))
        for name, path in job.reads.items():
            if path not in self._files:
                self._files[path] = self._ray.put(pack(path))
            refs[name] = [self._files[path]]
        files = pack(job.folder) if job.folder is not None and job.folder.is_dir() else {}
        function = self._function.options(
            num_cpus=min(job.threads, self._cores),
            num_gpus=int(on_gpu),
            max_retries=RETRIES,
            name=job.name,
        )
        without_data = replace(job, data=None)
        return function.remote(number, without_data, files, refs, self._home, self._command)

    def _show(self, busy: Iterable[tuple[int, Job, Progress]]) -> None:
        """Show what the jobs have reported."""
        shown = {number: progress for number, _, progress in busy}
        for number, events in self._ray.get(self._home.take.remote()):
            if number in shown:
                replay(shown[number], events)

    def _outcome(self, reference: Any, job: Job) -> Outcome:
        """Fetch the outcome of a finished job, and write its files."""
        outcome: Outcome
        try:
            outcome, files = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, ModuleNotFoundError):
                reason = f"a node of the cluster lacks the package {cause.name!r}"
                cure = f"install the same packages on all nodes, {_KEPT}"
                raise InputError(f"--ray: {reason}; {cure}") from None
            why = f"{type(error).__name__}: {one_line(error, 300)}"
            reason = f"Ray could not finish it ({why}); check the cluster, {_KEPT}"
            raise InputError(f"{job.name} ({job.folder}): {reason}") from None
        if job.folder is not None:
            make_folder(job.folder)
            unpack(files, job.folder, whole=outcome.error is None)
        return outcome

    def _keep(self, busy: Mapping[Any, tuple[int, Job, Progress]]) -> None:
        """Fetch what unfinished jobs have sent back, so that they can continue from there.

        They end with the connection. Ray (2.60) could cancel them, but it aborts this process if
        one ends at the same moment.
        """
        for number, job, _ in busy.values():
            with suppress(self._ray.exceptions.RayError):
                files = self._ray.get(self._home.latest.remote(number), timeout=10)
                if files is not None and job.folder is not None:
                    make_folder(job.folder)
                    unpack(files, job.folder)


@contextmanager
def on_ray(address: str = "auto") -> Iterator[Place]:
    """Use the cluster at an address; `auto` is the cluster that this machine is part of."""
    ray = optional("ray", "ray", "--ray")
    optional("ray.util.scheduling_strategies", "ray", "--ray")
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
