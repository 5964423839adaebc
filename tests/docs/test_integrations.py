"""The costs in docs/frameworks.md come from the committed measurement."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_costs_equal_the_committed_measurement() -> None:
    measured = json.loads((ROOT / "benchmarks" / "adapters.json").read_text())["milliseconds"]
    page = (ROOT / "docs" / "frameworks.md").read_text()
    for precision, times in measured.items():
        jobs = ("by_hand", "trainer", "lightning", "stock_trainer_primary_only")
        assert f"| {precision} | {' | '.join(f'{times[job]:.0f}' for job in jobs)} |" in page
        # "Nothing that could be measured": at most the 2 % that are allowed.
        assert times["trainer_overhead_percent"] <= 2 and times["lightning_overhead_percent"] <= 2
