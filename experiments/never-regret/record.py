"""Results on disk: one JSON line for each run, written at once; a header says what they were made with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from attittud_lab.runs.result import provenance

from .jobs import settings
from .pairs import Pair

RESULTS = Path(__file__).parent / "results"


def header(half: str, pairs: list[Pair], quick: bool) -> dict[str, Any]:
    """ATTITTUD_REVISION names the revision where the sources travel without their history."""
    made_with = provenance(["numpy", "scikit-learn", "scipy"])
    made_with["revision"] = os.environ.get("ATTITTUD_REVISION", made_with["revision"])
    return {"half": half, "quick": quick, "pairs": {p.name: settings(p) for p in pairs}, "made_with": made_with}


class Record:
    """A file of results that grows; what is there is not run again."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path, self.clocks, self.runs = path, {}, {}
        if path.exists():
            found, self.clocks, self.runs = load(path)
            self._same(found, about)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write({"header": about})

    def _same(self, found: dict[str, Any], about: dict[str, Any]) -> None:
        for what in ("half", "quick", "pairs"):
            if found[what] != about[what]:
                raise SystemExit(f"{self.path} was made with other {what}; move it away, or give another --out")
        then, now = found["made_with"]["revision"], about["made_with"]["revision"]
        if then != now:
            raise SystemExit(
                f"{self.path} was made with revision {then}, the code is {now}: "
                "one file holds the results of one revision; move it away, or check that revision out"
            )

    def add_clock(self, pair: str, seconds: dict[str, float]) -> None:
        self.clocks[pair] = seconds
        self._write({"clock": pair, "seconds_per_step": {name: round(value, 7) for name, value in seconds.items()}})

    def add(self, line: dict[str, Any]) -> None:
        self.runs[line["pair"], line["entry"], line["seed"]] = line
        self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


Runs = dict[tuple[str, str, int], dict[str, Any]]


def load(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, float]], Runs]:
    """Header, seconds per step and runs. A last line that was cut off by a power failure does not count."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    clocks = {line["clock"]: line["seconds_per_step"] for line in lines if "clock" in line}
    runs = {(line["pair"], line["entry"], line["seed"]): line for line in lines if "entry" in line}
    return lines[0]["header"], clocks, runs
