"""A comparison and a run to report on, and a browser whose silence is checked."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attittud_lab.compare.run import compare
from attittud_lab.config.load import loads
from attittud_lab.report import write_report
from tests.helpers.browser import show

JOB = """
data:
  primary: {path: digits, train: 60, validation: 100, test: 200}
  auxiliary: {"more": {path: digits, examples: 300}}
model: {name: mlp, width: 8}
training:
  guided: {steps: 24, evaluations: 4, primary_batch: 16, batch_size: 16, lr: 0.02}
  finetune: {steps: 8, evaluations: 2, primary_batch: 16, lr: 0.01}
strategy: {name: flip, rank: 3}
log_every: 2
compare: {seeds: 2, tuning_seeds: 1, strategies: [drop_harmful], weights: [0.3, 1]}
"""


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "compare"
    compare(loads(JOB), folder)
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def run_dir(comparison: Path) -> Path:
    (found,) = comparison.glob("runs/flip/weight-1/steps-24-8/seed-0")
    return found


"""Values that are somewhere in a file where another one should be."""


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


# Every text against the nearest ground behind it: the contrast of WCAG, which asks for 4.5.
_CONTRAST = """
const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
const context = canvas.getContext("2d", { willReadFrequently: true });
const rgba = (css) => {
  context.clearRect(0, 0, 1, 1); context.fillStyle = css; context.fillRect(0, 0, 1, 1);
  return context.getImageData(0, 0, 1, 1).data;
};
const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, part, i) => {
  const v = c[i] / 255;
  return sum + part * (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
}, 0);
const found = [];
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const text = walk.currentNode.data.trim(), element = walk.currentNode.parentElement;
  if (!text || !element.getClientRects().length || element.closest("script, style, title")) continue;
  const ink = rgba(getComputedStyle(element)[element instanceof SVGElement ? "fill" : "color"]);
  let behind = element, ground = rgba("white");
  for (; behind; behind = behind.parentElement) {
    const own = rgba(getComputedStyle(behind).backgroundColor);
    if (own[3] > 127) { ground = own; break; }
  }
  const [a, b] = [light(ink), light(ground)].sort((x, y) => y - x);
  found.push([(a + 0.05) / (b + 0.05), text]);
}
return found;
"""


def check_looks(browser: Any, page: Path) -> None:
    """One file below 400 kB; the decision on the first screen; nothing to scroll sideways; text
    that can be read in the dark.
    """
    assert page.stat().st_size < 400_000
    text = page.read_text()
    assert (
        not re.findall(r"(?:src|href)=[\"'](?!data:)|@import|url\((?!data:)", text)
        and "default-src 'none'" in text
    )
    for width, height, dark in (
        (1280, 720, False),
        (375, 667, False),
        (1280, 720, True),
        (375, 667, True),
    ):
        show(browser, page, width=width, dark=dark)
        place = browser.find_element("css selector", ".decision").rect
        assert place["height"] > 40 and place["y"] + place["height"] <= height, (width, place)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        poor = [(ratio, text) for ratio, text in browser.execute_script(_CONTRAST) if ratio < 4.5]
        assert not poor, (dark, poor)
    # On paper: light colours, every table, no buttons.
    media = {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    try:
        assert (
            browser.execute_script("return getComputedStyle(document.body).backgroundColor")
            == "rgb(255, 255, 255)"
        )
        assert all(
            table.is_displayed() for table in browser.find_elements("css selector", ".table")
        )
        assert not any(
            button.is_displayed()
            for button in browser.find_elements("css selector", ".switch button")
        )
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def texts(browser: Any, selector: str) -> list[str]:
    return [element.text for element in browser.find_elements("css selector", selector)]
