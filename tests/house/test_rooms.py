"""The rooms of the house: folders that each answer one question and depend on each other in one direction."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

import attittud
from tests.helpers.rooms import ROOT

SRC = ROOT / "src"
MOST_ROOT_FILES = 11
PUBLIC_MODULES = ("attittud.losses", "attittud.checkpoint", "attittud.integrations")


def module_name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(SRC.rglob("*.py"))}


def imports(name: str) -> set[tuple[str, str | None]]:
    """Modules that a module imports, with the name that it takes from each; imports for a type checker do not count."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    hidden = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    found: set[tuple[str, str | None]] = set()
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            found |= {(alias.name, None) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: imports are absolute"
            found |= {(node.module or "", alias.name) for alias in node.names}
    return {(module, what) for module, what in found if module.split(".")[0] in ("attittud", "attittud_lab")}


def target(module: str, what: str | None) -> str:
    """The module that an import leads to: `from attittud.step import shared` to `attittud.step.shared`."""
    whole = f"{module}.{what}"
    return whole if whole in MODULES else module


def room(module: str) -> str:
    """The folder below a package, or a file of the package itself."""
    return ".".join(module.split(".")[:2])


def listed_rooms() -> list[str]:
    """The rooms of CONTRIBUTING.md, from the lowest to the highest."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("## The rooms\n")[1].split("\n## ")[0]
    names = re.findall(r"^\| `([a-z_./]+)`", table, re.MULTILINE)
    return [name.removesuffix("/").removesuffix(".py").replace("/", ".") for name in names]


def test_every_room_is_on_the_map_and_nothing_else():
    there = {room(name) for name in MODULES} - {"attittud", "attittud_lab"}
    assert sorted(listed_rooms()) == sorted(there)


@pytest.mark.parametrize("package", ["attittud", "attittud_lab"])
def test_few_files_are_in_the_root_of_a_package(package):
    assert len(list((SRC / package).glob("*.py"))) <= MOST_ROOT_FILES


@pytest.mark.parametrize("name", sorted(MODULES.keys() - {"attittud", "attittud_lab", "attittud.__main__"}))
def test_a_room_imports_only_rooms_above_it(name):
    order = {listed: number for number, listed in enumerate(listed_rooms())}
    for module, what in imports(name):
        other = room(target(module, what))
        if other not in (room(name), "attittud", "attittud_lab"):
            assert order[other] < order[room(name)], f"{name} imports {module}, whose room stands below its own"


def test_modules_do_not_import_each_other():
    edges = {name: {target(*found) for found in imports(name)} & MODULES.keys() - {name} for name in MODULES}
    done: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> None:
        assert name not in path, f"a circle: {' -> '.join([*path[path.index(name) :], name])}"
        if name in done:
            return
        path.append(name)
        for other in sorted(edges[name]):
            visit(other)
        path.pop()
        done.add(name)

    for name in edges:
        visit(name)


def test_the_library_never_imports_the_lab():
    """The exception is `python -m attittud`, which is the command line."""
    guilty = {name for name in MODULES if any(module.startswith("attittud_lab") for module, _ in imports(name))}
    assert {name for name in guilty if name.split(".")[0] == "attittud"} == {"attittud.__main__"}


@pytest.mark.parametrize("name", [n for n in MODULES if n.startswith("attittud_lab")])
def test_the_lab_uses_public_names_of_the_library(name):
    for module, what in imports(name):
        if module == "attittud":
            assert what in (*attittud.__all__, "__version__"), f"{name} takes {what} from attittud"
        elif module.startswith("attittud."):
            assert module.startswith(PUBLIC_MODULES), f"{name} imports {module}, which is not a public module"
            assert what is None or not what.startswith("_"), f"{name} takes {what} from {module}"


def test_a_small_file_with_one_importer_lives_there():
    """Unless it is an entry of a registry: a basis, an engine, a data source, a model, a command."""
    entries = ("basis", "engine", "data", "models", "strategies", "commands", "demo", "learners", "uses")
    importers = defaultdict(set)
    for name in MODULES:
        for found in imports(name):
            importers[target(*found)].add(name)
    small = [
        name
        for name, path in MODULES.items()
        if path.name not in ("__init__.py", "__main__.py")
        and path.read_text(encoding="utf-8").count("\n") < 60
        and len(importers[name]) == 1
        and name.split(".")[1:2] not in [[entry] for entry in entries]
    ]
    assert not small


def test_private_names_of_torch_are_in_one_file():
    """Attributes of tensors and modules that torch's documentation mentions are used where they are needed."""
    private = re.compile(r"\btorch\._|from torch\.[\w.]*\._|from torch\.[\w.]* import _|torch\.[\w.]+\._[a-z]")
    guilty = [
        f"{name}: {line.strip()}"
        for name, path in MODULES.items()
        if name.startswith("attittud.") and name != "attittud._torch"
        for line in path.read_text(encoding="utf-8").splitlines()
        if private.search(line.split("#")[0])
    ]
    assert not guilty
