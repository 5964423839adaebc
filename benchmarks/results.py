"""Results on disk: one JSON file per job, with all that is needed to judge or repeat it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from attittud_lab.runs import result

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PACKAGES = ("triton", "transformers", "peft", "torchjd")


def provenance(device: str, quick: bool) -> dict[str, Any]:
    """Versions, hardware and revision behind a result."""
    versions: dict[str, Any] = result.provenance(PACKAGES)
    revision = versions.pop("revision")
    hardware = {"device": device}
    hardware |= {name: versions.pop(name) for name in ("processor", "cores")}
    if device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(device)
        hardware |= {"name": properties.name, "memory": properties.total_memory}
        hardware["cuda"] = torch.version.cuda
    return {"versions": versions, "hardware": hardware, "quick": quick, "revision": revision}


def write(path: Path, data: dict[str, Any]) -> None:
    """Write a JSON file that is complete at any time."""
    partial = path.with_suffix(".tmp")
    partial.write_text(json.dumps(data, indent=1) + "\n")
    partial.replace(path)


def load(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """All results of a folder, by job."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
