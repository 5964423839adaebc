"""A real Ray cluster of two nodes on this machine, each with one core, and the processes of each
node.
"""

import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil


class Node:
    """One `ray start`, with everything that it started."""

    def __init__(self, *options: str) -> None:
        command = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            *options,
            "--num-cpus=1",
            "--block",
        ]
        command += ["--object-store-memory=100000000", "--disable-usage-stats"]
        # Losses are noticed at once; the folders of tests can be imported.
        quick = {"RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "4"}
        quick |= {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": "1",
            "RAY_num_prestart_python_workers": "0",
        }
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | quick,
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """As if the machine had lost its power: SIGKILL to every process of this node, by its
        id.
        """
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
