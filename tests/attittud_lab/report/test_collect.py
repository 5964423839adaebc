"""The figures of a report: curves, joined seeds, and files that are damaged."""

import copy
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attittud_lab.errors import InputError
from attittud_lab.report import write_report
from attittud_lab.report.collect import curves
from attittud_lab.strategies.guided import PARTS
from tests.helpers.reports import comparison, run_dir

__all__ = ["comparison", "run_dir"]  # fixtures


def test_curves_show_the_metrics_of_the_run(run_dir: Path) -> None:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    found = curves([run_dir], 1000)
    logged = [line for line in lines if "loss/primary" in line]
    assert found["train"]["step"] == [*range(2, 25, 2), *range(26, 33, 2)]
    assert found["train"]["loss/primary"] == pytest.approx(
        [line["loss/primary"] for line in logged], rel=1e-4
    )
    guided = [line for line in logged if line["phase"] == "guided"]
    for i, line in enumerate(guided):
        squares = [line[f"attittud/{part}"] ** 2 for part in PARTS]
        shares = [found["train"][f"share/{part}"][i] for part in PARTS]
        assert shares == pytest.approx([square / sum(squares) for square in squares], rel=1e-4)
        assert shares[0] + shares[1] == pytest.approx(line["attittud/captured_auxiliary"], rel=1e-3)
    assert found["train"]["share/helpful"][len(guided) :] == [None] * 4  # fine-tuning has none
    assert found["phases"][1]["name"] == "finetune" and found["phases"][1]["step"] == 24
    seconds = found["train"]["seconds"]
    assert seconds == sorted(seconds) and found["phases"][1]["seconds"] == seconds[len(guided) - 1]
    layers = found["layers"]
    assert layers["step"] == [6, 12, 18, 24] and layers["names"]
    for i in range(len(layers["names"])):
        for j in range(4):
            assert sum(layers[part][i][j] for part in PARTS) == pytest.approx(1, abs=2e-3)


def test_curves_of_several_seeds_are_joined(comparison: Path, run_dir: Path) -> None:
    both = [run_dir, run_dir.with_name("seed-1")]
    if not both[1].exists():  # where another weight was chosen
        both[1] = next(comparison.glob("runs/flip/weight-*/steps-24-8/seed-1"))
    single, joined = (
        [curves([path], 1000)["validation"] for path in both],
        curves(both, 1000)["validation"],
    )
    for i in range(len(joined["step"])):
        values = [one["validation/accuracy"][i] for one in single]
        assert joined["validation/accuracy"][i] == pytest.approx(sum(values) / 2, rel=1e-4)
        ends = [joined[f"validation/accuracy/{end}"][i] for end in ("low", "high")]
        assert ends == pytest.approx(sorted(values), rel=1e-4)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where anything lies in a JSON value."""
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in inside:
        yield (*path, key)
        yield from _paths(item, (*path, key))


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


ODD = (
    None,
    True,
    -1,
    10**400,
    1e308,
    "",
    "x" * 3000,
    "a" * 300 + "/b",
    "\x00",
    "../..",
    [],
    {},
    {"a": [1]},
    _nested(400),
)


def _spoilt(value: Any, chance: random.Random) -> Any:
    """The same with an entry that is missing, odd, or unknown."""
    found = copy.deepcopy(value)
    *path, last = chance.choice(list(_paths(found)))
    place = found
    for key in path:
        place = place[key]
    kind = chance.choice(("missing", "odd", "odd", "unknown"))
    if kind == "missing":
        del place[last]
    elif kind == "unknown" and isinstance(place, dict):
        place["unknown"] = chance.choice(ODD)
    else:
        place[last] = chance.choice(ODD)
    return found


@pytest.mark.parametrize("name", ["comparison.json", "metrics.jsonl"])
def test_damaged_files_are_refused_or_shown(
    name: str, comparison: Path, run_dir: Path, tmp_path: Path
) -> None:
    """Whatever is wrong in them, there is never a traceback, and the message stays short."""
    folder = tmp_path / "copy"
    shutil.copytree(comparison if name == "comparison.json" else run_dir, folder)
    text, chance, refused = (folder / name).read_text(), random.Random(name), list[str]()
    for number in range(60):
        if number % 6 == 0:  # bytes that are wrong, or missing
            raw = bytearray(text.encode())
            raw[chance.randrange(len(raw))] = chance.randrange(256)
            (folder / name).write_bytes(raw[: chance.choice((None, chance.randrange(len(raw))))])
        elif name == "metrics.jsonl":
            lines = text.splitlines()
            at = chance.randrange(len(lines))
            lines[at] = json.dumps(_spoilt(json.loads(lines[at]), chance))
            (folder / name).write_text("\n".join(lines) + "\n")
        else:
            (folder / name).write_text(json.dumps(_spoilt(json.loads(text), chance)))
        try:
            write_report(folder, tmp_path / "page")
        except InputError as error:
            refused.append(str(error))
    assert 5 < len(refused) < 60
    assert all(str(folder) in message and len(message) < 1000 for message in refused)


@pytest.mark.parametrize("line", ["[" * 100_000, '{"step": 1,'])
def test_a_damaged_line_of_metrics_does_not_end_a_curve(
    line: str, run_dir: Path, tmp_path: Path
) -> None:
    """Only the very last line may be half: a run is just writing it, or was killed."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    whole = curves([run_dir], 1000)["logged"]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines[:4], line, *lines[4:]]) + "\n")
    with pytest.raises(InputError, match=r"metrics.jsonl:5: is not a line of metrics"):
        curves([tmp_path], 1000)
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 1,']))
    assert curves([tmp_path], 1000)["logged"] == whole
