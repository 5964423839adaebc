"""`make carry`: packages for a machine on which nothing can be installed."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PINNED = (ROOT / "constraints.txt").read_text(encoding="utf-8")
CONSTRAINTS = dict(re.findall(r"^([\w-]+)==(\S+)$", PINNED, re.MULTILINE))


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    folder = tmp_path_factory.mktemp("carry") / "carry"
    command = ["make", "carry", f"PYTHON={sys.executable}", f"CARRY={folder}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip(f"the package index cannot be reached: {' '.join(done.stderr.split())[-200:]}")
    assert done.returncode == 0, done.stderr
    return folder


def test_the_folder_has_the_pinned_versions_for_the_other_python(carried):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    names = re.search(r"^CARRIED := (.*)$", makefile, re.MULTILINE)[1].split()
    versions = {}
    for folder in carried.glob("*.dist-info"):
        name, version = folder.stem.split("-")
        versions[name.replace("_", "-")] = version
    assert versions == {name: CONSTRAINTS[name] for name in names}
    (binary,) = carried.glob("pydantic_core/*.so")
    assert "cpython-312-x86_64-linux-gnu" in binary.name


def test_pydantic_needs_nothing_that_is_not_carried(carried):
    """Neither installed packages nor the user's own are in sight of this interpreter."""
    places = [*Path.home().glob(".pyenv/versions/3.12*/bin/python"), Path("/usr/bin/python3.12")]
    interpreter = next(filter(Path.exists, places), None)
    if interpreter is None:
        pytest.skip("there is no Python 3.12 here")
    script = f"import sys; sys.path.insert(0, {str(carried)!r}); import filelock, pydantic; print(pydantic.VERSION)"
    command = [interpreter, "-I", "-S", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, CONSTRAINTS["pydantic"]), done.stderr
