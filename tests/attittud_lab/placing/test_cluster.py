"""Jobs on a real Ray cluster of two nodes on this machine, one of which is lost on the way."""

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attittud_lab.compare.run import compare
from attittud_lab.errors import InputError
from attittud_lab.output.progress import Progress
from attittud_lab.placing import cluster as module
from attittud_lab.placing.cluster import on_ray, pack
from tests.helpers import portfolios
from tests.helpers.comparisons import config
from tests.helpers.interrupted_runs import outcome
from tests.helpers.jobs import Seen
from tests.helpers.ray_cluster import Cluster

pytest.importorskip("ray", reason="needs the extra 'ray'", exc_type=ImportError)
pytestmark = [pytest.mark.skipif(os.name != "posix", reason="needs signals"), pytest.mark.slow]
# Ray's own code warns about itself.
pytestmark.append(
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
    )
)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))  # a short path: sockets lie in it
    cluster = Cluster(folder)
    try:
        yield cluster
    finally:
        cluster.end()
        shutil.rmtree(folder, ignore_errors=True)


def test_a_portfolio_is_the_same_on_a_cluster(nodes: Cluster, tmp_path: Path) -> None:
    few = ["portfolio.candidates=[multitask]", "portfolio.folds=2"]
    portfolios.train(tmp_path / "here", *few)
    with on_ray(nodes.address) as place:
        portfolios.train(tmp_path / "there", *few, place=place)
    assert portfolios.outcome(tmp_path / "here") == portfolios.outcome(tmp_path / "there")


class Killer(Seen):
    """Loses the second node as soon as a run is trained on each of the two."""

    def __init__(self, cluster: Cluster, *more: Any) -> None:
        super().__init__(*more)
        self.cluster = cluster

    def begin(self, what: str) -> Progress:
        return Killer(self.cluster, what, self.seen)

    def phase(self, name: str, steps: int | None, done: int) -> None:
        super().phase(name, steps, done)
        running = {event[0] for event in self.seen if event[1] == "phase"}
        running -= {event[0] for event in self.seen if event[1] == "end"}
        if len(running) == 2 and self.cluster.second.alive:
            self.cluster.second.kill()


@pytest.mark.nightly
def test_a_lost_node_changes_nothing(
    nodes: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole comparison; one of the nodes is killed while it trains. All files are those of one
    process, bit by bit.
    """
    monkeypatch.setattr(module, "EVERY", 0.05)
    job = config("compare.equal=steps", "training.guided.steps=200")
    here, there, seen = tmp_path / "here", tmp_path / "there", Killer(nodes)
    expected = compare(job, here)
    with on_ray(nodes.address) as place:
        found = compare(job, there, seen, place=place)
    assert not nodes.second.alive
    assert [event[2] for event in seen.seen if "was lost" in str(event[2:])]
    paths = [path.parent.relative_to(here) for path in here.rglob("result.json")]
    assert len(paths) == 8 and found["tuning"] == expected["tuning"]
    for path in paths:
        assert outcome(there / path) == outcome(here / path)
        assert pack(there / path).keys() == pack(here / path).keys()
        one, two = (json.loads((root / path / "run.json").read_text()) for root in (there, here))
        assert one | {"started": two["started"]} == two


def test_a_missing_cluster_and_a_missing_ray_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    handler = signal.getsignal(signal.SIGTERM)
    with (
        pytest.raises(InputError, match=r"--ray nowhere: .*`ray start --head`"),
        on_ray("nowhere"),
    ):
        pass
    assert signal.getsignal(signal.SIGTERM) is handler
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"'attittud\[ray\]'"), on_ray():
        pass
