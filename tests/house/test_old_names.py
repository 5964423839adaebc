"""Public names of revision 878ab49 are there, or say what they are called now and in which version they go."""

import ast
import importlib
import json
import re
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from attittud.engine import engines, make_engine
from tests.helpers.rooms import ROOT

NAMES = json.loads((ROOT / "tests/old_files/public_names.json").read_text(encoding="utf-8"))
EXTRAS = ("transformers", "lightning", "torchjd")
GOES = "0.3"


def find(name: str) -> tuple[object, list[str]]:
    """What `from MODULE import NAME` gives, and what we warn about meanwhile; other packages warn as they like."""
    module, _, last = name.rpartition(".")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = importlib.import_module(module)
        try:
            value = getattr(found, last)
        except AttributeError:
            value = importlib.import_module(name)  # a module, which is imported from its package
        except ModuleNotFoundError as error:
            if error.name != "triton":  # only torch's CUDA builds have it
                raise
            value = None
    ours = [
        str(w.message) for w in caught if issubclass(w.category, DeprecationWarning) and "attittud." in str(w.message)
    ]
    return value, ours


def defines(name: str) -> bool:
    """Whether a module has a function or class of this name, without importing it."""
    module, _, last = name.rpartition(".")
    path = ROOT / "src" / Path(*module.split(".")).with_suffix(".py")
    return path.is_file() and any(getattr(n, "name", None) == last for n in ast.parse(path.read_text("utf-8")).body)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_there_or_warns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "attittud.kernels.cuda", raising=False)  # other tests have a stand-in for it
    if name.split(".")[2:3] and (extra := name.split(".")[2]) in EXTRAS:
        pytest.importorskip(extra, reason=f"needs the extra {extra!r}")
    value, told = find(name)
    if not told:
        assert value is not None
        return
    (message,) = told
    assert message.startswith(name) and f"version {GOES}" in message
    new = [other for other in re.findall(r"attittud(?:\.\w+)+", message) if other != name]
    assert new and all(map(defines, new)), message


def test_there_are_names_of_every_kind() -> None:
    assert {name.split(".")[1] for name in NAMES if name.count(".") > 1} == {
        *("basis", "checkpoint", "engine", "integrations", "kernels", "losses")
    }


def test_the_older_spelling_of_an_engine_still_makes_one() -> None:
    assert "implicit" in engines()
    with pytest.warns(DeprecationWarning, match=rf"version {GOES}.*basis='implicit'"):
        engine = make_engine("implicit")
    model = nn.Linear(3, 2)
    with engine.watch(model):
        losses = model(torch.randn(4, 3)).square().mean(1)
    assert losses.shape == (4,)
    engine.release()
    with pytest.raises(AttributeError, match="no attribute 'Explicit'"):
        _ = importlib.import_module("attittud.engine").Explicit
