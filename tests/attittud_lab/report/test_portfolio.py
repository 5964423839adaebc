"""The page of a portfolio: what it says, and a browser that shows it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from attittud_lab.config.load import loads
from attittud_lab.files import write_json
from attittud_lab.portfolio.run import run
from attittud_lab.report import LARGEST, render, write_report
from attittud_lab.report.collect import collect
from attittud_lab.report.portfolio import MOST_CLASSES, _chance, _counts, _held_out, _matrix, portfolio
from attittud_lab.runs.folder import load_checkpoint
from tests.helpers.browser import browser, show
from tests.helpers.portfolios import of_patients, train
from tests.helpers.reports import check_looks, clean, texts

__all__ = ["browser", "clean"]  # fixtures
COST = ("bytes", "seconds_per_prediction")
TWO = "data.auxiliary.other={path: digits, examples: 150}"


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("single")
    train(folder)
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources, each alone too, and a mean of several networks."""
    folder = tmp_path_factory.mktemp("ensemble")
    train(
        folder, TWO, "portfolio.candidates=null", "portfolio.final=ensemble", "portfolio.rungs=[{at: 0.5, keep: 0.5}]"
    )
    write_report(folder)
    return folder


def board(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "leaderboard.json").read_text())
    return found


def test_the_first_screen_has_decision_chance_and_the_figures_of_the_model(single: Path) -> None:
    found, board_, page = collect(single, 100), board(single), (single / "report.html").read_text()
    assert found["decision"]["text"] == board_["decision"] and len(page.encode()) < LARGEST
    worth = board_["worth"]
    sure = "use" if worth["low"] > 0 and worth["share"] == 1 else "no_help" if worth["high"] < 0 else "unclear"
    assert found["decision"]["outcome"] == sure
    assert found["decision"]["next"]["command"] == f"attittud predict {single} INPUTS"
    alone = list(board_["final"]["picks"]) == ["primary_only"]
    assert found["decision"].get("meaning", "").startswith("All auxiliary data were dropped") == alone
    assert found["portfolio"]["chance"]["text"] == f"{100 * board_['chance']['value']:.0f} %"
    assert "it was calibrated for the default portfolio.rungs" in page  # it has six looks
    assert "An early estimate, after rung 1. The decision above uses all rungs." in page
    assert found["details"][0]["columns"] == ["figure", "out-of-fold", "test"]
    facts = {fact["name"]: fact["figure"] for fact in found["portfolio"]["facts"]}
    result = json.loads((single / "result.json").read_text())
    assert facts["Test accuracy"] == f"{100 * result['test']['accuracy']:.1f} %"
    assert facts["Worth of the auxiliary data"] == f"{100 * worth['difference']:+.1f} points"
    assert found["subtitle"].startswith("60 labels in 3 folds, 100 test examples; auxiliary: ")


def test_one_split_is_not_called_folds(single: Path) -> None:
    """Where only some labels are held out, the page does not say that all were."""
    result, told = json.loads((single / "result.json").read_text()), "every label was predicted once"
    assert told in portfolio(single, result)["tables"][0]["about"]
    one = board(single) | {"folds": 1, "validated": 12}
    assert next(_counts(one, result["examples"])).startswith("60 labels, of which 12 are held out, 100 test")
    assert _held_out(one) == "each of the 12 labels that were held out (of 60) was"


def test_the_order_of_the_leaderboard_is_explained_and_shown(single: Path) -> None:
    (table,) = collect(single, 100)["tables"]
    assert "Candidates that trained longer come first." in table["about"] and "ranking score" in table["about"]
    shown = [dict(zip(table["columns"], row["cells"], strict=True)) for row in table["rows"]]
    order = [(int(row["steps (best)"].split()[0]), float(row["ranking"].removesuffix(" %"))) for row in shown]
    assert order == sorted(order, reverse=True)


