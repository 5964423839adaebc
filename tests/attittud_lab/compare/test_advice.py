"""The command that a comparison ends with can be pasted, and does what it says."""

from pathlib import Path
from typing import Any

from attittud_lab.compare.advice import Request
from attittud_lab.compare.run import compare
from attittud_lab.output.progress import readable
from tests.helpers.comparisons import Trainings, config, finished, trained

__all__ = ["finished", "trained"]  # fixtures


def test_the_advice_is_a_command_with_its_cost(
    finished: tuple[Path, dict[str, Any]], trained: Trainings
) -> None:
    """Two seeds decide nothing; three more are 15 runs: three strategies in one table, and all but
    multitask in the other.
    """
    folder, _ = finished
    request = Request(("attittud", "compare", "my job.yaml", "compare.seeds=2", "--workers", "2"))
    result = compare(config(), folder, request=request)
    rows = [row for table in result["tables"] for row in table["rows"]]
    each = sum(row["seconds"] for row in rows) / len(rows)
    assert result["next"]["command"] == "attittud compare 'my job.yaml' --workers 2 compare.seeds=5"
    assert f"3 seeds in about {readable(15 * each)}" in result["next"]["why"]
    assert trained == [] and "gave_up" not in result
    # Without --quick there are four strategies: the fourth has two tries and a run for the second
    # seed, in both tables.
    whole = config("compare.strategies=[pcgrad]")
    quick = compare(
        config(), folder, request=Request(("attittud", "compare", "a.yaml"), whole, "seeds")
    )
    assert quick["gave_up"] == "seeds" and quick["whole"]["command"] == "attittud compare a.yaml"
    assert f"up to 5 more runs, which take about {readable(5 * each)}" in quick["whole"]["why"]
    assert quick["next"]["command"].endswith("compare.seeds=5 --quick")
