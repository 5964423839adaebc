"""The page of a portfolio: its figures are those of the files, and a browser shows it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from attittud_lab.config.load import loads
from attittud_lab.errors import InputError
from attittud_lab.files import write_json
from attittud_lab.portfolio.run import run
from attittud_lab.report import LARGEST, render, write_report
from attittud_lab.report.collect import collect
from attittud_lab.report.portfolio import LIKELY, outcome
from tests.helpers.browser import browser, show
from tests.helpers.portfolios import SIMPLE, board, of_patients, train
from tests.helpers.reports import check_looks, clean, texts

__all__ = ["browser", "clean"]  # fixtures
MIXED = [
    "data.auxiliary.other={path: digits, examples: 150}",
    "portfolio.learners=[linear, network]",
    "portfolio.features=[histogram]",
    "portfolio.candidates=[multitask, {name: multitask, sources: [more]}, {name: multitask, sources: [other]}]",
    "portfolio.final=ensemble",
    "portfolio.rungs=[{at: 0.5, keep: 0.5}]",
]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Networks alone, and one of them is the model."""
    folder = tmp_path_factory.mktemp("single") / "run"
    train(folder)
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources, simple candidates and networks, and a mean of several."""
    folder = tmp_path_factory.mktemp("mixed") / "run"
    train(folder, *MIXED)
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def simple(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simple") / "run"
    train(folder, *SIMPLE)
    write_report(folder)
    return folder


def cells(table: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The rows of a table by their first cell."""
    return {
        row["cells"][0]: dict(zip(table["columns"], row["cells"], strict=True))
        for row in table["rows"]
    }


