"""The data section: its shorthands, and how many sources are allowed."""

import time

import pytest

from attittud_lab.config.load import ConfigError, loads
from attittud_lab.config.schema import Config


def test_shorthands_and_defaults_of_sections() -> None:
    config = loads("strategy: flip\nmodel: mlp\ndata: {primary: digits, auxiliary: {a: digits}}")
    assert (config.strategy.name, config.model.name, config.data.auxiliary["a"].path) == (
        "flip",
        "mlp",
        "digits",
    )
    # A section that is mentioned keeps its own defaults.
    assert (
        loads("training: {finetune: {steps: 7}}").training.finetune.lr
        == Config().training.finetune.lr
        != 1e-3
    )
    assert loads("") == Config()


def test_absurd_numbers_of_sources_strategies_and_settings_are_refused() -> None:
    began = time.perf_counter()
    for count in (101, 4_000, 20_000):
        sources = "".join(f"    a{n}: digits\n" for n in range(count))
        with pytest.raises(
            ConfigError,
            match=r"configuration:2: data.auxiliary: .*at most 100 are allowed|too many",
        ):
            loads(f"data:\n  auxiliary:\n{sources}")
    with pytest.raises(ConfigError, match=r"compare.strategies: has 101 entries, but at most 100"):
        loads(f"compare: {{strategies: [{', '.join(['flip'] * 101)}]}}")
    with pytest.raises(ConfigError, match="2000 settings are given, but at most 1000"):
        loads("", ["seed=1"] * 2000)
    assert time.perf_counter() - began < 20
