"""The tests mirror the source tree: the path of a test says what it tests."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
PACKAGES = ("attittud", "attittud_lab")


def subject(path: Path) -> str:
    """What a test's name has after `test_`: the module, or the package of an `__init__.py`."""
    return path.parent.name if path.name == "__init__.py" else path.stem.strip("_")


def test_every_test_has_its_source_file():
    """The name of a folder stands for all files in it."""
    strangers = []
    for package in PACKAGES:
        for path in (TESTS / package).rglob("test_*.py"):
            folder = path.parent.relative_to(TESTS)
            subjects = {subject(file) for file in (ROOT / "src" / folder).glob("*.py")}
            name = path.stem.removeprefix("test_")
            if not any(name == one or name.startswith(f"{one}_") for one in subjects):
                strangers.append(str(path.relative_to(TESTS)))
    assert strangers == []


def test_tests_that_a_page_names_exist():
    missing = []
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        names = re.findall(r"\btests/[\w/]+(?:\.py)?", text)
        missing += [f"{page.name}: {name}" for name in names if not (ROOT / name).exists()]
    assert missing == []
