"""Names: no two classes share one, and a registered name is compared with nowhere but in the file that registers it."""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import pytest

import attittud
from attittud_lab import models, strategies
from attittud_lab.data.tasks import OBJECTIVES
from tests.helpers.rooms import ROOT

SRC = ROOT / "src"
FILES = {str(path.relative_to(SRC)): path.read_text(encoding="utf-8") for path in sorted(SRC.rglob("*.py"))}
SAME = {"AttittudMixin"}
"""Each adapter's class, which users import from the adapter of their framework."""

REGISTERED = {
    *attittud.bases(),
    *attittud.engines(),
    *attittud.presets(),
    *attittud.guards(),
    *OBJECTIVES,
    *strategies.names(),
    *models.names(),
}
OTHER_MEANINGS = {  # a word that is also a setting of something else, which the comparison is about
    "attittud/_checks.py": {"auto": "eta"},
    "attittud/channel.py": {"mean": "how the losses of a batch become one"},
    "attittud/guide.py": {"auto": "eta"},
    "attittud/basis/base.py": {"mean": "what a basis needs from the losses"},
    "attittud_lab/data/parts.py": {"auto": "data.kind", "random": "the kind of label noise"},
    "attittud_lab/report/collect.py": {"auto": "training.metric"},
    "attittud_lab/strategies/mixing.py": {"mean": "the vector that bloop keeps"},
    "attittud_lab/training/devices.py": {"auto": "the device"},
    "attittud_lab/training/train.py": {"auto": "training.metric"},
}


def twice(files: Iterable[str]) -> set[str]:
    """Names of classes that are defined more than once; private ones are known to one file alone."""
    nodes = (node for text in files for node in ast.walk(ast.parse(text)))
    found = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))
    return {name for name, count in found.items() if count > 1}


def compared(text: str) -> Iterator[tuple[int, str]]:
    """Texts that something is compared with, by `==`, `in` or `case`, or that choose from a mapping written in place."""
    for node in ast.walk(ast.parse(text)):
        found: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            found = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            found = [node.value]
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict):
            found = [key for key in node.value.keys if key is not None]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and "swith" in node.func.attr:
            found = node.args  # startswith, endswith
        for value in found:
            for part in value.elts if isinstance(value, ast.Tuple | ast.List | ast.Set) else [value]:
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield node.lineno if hasattr(node, "lineno") else part.lineno, part.value


def forks(files: Mapping[str, str]) -> list[str]:
    """Comparisons with the name of a basis, an engine, a preset, an objective, a strategy or a model."""
    return [
        f"{path}:{line} compares with {text!r}"
        for path, source in files.items()
        for line, text in compared(source)
        if text in REGISTERED and text not in OTHER_MEANINGS.get(path, {})
    ]


def test_no_two_classes_share_a_name() -> None:
    assert twice(FILES.values()) == SAME


def test_a_planted_class_is_found() -> None:
    assert twice([*FILES.values(), "class Guide:\n    class _Own:\n        pass\n\nclass _Own:\n    pass\n"]) == {
        *SAME,
        "Guide",
    }


def test_no_code_depends_on_a_registered_name() -> None:
    """What differs between entries of a registry is an attribute of their classes."""
    assert not forks(FILES)


def test_the_other_meanings_are_needed() -> None:
    used = {(path, text) for path, source in FILES.items() for _, text in compared(source)}
    assert {(path, word) for path, words in OTHER_MEANINGS.items() for word in words} <= used


@pytest.mark.parametrize(
    "fork",
    [
        "if basis == 'implicit': pass",
        "if 'exact' != basis: pass",
        "if engine in ('loop', 'other'): pass",
        "x = {'flip': 1, 'other': 2}[preset]",
        "match name:\n    case 'multi_label' | 'other': pass",
        "while name.startswith('torchjd_config'): pass",
        "x = [n for n in names if n not in ['small-cnn']]",
    ],
)
def test_a_planted_fork_is_found(fork: str) -> None:
    assert len(forks({"attittud/guide.py": fork})) == 1


def test_a_message_may_recommend_a_name() -> None:
    assert not forks({"attittud/guide.py": "raise ValueError(f\"engine={engine!r} cannot; use engine='hooks'\")"})
