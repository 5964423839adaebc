"""A comparison and a run to report on, and a browser whose silence is checked."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attittud_lab.compare.run import compare
from attittud_lab.config.load import loads
from attittud_lab.report import write_report

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
