"""Results on disk: a JSON line for each finished row of a pair and seed; the first line says what they were made with."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attittud_lab.runs.result import provenance

from .declare import DECLARATION

RESULTS = Path(__file__).parent / "results"
Lines = dict[tuple[str, str, int], dict[str, Any]]
"""By pair, row and seed."""


def header(half: str, jobs: Mapping[str, Path], *, quick: bool) -> dict[str, Any]:
    """What the results depend on. ATTITTUD_REVISION names the revision where the sources travel without their history."""
    made_with = provenance(["numpy", "scikit-learn", "scipy", "pyarrow", "pillow"])
    made_with["revision"] = os.environ.get("ATTITTUD_REVISION", made_with["revision"])
    return {
        "half": half,
        "quick": quick,
        "declaration": hashlib.sha256(DECLARATION.read_bytes()).hexdigest()[:16],
        "jobs": {name: hashlib.sha256(job.read_bytes()).hexdigest()[:16] for name, job in jobs.items()},
        "made_with": made_with,
    }


def start(path: Path, about: dict[str, Any]) -> Lines:
    """The lines that are there; the file is begun if there is none, and refused if it was made with something else."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"header": about}) + "\n", encoding="utf-8")
    found, lines = load(path)
    for what in ("half", "quick", "declaration", "jobs"):
        if found[what] != about[what]:
            raise SystemExit(f"{path} was made with other {what}; move it away, or give another --out")
    then, now = found["made_with"]["revision"], about["made_with"]["revision"]
    if then != now:
        raise SystemExit(
            f"{path} was made with revision {then}, the code is {now}: one file holds the results of one revision; move "
            "it away, or check that revision out"
        )
    return lines


def load(path: Path) -> tuple[dict[str, Any], Lines]:
    """The header and the lines. A line that was cut off when a machine went away does not count."""
    found = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    lines = {(line["pair"], line["row"], line["seed"]): line for line in found if "row" in line}
    return found[0]["header"], lines
