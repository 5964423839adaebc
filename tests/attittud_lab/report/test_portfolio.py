"""The page of a portfolio: its figures are those of the files, and a browser shows it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from attittud_lab.errors import InputError
from attittud_lab.files import write_json
from attittud_lab.portfolio.leaderboard import answer
from attittud_lab.report import LARGEST, write_report
from attittud_lab.report.collect import collect
from attittud_lab.runs.folder import load_checkpoint, save_checkpoint
from tests.helpers.portfolios import board, train

MIXED = [
    "data.auxiliary.other={path: digits, examples: 150}",
    "portfolio.learners=[linear, network]",
    "portfolio.features=[histogram]",
    "portfolio.candidates=[multitask, {name: multitask, sources: [more]}, {name: multitask, sources: [other]}]",
    "portfolio.final=ensemble",
    "portfolio.folds=2",
]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources, simple candidates and networks, and a mean of several."""
    folder = tmp_path_factory.mktemp("mixed") / "run"
    train(folder, *MIXED)
    write_report(folder)
    return folder


def cells(table: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The rows of a table by their first cell."""
    return {
        row["cells"][0]: dict(zip(table["columns"], row["cells"], strict=True))
        for row in table["rows"]
    }


def test_the_figures_of_the_page_are_those_of_the_files(mixed):
    page, content = collect(mixed, 100), board(mixed)
    result = json.loads((mixed / "result.json").read_text())
    assert len((mixed / "report.html").read_bytes()) < LARGEST
    assert page["decision"]["text"] == content["decision"]
    assert page["decision"]["answer"] == answer(content["worth"])
    assert page["decision"]["next"][0]["command"] == f"attittud predict {mixed} INPUTS"
    portfolio = page["portfolio"]
    assert portfolio["chance"]["text"] == f"{100 * content['chance']['value']:.0f} %"
    facts = {fact["name"]: fact for fact in portfolio["facts"]}
    assert facts["Test accuracy"]["figure"] == f"{100 * result['test']['accuracy']:.1f} %"
    found = facts["Worth of the auxiliary data"]["figure"]
    assert found == f"{100 * content['worth']['difference']:+.1f} points"
    # What a user would have used instead is a fact, a row of the picture, and a row of the table.
    instead = [row["label"] for row in content["candidates"] if row["without_us"]]
    assert instead
    assert all(label in facts["Without us"]["remark"] for label in instead)
    table = page["tables"][0]
    rows = cells(table)
    assert {row["label"] for row in content["candidates"]} <= rows.keys()
    assert [
        rows[row["label"]]["minus the best alone"]
        for row in content["candidates"]
        if row["reference"]
    ] == ["baseline"]
    for row in content["candidates"]:
        assert rows[row["label"]]["accuracy"] == f"{100 * row['score']:.1f} %"
        assert rows[row["label"]]["learner"] == ("linear" if row["kind"] == "simple" else "network")
    assert sum(row.get("chosen", False) for row in table["rows"]) == 1
    # The best of each source: the first one, since candidates are listed from the best on.
    best: dict[str, str] = {}
    for row in content["candidates"]:
        if not row["alone"]:
            name = " + ".join(row["settings"]["sources"] or ["all sources"])
            best.setdefault(name, row["label"])
    sources = cells(page["sections"][0])
    assert {name: row["candidate"] for name, row in sources.items()} == best
    drawn = [row["label"] for row in portfolio["rows"]]
    assert drawn[-len(content["candidates"]) :] == [row["label"] for row in content["candidates"]]
    assert (drawn[0] not in rows) == (content["final"]["kind"] == "ensemble")
    kept_matrix = portfolio["confusion"]["counts"]
    assert sum(map(sum, kept_matrix)) == content["validated"]


def damaged(folder: Path, copy: Path, **changes: Any) -> Path:
    """A copy of a run folder with another leaderboard.json."""
    shutil.copytree(folder, copy)
    write_json(copy / "leaderboard.json", board(folder) | changes)
    return copy


def test_another_format_is_refused(mixed, tmp_path):
    for version in (2, None):
        with pytest.raises(InputError, match=r"leaderboard\.json"):
            write_report(damaged(mixed, tmp_path / f"version-{version}", version=version))


def test_files_of_different_runs_are_refused(mixed, tmp_path):
    """A page would show classes or predictions of another run."""
    classes = shutil.copytree(mixed, tmp_path / "classes")
    about = json.loads((classes / "model.json").read_text())
    write_json(classes / "model.json", about | {"classes": about["classes"][::-1]})
    predictions = shutil.copytree(mixed, tmp_path / "predictions")
    path = predictions / "out_of_fold.safetensors"
    kept = load_checkpoint(path)
    save_checkpoint(path, kept | {"model": kept["model"][:, 1:]})
    lines = shutil.copytree(mixed, tmp_path / "lines")
    save_checkpoint(lines / path.name, kept | {"rows": kept["rows"][1:]})
    for folder in (classes, predictions, lines):
        with pytest.raises(InputError, match=r"model\.json|out_of_fold"):
            write_report(folder)
