"""`python -m attittud` is the command line."""

import subprocess
import sys

import pytest

import attittud


@pytest.mark.slow
def test_the_module_runs_the_command_line():
    done = subprocess.run(
        [sys.executable, "-m", "attittud", "--version"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0 and done.stdout.strip() == attittud.__version__
    done = subprocess.run(
        [sys.executable, "-m", "attittud", "tarin"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2 and "tarin" in done.stderr