@pytest.mark.parametrize("name", ["single", "mixed", "simple"])
def test_the_figures_of_the_page_are_those_of_the_files(
    name: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(name)
    page, content = collect(folder, 100), board(folder)
    result = json.loads((folder / "result.json").read_text())
    assert len((folder / "report.html").read_bytes()) < LARGEST
    assert page["decision"]["text"] == content["decision"]
    assert page["decision"]["outcome"] == outcome(content["worth"])
    assert page["decision"]["next"]["command"] == f"attittud predict {folder} INPUTS"
    portfolio = page["portfolio"]
    assert portfolio["chance"]["text"] == f"{100 * content['chance']['value']:.0f} %"
    facts = {fact["name"]: fact for fact in portfolio["facts"]}
    assert facts["Test accuracy"]["figure"] == f"{100 * result['test']['accuracy']:.1f} %"
    assert (
        facts["Worth of the auxiliary data"]["figure"]
        == f"{100 * content['worth']['difference']:+.1f} points"
    )
    # What a user would have used instead is a fact, a row of the picture, and a row of the table.
    instead = [row["label"] for row in content["candidates"] if row["without_us"]]
    assert ("Without us" in facts) == bool(instead) == (name != "single")
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
    drawn = [row["label"] for row in portfolio["rows"]]
    assert drawn[-len(content["candidates"]) :] == [row["label"] for row in content["candidates"]]
    assert (drawn[0] not in rows) == (content["final"]["kind"] == "ensemble")
    stopped = [row["label"] for row in portfolio["rows"] if "stopped" in row["remark"]]
    assert stopped == [row["label"] for row in content["candidates"] if not row["complete"]]
    kept_matrix = portfolio["confusion"]["counts"]
    assert sum(map(sum, kept_matrix)) == content["validated"]


def test_each_source_is_compared_with_the_best_candidate_without_auxiliary_data(
    mixed: Path,
) -> None:
    (table,) = (
        section for section in collect(mixed, 100)["sections"] if "source" in section["title"]
    )
    gains = {row["cells"][0]: row["interval"]["mean"] for row in table["rows"]}
    assert {"more", "other", "more + other"} <= gains.keys()
    assert list(gains.values()) == sorted(gains.values(), reverse=True)
    rows = {row["label"]: row for row in board(mixed)["candidates"]}
    for row in table["rows"]:
        assert row["interval"]["mean"] == rows[row["cells"][-1]]["to_reference"]["difference"]


def test_classes_add_up_to_the_worth_and_examples_have_the_names_of_their_source(
    single: Path,
) -> None:
    _, classes, examples = [None, *collect(single, 100)["sections"]][-3:]
    total = sum(int(row["cells"][5]) - int(row["cells"][6]) for row in classes["rows"])
    assert total / 60 == pytest.approx(board(single)["worth"]["difference"], abs=1e-6)
    record = json.loads((single / "data.json").read_text())["primary"]
    names = {
        f"digits, row {row + 1}" for part in ("train", "validation") for row in record[part]["rows"]
    }
    assert {row["cells"][0] for row in examples["rows"]} <= names


def test_several_labels_groups_and_four_sources_in_a_table(tmp_path: Path) -> None:
    run(loads(of_patients(tmp_path, "linear, network")), tmp_path / "run")
    write_report(tmp_path / "run")
    page = collect(tmp_path / "run", 100)
    assert page["metric"] == "auc"
    count = board(tmp_path / "run")["validated"]
    assert [sum(row) for row in page["portfolio"]["confusion"]["counts"]] == [count] * 3
    sources, classes, examples = page["sections"]
    assert {f"s{n}" for n in range(4)} <= {row["cells"][0] for row in sources["rows"]}
    assert len(classes["rows"]) == 3
    assert all("own.parquet" in row["cells"][0] for row in examples["rows"])


def damaged(folder: Path, copy: Path, **changes: Any) -> Path:
    """A copy of a run folder with another leaderboard.json."""
    shutil.copytree(folder, copy)
    write_json(copy / "leaderboard.json", board(folder) | changes)
    return copy


@pytest.mark.parametrize("name", ["single", "mixed", "simple"])
def test_whatever_a_portfolio_may_lack_the_page_is_there(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = request.getfixturevalue(name)
    candidates = board(folder)["candidates"]
    lost = ("score", "low", "high", "loss", "ranking", "best", "curve", "to_reference")
    last = {key: value for key, value in candidates[-1].items() if key not in lost}
    last |= {
        "diverged": "loss is not finite",
        "alone": False,
        "reference": False,
        "without_us": False,
    }
    nothing = {"worth": None, "chance": None, "tested": False, "not_validated": ["9"]}
    copy = damaged(folder, tmp_path / "copy", candidates=[*candidates[:-1], last], **nothing)
    page = write_report(copy).read_text()
    assert "loss is not finite" in page
    assert collect(copy, 100)["portfolio"]["chance"] is None
    alone = [row for row in candidates if row["alone"]]
    write_report(damaged(folder, tmp_path / "alone", candidates=alone, worth=None, chance=None))


def test_another_format_is_refused(simple: Path, tmp_path: Path) -> None:
    for version in (1, 3, None):
        with pytest.raises(InputError, match=r"leaderboard\.json"):
            write_report(damaged(simple, tmp_path / f"version-{version}", version=version))


def test_a_chance_near_one_half_has_no_colour(simple: Path, tmp_path: Path) -> None:
    for value, side in ((0.48, "around"), (LIKELY + 0.01, "above"), (0.99 - LIKELY, "below")):
        copy = damaged(simple, tmp_path / side, chance={"value": value, "calibrated": False})
        chance = collect(copy, 100)["portfolio"]["chance"]
        assert chance["side"] == side
        assert chance["rough"]


def test_names_of_users_are_text(single: Path) -> None:
    evil, data = "<script>alert('x')</script>", collect(single, 100)
    data["portfolio"]["rows"][0]["label"] = data["portfolio"]["facts"][0]["remark"] = evil
    data["portfolio"]["confusion"]["columns"][0] = data["sections"][0]["rows"][0]["cells"][0] = evil
    data["decision"]["warning"] = evil
    page = render(data)
    assert evil not in page
    assert page.count("&lt;script&gt;") >= 5


def test_a_page_before_the_end_says_so(tmp_path: Path, single: Path) -> None:
    for name in ("run.json", "config.yaml", "metrics.jsonl"):
        (tmp_path / name).write_bytes((single / name).read_bytes())
    assert "unfinished" in write_report(tmp_path).read_text()


# ------------------------------------------------------------------------------------- in a browser


@pytest.mark.parametrize("width", [1200, 375])
def test_pictures_are_drawn_inside_of_the_page(clean: Any, mixed: Path, width: int) -> None:
    show(clean, mixed / "report.html", width=width)
    candidates = board(mixed)["candidates"]
    assert len(clean.find_elements("css selector", ".leaders circle")) == len(candidates) + 1
    networks = [row for row in candidates if row["kind"] == "network"]
    assert len(clean.find_elements("css selector", ".steps polyline")) == len(networks)
    # Every dot and line lies in its picture, and has a colour that is not the paper's.
    for picture in (".leaders", ".steps"):
        frame, inner = (
            clean.execute_script(
                "return [...document.querySelectorAll(arguments[0])].map((e) => {"
                "const r = e.getBoundingClientRect(); return [r.left, r.right, r.top, r.bottom]; })",
                selector,
            )
            for selector in (picture, f"{picture} circle, {picture} polyline")
        )
        left, right, top, bottom = frame[0]
        assert all(
            left - 1 <= a and b <= right + 1 and top - 1 <= c and d <= bottom + 1
            for a, b, c, d in inner
        )
    ink = clean.execute_script(
        "return getComputedStyle(document.querySelector('.leaders circle')).fill"
    )
    assert ink not in (
        "none",
        clean.execute_script("return getComputedStyle(document.body).backgroundColor"),
    )
    # Remarks are shown at every width, and neither a grid nor the baseline crosses them.
    remarks, lines = (
        clean.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map((e) => {"
            "const r = e.getBoundingClientRect(); return [r.top, r.bottom]; })",
            selector,
        )
        for selector in (".leaders .remark", ".leaders .grid, .leaders .baseline")
    )
    assert remarks
    assert all(b - a > 5 and not any(c < b - 3 and a < d for c, d in lines) for a, b in remarks)


def test_the_pages_look_right_on_screens_and_on_paper(
    clean: Any, single: Path, mixed: Path, simple: Path
) -> None:
    for folder in (single, mixed, simple):
        check_looks(clean, folder / "report.html")
    show(clean, simple / "report.html")
    assert not clean.find_elements("css selector", ".steps")  # no network, so nothing over steps
    assert len(texts(clean, ".matrix tbody tr")) == 10
