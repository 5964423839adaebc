"""Commands are typed in an empty folder with a small job."""

from pathlib import Path

import pytest

from tests.helpers.commands import JOB


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
