"""`attittud compare --workers N` and `--ray`: the same figures, one screen, and processes that die
or are stopped.
"""

import os
import sys
from pathlib import Path

import pytest

from attittud_lab import cli
from attittud_lab.commands import _ADDRESS
from tests.helpers.comparisons import JOB

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs signals")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "2", "--ray"], "--workers and --ray"),
        (["--workers", "0"], "--workers"),
        (["--ray", "--quiet"], "attittud[ray]"),
    ],
)
def test_wrong_values_of_workers_and_ray_are_refused(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    with pytest.raises(SystemExit) as stopped:
        cli.main(["compare", "job.yaml", *arguments])
    err = capsys.readouterr().err
    assert stopped.value.code == 2 and message in err and err.count("\n") == 1


def test_addresses_of_ray_clusters_are_recognised() -> None:
    assert all(_ADDRESS.fullmatch(word) for word in ("10.0.0.1:6379", "ray://head:10001"))
    assert not any(_ADDRESS.fullmatch(word) for word in ("job.yaml", "C:/a.yaml"))
