"""Names registered from outside, and addresses of clusters, are recognised."""

import pytest

from attittud import basis, engine
from attittud_lab.commands import _ADDRESS, known_names
from attittud_lab.config.load import ConfigError, loads
from attittud_lab.strategies import base as strategies


@pytest.mark.parametrize("kind", ["strategy", "basis", "engine"])
def test_a_name_registered_from_outside_of_the_package_is_accepted(kind, monkeypatch):
    field = "name" if kind == "strategy" else kind
    text = f"strategy: {{{field}: mine}}"
    with pytest.raises(ConfigError, match=f"configuration:1: strategy.{field}: unknown"):
        loads(text, names=known_names())
    tables = {"strategy": strategies._ENTRIES, "basis": basis._BASES, "engine": engine._ENGINES}
    monkeypatch.setitem(tables[kind], "mine", next(iter(tables[kind].values())))
    loads(text, names=known_names())


def test_addresses_of_ray_clusters_are_recognised():
    assert all(_ADDRESS.fullmatch(word) for word in ("10.0.0.1:6379", "ray://head:10001"))
    assert not any(_ADDRESS.fullmatch(word) for word in ("job.yaml", "C:/a.yaml"))
