"""An object of ours is changed by its own file alone: no other file writes an attribute of it."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.helpers.rooms import ROOT

FILES = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.py"))}
OTHERS = {  # objects of other packages, some of whose attributes have the names of attributes of ours
    "grad": "the gradient of a tensor, which an optimizer reads",
    "data_collator": "a Trainer of transformers, for as long as one loader is made",
    "remove_unused_columns": "the arguments of that Trainer",
    "pooler": "an encoder of transformers",
    "_run": "torch's manager of CUDA graph trees",
    "settings.*": "the configuration of a network of transformers, which has many names for dropout",
}
WRITERS = ("setattr", "delattr", "__setattr__", "__delattr__")


def is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def declared(text: str) -> set[str]:
    """Attributes of the classes of a file: in the body of a class, or written to `self` and `cls` by its methods."""
    found = set()
    for made in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)):
        for node in made.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            found |= {t.id for part in targets if part for t in ast.walk(part) if isinstance(t, ast.Name)}
        found |= {name for name, holder, _ in written(made) if is_own(holder)} - {"*"}
    return found


def written(tree: ast.AST) -> Iterator[tuple[str, ast.expr, int]]:
    """Attributes that are assigned, augmented or deleted, with their object and the line; `*` is a name that only a run knows."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.attr, node.value, node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in WRITERS and len(node.args) > 1:
            name = node.args[1]
            yield str(name.value) if isinstance(name, ast.Constant) else "*", node.args[0], node.lineno


def trespasses(files: Mapping[str, str], exempt: Mapping[str, str] = OTHERS) -> list[str]:
    """Writes to an attribute that classes of other files declare, and no class of the file itself."""
    owners = {path: declared(text) for path, text in files.items()}
    ours = set().union(*owners.values())
    return [
        f"{path}:{line} writes {ast.unparse(holder)}.{name}"
        for path, text in files.items()
        for name, holder, line in written(ast.parse(text))
        if not is_own(holder) and (name == "*" or name in ours - owners[path])
        if not {name, f"{ast.unparse(holder)}.{name}"} & set(exempt)
    ]


def test_no_file_writes_attributes_of_another_files_objects() -> None:
    assert not trespasses(FILES)


def test_an_exemption_is_needed() -> None:
    writes = [write for text in FILES.values() for write in written(ast.parse(text))]
    found = {name for name, _, _ in writes} | {f"{ast.unparse(holder)}.{name}" for name, holder, _ in writes}
    assert set(OTHERS) <= found, "nothing writes these any more; take them off the list"


@pytest.mark.parametrize(
    "write",
    [
        "step.tasks = {}",
        "step.calls += 1",
        "step.tasks, other = {}, 1",
        "self.step.tasks = {}",
        "setattr(step, 'tasks', {})",
        "setattr(step, name, {})",
        "object.__setattr__(step, 'tasks', {})",
        "del step.tasks",
        "for step.calls in range(3): pass",
    ],
)
def test_a_planted_write_is_found(write: str) -> None:
    step = "class Step:\n    calls: int = 0\n    def __init__(self):\n        self.tasks = {}\n"
    planted = {"step.py": step, "guide.py": f"class Guide:\n    def go(self, step):\n        {write}\n"}
    assert len(trespasses(planted)) == 1
    if "name" not in write:
        assert not trespasses({"step.py": step + planted["guide.py"]}), "a file may write to its own objects"


def test_a_write_that_is_planted_into_the_source_is_found() -> None:
    path = str(Path("src/attittud/guide.py"))
    assert trespasses({**FILES, path: FILES[path] + "\n\ndef _spoil(step: Step) -> None:\n    step.captured = None\n"})
