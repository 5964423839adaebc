"""A basis that is registered from outside of the package is found by its name."""

from pathlib import Path

import pytest

import attittud
from attittud import basis
from tests.helpers.commands import flip_result


@pytest.mark.slow
def test_the_basis_shown_in_contributing_md_can_be_registered(capsys, tmp_path):
    """The text itself is run; then a `Guide` and `attittud train` use the basis."""
    text = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split("## Add a basis or an engine from outside")[1]
    code = section.split("```python\n")[1].split("```")[0]
    try:
        exec(compile(code, "CONTRIBUTING.md", "exec"), {"__name__": "contributing"})
        assert capsys.readouterr().out.strip() == "tensor(2)"
        assert "examples" in attittud.bases()
        found = flip_result(tmp_path, "strategy.basis=examples")
    finally:
        basis._BASES.pop("examples", None)
    assert found["strategy"] == "flip" and 0 < found["test"]["accuracy"] <= 1