def test_primary_only_is_always_there_and_rows_say_what_a_prediction_costs(single: Path, ensemble: Path) -> None:
    for folder in (single, ensemble):
        found, board_ = collect(folder, 100), board(folder)
        (table,) = found["tables"]
        rows = {row["cells"][0]: dict(zip(table["columns"], row["cells"], strict=True)) for row in table["rows"]}
        assert rows["primary_only"]["minus primary_only"] == "baseline"
        assert {row["label"] for row in board_["candidates"]} <= rows.keys()
        assert all("B" in row["size"] and "ms" in row["prediction"] for row in rows.values())
        assert sum(row.get("chosen", False) for row in table["rows"]) == 1
        drawn = [row["label"] for row in found["portfolio"]["rows"]]
        assert "primary_only" in drawn and (drawn[0] == "the model: a mean") == (folder == ensemble)
    assert found["curves"] == []  # the networks of folds have no training on all labels


def test_single_sources_are_compared_with_primary_only_after_the_same_number_of_steps(ensemble: Path) -> None:
    board_ = board(ensemble)
    (table,) = (s for s in collect(ensemble, 100)["sections"] if "source" in s["title"])
    assert {row["cells"][0] for row in table["rows"]} == {"more", "other", "all sources"}
    gains = [row["interval"]["mean"] for row in table["rows"]]
    assert gains == sorted(gains, reverse=True) and "more alone" in table["about"]
    candidates = {row["label"]: row for row in board_["candidates"]}
    plain = candidates["primary_only"]["curve"]["score"]
    for row in board_["candidates"]:
        if row["label"] != "primary_only":
            looks = len(row["curve"]["score"])
            other = row["score"] - row["to_primary_only"]["difference"]
            assert min(abs(other - score) for score in plain[:looks]) < 1e-6
    assert not [s for s in collect(ensemble, 100)["sections"] if "source" in s["title"] and not s["rows"]]


def test_recall_by_class_and_confusions_are_those_of_the_stored_predictions(single: Path) -> None:
    found, kept, board_ = collect(single, 100), load_checkpoint(single / "out_of_fold.safetensors"), board(single)
    worth, total = board_["worth"], 0
    right, plain = (kept["compared"][name].argmax(1) == kept["targets"] for name in (worth["best"], "primary_only"))
    (table,) = (section for section in found["sections"] if "classes" in section["title"])
    assert len(table["rows"]) == 10
    for row in table["rows"]:
        label, count, was, now, change, gained, lost = row["cells"]
        of = kept["targets"] == int(label)
        before, total = plain[of], total + int(gained) - int(lost)
        assert int(count) == int(of.sum()) and now == f"{100 * float(right[of].float().mean()):.1f} %"
        assert was == f"{100 * float(before.float().mean()):.1f} %"
        assert float(change) == pytest.approx(100 * (int(gained) - int(lost)) / int(count), abs=0.051)
    # The table adds up to the worth above it, although a candidate stopped early and primary_only got better later.
    assert total / 60 == pytest.approx(worth["difference"], abs=1e-6) and worth["share"] < 1
    assert ", both after " in table["about"]
    counts = torch.tensor(found["portfolio"]["confusion"]["counts"])
    assert counts.sum() == 60 and counts.sum(1).tolist() == kept["targets"].bincount(minlength=10).tolist()
    assert counts.diagonal().sum() == (kept["model"].argmax(1) == kept["targets"]).sum()


def test_examples_that_changed_most_are_named_as_in_their_source(single: Path) -> None:
    (table,) = (section for section in collect(single, 100)["sections"] if "examples" in section["title"])
    changes = [float(row["cells"][4]) for row in table["rows"]]
    assert changes == sorted(changes, reverse=True) and len(changes) == 8
    record = json.loads((single / "data.json").read_text())["primary"]
    known = {f"digits, row {row + 1}" for part in ("train", "validation") for row in record[part]["rows"]}
    assert {row["cells"][0] for row in table["rows"]} <= known
    kept = load_checkpoint(single / "out_of_fold.safetensors")
    assert set(kept["names"]) == known


def test_a_chance_near_one_half_has_no_colour() -> None:
    for value, side in ((0.48, "around"), (0.55, "around"), (0.9, "above"), (0.1, "below")):
        found = _chance({"value": value, "calibrated": True})
        assert found is not None and found["side"] == side


def test_a_model_that_guesses_is_marked(single: Path) -> None:
    found = collect(single, 100)
    assert "warning" not in found["decision"] and 'class="warning"' not in render(found)
    constant = board(single)["guess"]["score"]
    assert f"a constant guess has {100 * constant:.1f} %" in str(found["portfolio"]["facts"])
    found["decision"]["warning"] = "The model is not shown to be better than guessing: try `this` & <that>."
    assert "better than guessing: try <code>this</code> &amp; &lt;that&gt;.</p>" in render(found)


