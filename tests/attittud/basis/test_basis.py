"""A basis that is registered from outside of the package is found by its name."""

import pytest

import attittud
from attittud import basis
from tests.helpers.rooms import ROOT, run_digits


@pytest.mark.slow
def test_the_basis_shown_in_contributing_md_can_be_registered(capsys):
    """The text itself is run; then the basis goes through a `Guide` and through `attittud
    train`.
    """
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split("## Add a basis or an engine from outside")[1]
    code = section.split("```python\n")[1].split("```")[0]
    try:
        exec(compile(code, "CONTRIBUTING.md", "exec"), {"__name__": "contributing"})
        assert capsys.readouterr().out.strip() == "tensor(2)"
        assert "examples" in attittud.bases()
        found = run_digits(["strategy.basis=examples"])
    finally:
        basis._BASES.pop("examples", None)
    assert found["strategy"] == "flip" and 0 < found["test"]["accuracy"] <= 1
