"""One file for all results of a run: what the tables need, and where each number is from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FIELDS = (
    *("pair", "seed", "method", "labels", "accuracy", "fold_accuracy", "chosen", "chance"),
    *("cpu_seconds", "error"),
)
"""What is kept of a result. Its settings follow from the revision, the pair and the method."""


def pack(out: Path, path: Path) -> int:
    """Write the results below a folder as one file, a line for each; returns how many there are."""
    machines: list[dict[str, Any]] = []
    lines = []
    for file in sorted(out.glob("results/*/*.json")):
        result = json.loads(file.read_text(encoding="utf-8"))
        if result["quick"]:
            raise SystemExit(f"{file}: a quick test is no measurement; remove it")
        if result["provenance"] not in machines:
            machines.append(result["provenance"])
        line = {name: result[name] for name in FIELDS if result.get(name) is not None}
        line["machine"] = machines.index(result["provenance"])
        lines.append(json.dumps(line, separators=(",", ":")))
    head = json.dumps({"machines": machines})
    path.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    return len(lines)


def unpack(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each result stands, and the result, from a folder of `run` or a file of `pack`."""
    if path.is_dir():
        for file in sorted(path.glob("results/*/*.json")):
            yield str(file), json.loads(file.read_text(encoding="utf-8"))
        return
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    machines = json.loads(head)["machines"]
    for number, line in enumerate(lines, 2):
        result = json.loads(line)
        result["provenance"] = machines[result.pop("machine")]
        result.setdefault("accuracy", None)
        yield f"{path}, line {number}", result | {"quick": False}
