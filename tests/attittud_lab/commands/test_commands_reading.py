"""Names that are registered from outside are accepted in configurations."""

import pytest

from attittud import basis, engine
from attittud_lab.commands import known_names
from attittud_lab.config.load import ConfigError, loads
from attittud_lab.strategies import base as strategies


@pytest.mark.parametrize("kind", ["strategy", "basis", "engine"])
def test_a_name_registered_from_outside_of_the_package_is_accepted(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"strategy: {{{'name' if kind == 'strategy' else kind}: mine}}"
    with pytest.raises(
        ConfigError,
        match=f"configuration:1: strategy.{'name' if kind == 'strategy' else kind}: unknown",
    ):
        loads(text, names=known_names())
    tables = {"strategy": strategies._ENTRIES, "basis": basis._BASES, "engine": engine._ENGINES}
    monkeypatch.setitem(tables[kind], "mine", next(iter(tables[kind].values())))
    loads(text, names=known_names())
