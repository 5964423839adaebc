"""The site is built without a warning, and its reference has every public name."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import attittud
from tests.helpers.browser import browser
from tests.helpers.pages import DOCS, ROOT

__all__ = ["browser"]  # a fixture
pytestmark = pytest.mark.slow
MODULES = ("attittud", "attittud.checkpoint", "attittud_lab")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for module in ("sphinx", "furo", "myst_parser", "transformers", "lightning", "torchjd"):
        pytest.importorskip(
            module, reason=f"the site needs {module}: pip install 'attittud[docs]', or make docs"
        )
    folder = tmp_path_factory.mktemp("site")
    # As `make docs` does it: -W makes broken links and anchors, and pages that nothing leads to, an
    # error.
    options = ["-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    command = [sys.executable, *options, str(DOCS), str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_reference_has_every_public_name(site):
    page = (site / "api.html").read_text(encoding="utf-8")
    documented = set(re.findall(r'id="([\w.]+)"', page))
    for module in MODULES:
        names = importlib.import_module(module).__all__
        assert [name for name in names if f"{module}.{name}" not in documented] == []


def test_pages_load_nothing_from_other_servers(site):
    for page in site.rglob("*.html"):
        tags = re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page.read_text(encoding="utf-8"))
        assert [tag for tag in tags if re.search(r'(?:src|href)="(?:https?:)?//', tag)] == [], (
            page.name
        )
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), (
            style.name
        )


def test_the_reference_has_every_field_of_a_report(site):
    page = (site / "api.html").read_text(encoding="utf-8")
    fields = [name for name in dir(attittud.Report) if not name.startswith("_")] + [
        "tasks",
        "refreshed",
        "skipped_refreshes",
    ]
    assert [name for name in fields if f'id="attittud.Report.{name}"' not in page] == []


def test_the_site_can_be_searched_from_the_disk(site, browser):
    browser.get((site / "search.html").resolve().as_uri() + "?q=captured_auxiliary")
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(browser, 30).until(lambda _: "Search finished" in browser.page_source)
    found = browser.find_element("id", "search-results").text
    assert "attittud.Report.captured_auxiliary" in found and "What does this word mean?" in found
