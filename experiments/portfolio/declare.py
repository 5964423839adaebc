"""The declaration of the held-out pairs, and what holds the examples to it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .examples import Built, Part

DECLARATION = Path(__file__).parent / "pairs.json"
HELPS, HURTS, OPEN = "helps", "hurts", "open"


@dataclass(frozen=True)
class Pair:
    """A pair as it is declared."""

    name: str
    kind: str
    built_to: str
    """What one expects of plain multitask training: `helps`, `hurts`, or `open`."""
    about: str
    why: str
    model: dict[str, Any]
    classes: list[str]
    labels: dict[str, int]
    """`train` and `validation`: what reference (a) trains and validates on. The portfolio gets their sum."""
    pool: int
    test: int
    auxiliary: dict[str, dict[str, Any]]
    """By source: its examples, its classes, and whether it shares the primary task's head."""
    checksum: str
    """Of the names and the labels of the test examples."""

    @property
    def shares(self) -> bool:
        """Whether some source has the classes of the primary task."""
        return any(source["share_head"] for source in self.auxiliary.values())


def read(path: Path = DECLARATION) -> dict[str, Pair]:
    found = json.loads(path.read_text(encoding="utf-8"))["pairs"]
    return {name: Pair(name=name, **about) for name, about in found.items()}


def checksum(part: Part) -> str:
    """Of rows, whatever machine decodes them."""
    digest = hashlib.sha256()
    for name, label in zip(part.ids, part.labels.tolist(), strict=True):
        digest.update(f"{name} {label}\n".encode())
    return digest.hexdigest()[:16]


def facts(built: Built) -> dict[str, Any]:
    """What a declaration says about the examples themselves."""
    return {
        "classes": list(built.pool.classes),
        "pool": len(built.pool),
        "test": len(built.test),
        "auxiliary": {
            name: {
                "examples": len(part),
                "classes": len(part.classes),
                "share_head": part.classes == built.pool.classes,
            }
            for name, part in built.auxiliary.items()
        },
        "checksum": checksum(built.test),
    }


def check(pair: Pair, built: Built) -> None:
    """Refuse examples that are not the declared ones."""
    for name, value in facts(built).items():
        if getattr(pair, name) != value:
            raise SystemExit(
                f"{pair.name}: {name} is {value}, but {getattr(pair, name)} was declared before anything was run; "
                "restore the code or the data"
            )
    tested = set(built.test.ids)
    for part in (built.pool, *built.auxiliary.values()):
        if tested & set(part.ids):
            raise SystemExit(f"{pair.name}: examples that it is tested on are also trained on")