def test_many_classes_have_a_list_and_several_labels_four_counts() -> None:
    names = [f"class {i}" for i in range(MOST_CLASSES + 1)]
    targets = torch.arange(len(names))
    outputs = torch.eye(len(names))[[1, *range(1, len(names))]]
    found = _matrix({"targets": targets, "model": outputs}, names)
    assert found["kind"] == "pairs" and found["counts"] == [["class 0", "class 1", 1]]
    both = {"targets": torch.tensor([[1, 0], [1, 1], [0, 0]]), "model": torch.tensor([[1.0, 1], [-1, 1], [-1, -1]])}
    found = _matrix(both, ["a", "b"])
    assert found["kind"] == "labels" and found["counts"] == [[1, 1, 0, 1], [1, 0, 1, 1]]


def test_several_labels_groups_and_four_sources_in_a_table(tmp_path: Path) -> None:
    text = of_patients(tmp_path)
    run(loads(text), tmp_path / "run")
    page = write_report(tmp_path / "run").read_text()
    found = collect(tmp_path / "run", 100)
    assert found["metric"] == "auc" and "false alarm" in page
    kept = load_checkpoint(tmp_path / "run" / "out_of_fold.safetensors")
    assert [sum(row) for row in found["portfolio"]["confusion"]["counts"]] == [len(kept["targets"])] * 3
    sources_, classes, examples = found["sections"]
    assert {f"s{n}" for n in range(4)} <= {row["cells"][0] for row in sources_["rows"]}
    counts = {row["cells"][0]: int(row["cells"][1]) for row in classes["rows"]}
    assert sorted(counts.values()) == sorted(int(n) for n in (kept["targets"] == 1).sum(0))
    truth = dict(zip(kept["names"], kept["targets"].tolist(), strict=True))
    for row in examples["rows"]:
        name, labels, *_ = row["cells"]
        assert labels == (" + ".join(str(n) for n, true in enumerate(truth[name]) if true) or "none")
        assert re.fullmatch(r".*own\.parquet, row \d+", name)
    changes = [float(row["cells"][4]) for row in examples["rows"]]
    assert changes == sorted(changes, reverse=True) and examples["columns"][1] == "true labels"


