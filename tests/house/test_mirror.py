"""The tests mirror the source tree: the test of any file is found by its path."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SOURCE = TESTS.parent / "src"
PACKAGES = ("attittud", "attittud_lab")
FOLDERS = {*PACKAGES, "benchmarks", "docs", "examples", "experiments", "helpers", "house", "old_files"}


def has_code(path: Path) -> bool:
    """Not an `__init__.py` that only names what lies in other files."""
    statements = ast.parse(path.read_text(encoding="utf-8")).body
    names = [node for node in statements if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    return any(not isinstance(node, (ast.Expr, ast.Import, ast.ImportFrom)) for node in statements if node not in names)


def subject(path: Path) -> str:
    """What the name of a test has after `test_`: the module, or the package of an `__init__.py`."""
    return path.parent.name if path.name == "__init__.py" else path.stem.strip("_")


MODULES = sorted(path.relative_to(SOURCE) for package in PACKAGES for path in (SOURCE / package).rglob("*.py"))
FILES = sorted(path.relative_to(TESTS) for package in PACKAGES for path in (TESTS / package).rglob("*.py"))


@pytest.mark.parametrize("module", [m for m in MODULES if m.name != "__init__.py" or has_code(SOURCE / m)], ids=str)
def test_every_source_file_has_its_test(module: Path) -> None:
    path = TESTS / module.with_name(f"test_{subject(module)}.py")
    assert path.is_file(), f"src/{module} is tested nowhere; write {path.relative_to(TESTS.parent)}"


@pytest.mark.parametrize("file", FILES, ids=str)
def test_every_test_has_its_source_file(file: Path) -> None:
    """`test_guide.py` and `test_guide_compiled.py` test guide.py; the name of the folder stands for all files in it."""
    subjects = {subject(module) for module in MODULES if module.parent == file.parent}
    name = file.stem.removeprefix("test_")
    assert any(name == s or name.startswith(f"{s}_") for s in subjects), f"there is no src/{file.with_name(name)}.py"
    text = (TESTS / file).read_text(encoding="utf-8")
    tests = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    assert tests, "a file of tests without a test"


def test_there_are_no_other_files() -> None:
    assert {path.name for path in TESTS.iterdir() if path.is_dir() and path.name != "__pycache__"} == FOLDERS
    assert {path.name for path in TESTS.iterdir() if path.is_file()} == {"__init__.py", "conftest.py"}


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        *sorted(str(p.relative_to(TESTS.parent)) for p in (TESTS.parent / "docs").rglob("*.md")),
    ],
)
def test_tests_that_a_page_names_exist(page: str) -> None:
    text = (TESTS.parent / page).read_text(encoding="utf-8")
    missing = [name for name in re.findall(r"\btests/[\w/]+(?:\.py)?", text) if not (TESTS.parent / name).exists()]
    assert not missing
