"""pytest collects every test, or says why not."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_broken_import_of_a_test_file_is_an_error(tmp_path):
    """A package that is not installed is none: its tests are skipped."""
    test = "def test_nothing() -> None:\n    pass\n"
    for name, broken in {
        "name": "from attittud import no_such_name",
        "module": "import tests.helpers.no_such_module",
        "others_name": "from torch import no_such_name",
        "extra": "import no_such_package",
        "fine": "import attittud",
    }.items():
        (tmp_path / f"test_{name}.py").write_text(f"{broken}\n\n\n{test}")
    options = ["-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-p", "tests.conftest"]
    options += ["-p", "no:cacheprovider", "--continue-on-collection-errors"]
    command = [sys.executable, "-m", "pytest", *options, tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    last = done.stdout.splitlines()[-1]
    assert "3 errors" in last and "1 passed" in last and "1 skipped" in last, done.stdout
