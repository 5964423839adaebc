"""The command that a comparison ends with can be pasted, and does what it says."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from attittud_lab.compare.advice import Request
from attittud_lab.compare.run import compare
from attittud_lab.data.prepare import split_seed
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


@pytest.mark.parametrize("changes", [("data.test_seed=3",), ("data.subsets=2",)])
def test_more_test_examples_are_advised_where_one_is_worth_more_than_the_difference(
    tmp_path: Path, changes: tuple[str, ...]
) -> None:
    """All runs are equal, since nothing is learned; ten test examples rule out no gain of half a
    point.
    """
    still = [
        "training.guided.lr=1e-30",
        "training.mode=joint",
        "compare.equal=steps",
        "compare.seeds=3",
    ]
    words = [
        *still,
        "compare.strategies=[]",
        "strategy=multitask",
        "data.primary.test=10",
        *changes,
    ]
    typed = ("attittud", "compare", "job.yaml", *words, "output=there")
    result = compare(config(*words), tmp_path, request=Request(typed))
    assert result["decision"]["few_examples"] and result["decision"]["seeds_needed"] is None
    command = shlex.split(result["next"]["command"])
    outputs = [word for word in command if word.startswith("output=")]
    assert "compare.seeds=3" in command and outputs == ["output=runs/new-splits"]
    advised = config(*command[3:])
    assert [split_seed(advised.data, seed) for seed in range(3)] == [
        0,
        1,
        2,
    ] and advised.data.test_seed is None
    # A test split of the source stays the same with every seed.
    for path in tmp_path.rglob("data.json"):
        before = path.read_text()
        path.write_text(
            before.replace('"test": {\n   "source": "', '"test": {\n   "source": "test split of ')
        )
    fixed = compare(config(*words), tmp_path, request=Request(typed))
    assert "command" not in fixed["next"] and "data.primary.test" in fixed["next"]["why"]
    # With splits of their own, more seeds test more examples.
    again = compare(advised, tmp_path / "new", request=Request(tuple(command)))
    assert not again["decision"]["few_examples"]
