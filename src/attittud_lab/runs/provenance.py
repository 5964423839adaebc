"""What a reader needs to know of the machine and the code behind a number."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def provenance(packages: Iterable[str] = ()) -> dict[str, str | int | None]:
    """Versions, code revision (of a git checkout) and processor; no names of machines or users."""
    found: dict[str, str | int | None] = {"python": platform.python_version()}
    for package in ("attittud", "torch", *packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # run from a source tree that was never installed
            found[package] = None
    return found | {"revision": _revision(), "processor": _processor(), "cores": os.cpu_count()}


def _revision() -> str | None:
    if "ATTITTUD_REVISION" in os.environ:  # of a copy without its history
        return os.environ["ATTITTUD_REVISION"]
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
