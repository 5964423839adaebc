"""Signals while torch is imported, and in worker processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """The demo leaves a report where one works."""
    monkeypatch.chdir(tmp_path)


SCRIPT = "from attittud_lab.cli import main\n"  # what pip writes


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_a_signal_during_the_import_of_torch_ends_the_command_cleanly(tmp_path):
    """That takes seconds, in which nothing of a command has run yet."""
    (tmp_path / "torch.py").write_text(
        "import time\nopen('reached', 'w').close()\ntime.sleep(60)\n"
    )
    Path("attittud").write_text(SCRIPT + "main()\n")
    with subprocess.Popen(
        [sys.executable, "attittud", "demo"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    ) as process:
        while not Path("reached").exists() and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.startswith("attittud: interrupted") and err.count("\n") == 1
