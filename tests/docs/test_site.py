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
        pytest.importorskip(module, reason=f"the site needs {module}: make docs")
    folder = tmp_path_factory.mktemp("site")
    # As `make docs` does it. -W: broken links and anchors, and pages that nothing leads to, are
    # errors.
    options = ["-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    command = [sys.executable, *options, DOCS, folder]
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_reference_has_every_public_name(site):
    page = (site / "api.html").read_text(encoding="utf-8")
    documented = set(re.findall(r'id="([\w.]+)"', page))
    for module in MODULES:
        names = importlib.import_module(module).__all__
        assert [name for name in names if f"{module}.{name}" not in documented] == []


def test_pages_load_nothing_from_other_servers(site):
    loads = {
        "*.html": r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=\"(?:https?:)?//",
        "*.css": r"url\(\s*[\"']?(?:https?:)?//",
    }
    for names, pattern in loads.items():
        for path in site.rglob(names):
            assert not re.search(pattern, path.read_text(encoding="utf-8")), path.name


def test_the_reference_has_every_field_of_a_report(site):
    page = (site / "api.html").read_text(encoding="utf-8")
    fields = [name for name in dir(attittud.Report) if not name.startswith("_")]
    fields += ["tasks", "refreshed", "skipped_refreshes"]
    assert [name for name in fields if f'id="attittud.Report.{name}"' not in page] == []


def test_the_site_can_be_searched_from_the_disk(site, browser):
    browser.get((site / "search.html").resolve().as_uri() + "?q=captured_auxiliary")
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(browser, 30).until(lambda _: "Search finished" in browser.page_source)
    found = browser.find_element("id", "search-results").text
    assert "attittud.Report.captured_auxiliary" in found and "What does this word mean?" in found
