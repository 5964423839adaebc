"""Results on disk: one JSON file per job, with all that is needed to judge or repeat it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PACKAGES = ("attittud", "torch", "triton", "transformers", "peft", "torchjd")


def provenance(device: str, quick: bool) -> dict[str, Any]:
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    hardware: dict[str, Any] = {"device": device, "cores": os.cpu_count()}
    if device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(device)
        hardware |= {
            "name": properties.name,
            "memory": properties.total_memory,
            "cuda": torch.version.cuda,
        }
    return {"versions": versions, "hardware": hardware, "quick": quick, "revision": revision()}


def revision() -> str | None:
    """The revision of the code: ATTITTUD_REVISION where the sources travel without their
    history.
    """
    if "ATTITTUD_REVISION" in os.environ:
        return os.environ["ATTITTUD_REVISION"]
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(
            command, cwd=HERE, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def write(path: Path, data: dict[str, Any]) -> None:
    """Write a JSON file that is complete at any time."""
    partial = path.with_suffix(".tmp")
    partial.write_text(json.dumps(data, indent=1) + "\n")
    partial.replace(path)


def load(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """All results of a folder, by job."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
