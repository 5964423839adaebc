"""Jobs on a real Ray cluster of two nodes on this machine, one of which is lost on the way."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from attittud_lab.compare.run import compare
from attittud_lab.errors import InputError
from attittud_lab.output.progress import Progress
from attittud_lab.placing import cluster as module
from attittud_lab.placing.cluster import on_ray, pack
from tests.helpers import portfolios
from tests.helpers.comparisons import config
from tests.helpers.interrupted_runs import outcome
from tests.helpers.jobs import Seen


class Node:
    """One `ray start`, with everything that it started."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, "--num-cpus=1"]
        command += ["--block", "--object-store-memory=100000000", "--disable-usage-stats"]
        # Losses are noticed at once; the folders of tests can be imported.
        quick = {"RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "4"}
        quick |= {"OMP_NUM_THREADS": "1", "RAY_num_prestart_python_workers": "0"}
        environment = os.environ | quick | {"PYTHONPATH": os.pathsep.join(sys.path)}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, env=environment, start_new_session=True, **quiet)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """As if the machine had lost its power: SIGKILL to every process of this node."""
        try:
            own = psutil.Process(self._process.pid)
            found = [*own.children(recursive=True), own]
        except psutil.NoSuchProcess:
            found = []
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()


class Cluster:
    """A first node and a second one; the folder must have a short path, as sockets lie in it."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        head = ["--head", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false"]
        self.first = Node(*head, "--node-ip-address=127.0.0.1")
        try:
            self._wait(port)
        except BaseException:
            self.first.kill()
            raise
        self.second = Node(f"--address={self.address}", "--node-ip-address=127.0.0.1")

    def _wait(self, port: int) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until and self.first.alive:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        raise TimeoutError("Ray did not start")

    def end(self) -> None:
        for node in (self.second, self.first):
            node.kill()


pytest.importorskip("ray", reason="needs the extra 'ray'", exc_type=ImportError)
pytestmark = [pytest.mark.skipif(os.name != "posix", reason="needs signals"), pytest.mark.slow]
# Ray's own code warns about itself.
pytestmark.append(
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
    )
)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))  # a short path: sockets lie in it
    cluster = Cluster(folder)
    try:
        yield cluster
    finally:
        cluster.end()
        shutil.rmtree(folder, ignore_errors=True)


def test_a_portfolio_is_the_same_on_a_cluster(nodes, tmp_path):
    few = ["portfolio.candidates=[multitask]", "portfolio.folds=2"]
    portfolios.train(tmp_path / "here", *few)
    with on_ray(nodes.address) as place:
        portfolios.train(tmp_path / "there", *few, place=place)
    assert portfolios.outcome(tmp_path / "here") == portfolios.outcome(tmp_path / "there")


class Killer(Seen):
    """Loses the second node as soon as a run is trained on each of the two."""

    def __init__(self, cluster: Cluster, *more: Any) -> None:
        super().__init__(*more)
        self.cluster = cluster

    def begin(self, what: str) -> Progress:
        return Killer(self.cluster, what, self.seen)

    def phase(self, name: str, steps: int | None, done: int) -> None:
        super().phase(name, steps, done)
        running = {event[0] for event in self.seen if event[1] == "phase"}
        running -= {event[0] for event in self.seen if event[1] == "end"}
        if len(running) == 2 and self.cluster.second.alive:
            self.cluster.second.kill()


@pytest.mark.nightly
def test_a_lost_node_changes_nothing(nodes, tmp_path, monkeypatch):
    """One of the nodes is killed while it trains. All files are those of one process."""
    monkeypatch.setattr(module, "EVERY", 0.05)
    job = config("compare.equal=steps", "training.guided.steps=200")
    here, there, seen = tmp_path / "here", tmp_path / "there", Killer(nodes)
    expected = compare(job, here)
    with on_ray(nodes.address) as place:
        found = compare(job, there, seen, place=place)
    assert not nodes.second.alive
    assert [event[2] for event in seen.seen if "was lost" in str(event[2:])]
    paths = [path.parent.relative_to(here) for path in here.rglob("result.json")]
    assert len(paths) == 8 and found["tuning"] == expected["tuning"]
    for path in paths:
        assert outcome(there / path) == outcome(here / path)
        assert pack(there / path).keys() == pack(here / path).keys()
        one, two = (json.loads((root / path / "run.json").read_text()) for root in (there, here))
        assert one | {"started": two["started"]} == two


def test_a_missing_cluster_and_a_missing_ray_are_explained(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    handler = signal.getsignal(signal.SIGTERM)
    with (
        pytest.raises(InputError, match=r"--ray nowhere: .*`ray start --head`"),
        on_ray("nowhere"),
    ):
        pass
    assert signal.getsignal(signal.SIGTERM) is handler
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"'attittud\[ray\]'"), on_ray():
        pass
