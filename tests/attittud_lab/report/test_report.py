"""HTML reports: the content of the page, its size, and a browser that shows it without errors."""

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

from attittud_lab import report
from attittud_lab.report import LARGEST, render
from attittud_lab.report.collect import collect
from tests.helpers.browser import browser
from tests.helpers.commands import call

__all__ = ["browser"]  # a fixture

EVIL = "<script>alert('x')</script>&\"'</style>"


def test_the_page_of_a_comparison_shows_its_results(comparison):
    page = (comparison / "report.html").read_text()
    result = json.loads((comparison / "comparison.json").read_text())
    assert len(page.encode()) < LARGEST
    for text in (
        "Equal steps",
        "Equal seconds",
        "primary_only",
        "multitask",
        "flip",
        "drop_harmful",
    ):
        assert text in page
    head, _, rest = result["decision"]["text"].partition(": ")
    assert f"<strong>{head}</strong>" in page and rest in page
    assert f"{100 * result['tables'][0]['rows'][2]['test']['mean']:.1f}" in page
    assert "primary_batch: 16" in page and result["made_with"]["torch"] in page
    # One file: nothing is fetched from anywhere.
    assert not re.findall(r"(?:src|href)=[\"'](?!data:)", page) and "@import" not in page
    assert "default-src 'none'" in page
    data = json.loads((comparison / "report.json").read_text())
    expected = ["primary_only", "multitask", "flip", "drop_harmful"]
    assert [row["label"] for row in data["curves"][0]] == expected


def test_report_prints_the_path_of_the_page(run_dir, tmp_path, capsys):
    assert call("report", str(run_dir), "--output", str(tmp_path / "page")) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "page/report.html")
    assert {path.name for path in (tmp_path / "page").iterdir()} == {"report.html", "report.json"}


def test_texts_of_users_are_not_read_as_html(run_dir):
    data = collect(run_dir, 100)
    data["title"] = data["subtitle"] = data["config"] = EVIL
    data["notes"] = [EVIL]
    data["provenance"] = {EVIL: EVIL}
    data["curves"][0][0]["label"] = EVIL
    data["tables"][0] |= {
        "name": EVIL,
        "about": EVIL,
        "columns": [EVIL],
        "rows": [{"cells": [EVIL], "interval": None}],
    }
    data["decision"] |= {"about": EVIL, "text": EVIL, "meaning": [EVIL], "warning": EVIL}
    page = render(data)
    assert EVIL not in page and "alert('x')" not in page.replace("\\u003cscript>alert('x')", "")
    assert page.count("<script") == 3 and page.count("</style>") == 1


def test_a_name_that_is_not_utf_8_does_not_lose_the_page(run_dir, tmp_path, monkeypatch):
    """A picture whose label looks wrong may have such a name."""
    name = os.fsdecode(b"a\xff.png")
    monkeypatch.setattr(
        report, "collect", lambda *found: collect(*found) | {"notes": [f"look at {name} ✓"]}
    )
    page = report.write_report(run_dir, tmp_path).read_text(encoding="utf-8")
    assert "a\\udcff.png ✓" in page
    assert name in json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["notes"][0]


@pytest.fixture
def clean(browser: Any) -> Iterator[Any]:
    """A browser whose console and network must have stayed silent."""
    for log in ("browser", "performance"):
        browser.get_log(log)
    yield browser
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
    assert not [url for url in asked if url.startswith(("http", "ws"))]


def texts(browser: Any, selector: str) -> list[str]:
    return [element.text for element in browser.find_elements("css selector", selector)]


def click(browser: Any, text: str, place: str = "body") -> None:
    for button in browser.find_elements("css selector", f"{place} button"):
        if button.text.strip() == text:
            button.click()
            return
    raise AssertionError(f"no button {text!r}")


def test_every_button_on_the_page_of_a_comparison_works(clean, comparison):
    clean.get((comparison / "report.html").resolve().as_uri())
    expected = ["Learning curves", "The three parts of the auxiliary gradient", "Captured norm"]
    assert texts(clean, "#charts h2")[:3] == expected
    assert len(clean.find_elements("css selector", ".uplot canvas")) == 3
    # a line without a bend is no picture
    assert "directions: 3, at every step." in texts(clean, "#charts p")
    assert clean.find_elements("css selector", ".heat .cell")
    # The table that decided is open, with a mark at the row that the decision is about.
    decision = json.loads((comparison / "comparison.json").read_text())["decision"]
    for name, visible in (
        (None, [False, True]),
        ("Equal steps", [True, False]),
        ("Equal seconds", [False, True]),
    ):
        if name:
            click(clean, name)
        found = [table.is_displayed() for table in clean.find_elements("css selector", ".table")]
        assert found == visible
        shown = texts(clean, ".switch [aria-pressed=true][data-value]")[0]
        assert shown == (name or "Equal seconds")
    assert decision["outcome"] == "unclear"
    assert texts(clean, "tr.chosen th") == [f"{decision['row']} ◀ best on validation"]
    assert texts(clean, ".decision small") == [f"Decision at {decision['table'].lower()}"]
    assert texts(clean, ".decision strong") == [decision["text"].partition(": ")[0]]
    assert texts(clean, "#pictures h3") == ["Equal seconds decides", "Equal steps"]
    for name in (
        "validation loss",
        "primary training loss",
        "more loss",
        "by second",
        "neutral",
        "helpful",
        "by step",
    ):
        click(clean, name, "#charts")
        assert len(clean.find_elements("css selector", ".uplot canvas")) == 3
    click(clean, "flip", ".legend")  # hides a curve, and shows it again
    assert clean.find_elements("css selector", ".legend [aria-pressed=false]")
    click(clean, "flip", ".legend")
    assert not clean.find_elements("css selector", ".legend [aria-pressed=false]")
    clean.execute_script(
        "const s = document.querySelector('[data-choose=row]'); s.value = 'drop_harmful'; s.dispatchEvent(new Event('change'))"
    )
    assert any("drop_harmful: share" in text for text in texts(clean, "#charts .about"))
    for summary in clean.find_elements("css selector", "summary"):
        summary.click()
    assert "primary_batch: 16" in texts(clean, "pre")[0]