def test_a_portfolio_without_auxiliary_gain_diverged_rows_or_test_set(single: Path, tmp_path: Path) -> None:
    """Whatever leaderboard.json may lack, the page is there."""
    for path in single.glob("*.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    changed = board(single)
    changed |= {"worth": None, "chance": None, "tested": False, "not_validated": ["9"]}
    row = changed["candidates"][-1]
    changed["candidates"][-1] = {
        k: row[k] for k in ("label", "settings", "rungs", "steps", "seconds", "picks", *COST)
    } | {"diverged": "loss is not finite"}
    write_json(tmp_path / "leaderboard.json", changed)
    page = write_report(tmp_path).read_text()
    for text in (
        "diverged: loss is not finite",
        "Without a test set",
        "These classes have too few examples",
        "no test set",
    ):
        assert text in page
    assert "Chance that" not in page


def test_names_of_users_are_text(single: Path) -> None:
    evil, data = "<script>alert('x')</script>", collect(single, 100)
    data["portfolio"]["rows"][0]["label"] = data["portfolio"]["facts"][0]["remark"] = evil
    data["portfolio"]["confusion"]["columns"][0] = data["sections"][0]["rows"][0]["cells"][0] = evil
    page = render(data)
    assert evil not in page and page.count("&lt;script&gt;") >= 4


def test_a_page_before_the_end_says_so(tmp_path: Path, single: Path) -> None:
    for name in ("run.json", "config.yaml", "metrics.jsonl"):
        (tmp_path / name).write_bytes((single / name).read_bytes())
    assert "unfinished" in write_report(tmp_path).read_text()


# ---------------------------------------------------------------------------------------------------- in a browser


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (375, False)])
def test_pictures_are_drawn_inside_of_the_page(clean: Any, ensemble: Path, width: int, dark: bool) -> None:
    show(clean, ensemble / "report.html", width=width, dark=dark)
    assert clean.execute_script("return document.documentElement.scrollWidth") <= width
    count = sum(not row["diverged"] for row in board(ensemble)["candidates"])
    assert len(clean.find_elements("css selector", ".leaders circle")) == count + 1
    assert len(clean.find_elements("css selector", ".steps polyline")) == count
    assert len(clean.find_elements("css selector", ".steps .rungs")) == 1
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
        assert all(left - 1 <= a and b <= right + 1 and top - 1 <= c and d <= bottom + 1 for a, b, c, d in inner)
    ink = clean.execute_script("return getComputedStyle(document.querySelector('.leaders circle')).fill")
    assert ink not in ("none", clean.execute_script("return getComputedStyle(document.body).backgroundColor"))
    assert texts(clean, ".decision") and clean.find_element("css selector", ".decision").rect["y"] < 300
    # Remarks are shown at every width, and neither a grid nor the baseline crosses them.
    remarks, lines = (
        clean.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map((e) => {"
            "const r = e.getBoundingClientRect(); return [r.top, r.bottom]; })",
            selector,
        )
        for selector in (".leaders .remark", ".leaders .grid, .leaders .baseline")
    )
    assert remarks and all(b - a > 5 and not any(c < b - 3 and a < d for c, d in lines) for a, b in remarks)
    # Tiles fill their rows, and cards side by side end at the same height.
    ends = clean.execute_script(
        "const rows = {}; for (const e of document.querySelectorAll('.fact')) { const r = e.getBoundingClientRect(); "
        "rows[r.top] = Math.max(rows[r.top] || 0, r.right); } return Object.values(rows)"
    )
    assert max(ends) - min(ends) < 1
    cards = [card.rect for card in clean.find_elements("css selector", ".pair > section")]
    assert cards[0]["y"] != cards[1]["y"] or cards[0]["height"] == pytest.approx(cards[1]["height"], abs=1)


def test_long_names_of_candidates_leave_room_for_the_last_column(clean: Any, ensemble: Path, tmp_path: Path) -> None:
    found = collect(ensemble, 100)
    for row in found["tables"][0]["rows"]:
        row["cells"][0] += ", only a_source_with_a_long_name"
    (tmp_path / "report.html").write_text(render(found))
    show(clean, tmp_path / "report.html", width=1280)
    widths = "const e = document.querySelector('#result .scroll'); return [e.scrollWidth, e.clientWidth]"
    needed, shown = clean.execute_script(widths)
    assert needed <= shown


def test_the_page_looks_right_on_screens_and_on_paper(clean: Any, single: Path) -> None:
    check_looks(clean, single / "report.html")


def test_first_screen_and_print(clean: Any, single: Path) -> None:
    show(clean, single / "report.html")
    for selector in (".decision", ".fact", ".leaders", ".steps"):
        assert clean.find_element("css selector", selector).rect["y"] < 700, selector
    assert len(texts(clean, ".matrix tbody tr")) == 10 and any(
        "recall of primary_only" in t for t in texts(clean, "th")
    )
    assert clean.find_elements("css selector", "#charts canvas")  # the last training, on all labels
    # The score by step is drawn once, and no figure of held-out labels is called validation.
    assert texts(clean, "#charts .switch button")[0] == "out-of-fold loss"
    page = clean.find_element("css selector", "main").text
    assert "alidation" not in page.partition("Configuration and provenance")[0] and "`" not in page
    dark = {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    clean.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    try:
        style = clean.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert re.findall(r"\d+", style)[:3] == ["255", "255", "255"]
        ink = clean.execute_script("return getComputedStyle(document.querySelector('.leaders .label')).fill")
        assert sum(map(int, re.findall(r"\d+", ink)[:3])) < 200
        printed = clean.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"]
        assert len(printed) > 10_000
    finally:
        clean.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def test_a_chance_of_an_earlier_version_is_marked_as_rough(single: Path, tmp_path: Path) -> None:
    for path in single.glob("*.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    earlier = {"value": 0.78, "gain": 0.2, "calibrated": False}
    write_json(tmp_path / "leaderboard.json", board(single) | {"chance": earlier})
    page = write_report(tmp_path).read_text()
    assert "78 %" in page and "A rough figure: it was calibrated for the default portfolio.rungs" in page
