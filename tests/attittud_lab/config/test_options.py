"""What is text stays text, and numbers have limits."""

import pytest

from attittud_lab.commands import known_names
from attittud_lab.config.load import ConfigError, loads

NAMES = known_names()


def test_texts_that_yaml_1_1_would_convert_stay_texts() -> None:
    config = loads(
        """
        training: {guided: {lr: 1e-4, clip: ~, steps: 1_000}}
        data: {primary: {classes: [no, yes, on, 1, true, 1e3, 010, "quoted", 2024-01-01]}}
        """
    )
    assert config.training.guided.lr == 1e-4 and config.training.guided.clip is None
    assert config.data.primary.classes == [
        "no",
        "yes",
        "on",
        "1",
        "true",
        "1e3",
        "010",
        "quoted",
        "2024-01-01",
    ]


LIMITS = {
    "training.guided.batch_size=1000000000": "training.guided.batch_size: .*65536",
    "compare.seeds=99999999999999999999": "compare.seeds: .*1000",
    "data.image_size=30000": "data.image_size: .*4096",
    "training.guided.lr=3e38": "training.guided.lr: .*1e\\+30",
    "training.guided.lr=0": "training.guided.lr: .*above 0",
    "training.guided.clip=0": "training.guided.clip: .*above 0",
    "strategy.rank=1000000000": "strategy.rank: .*4096",
    "strategy.eta={harmful: -1e38}": "strategy.eta.harmful: .*-1e.10",
    f"seed={'9' * 5000}": "seed: ",
    'output="a\\0b"': "output: .*NUL",
    f"data.primary.path={'x' * 300}": "data.primary.path: .*255",
    "data.primary.path=~no_such_user/x": "data.primary.path: '~no_such_user/x'",
    'data.primary.classes=["\\ud800"]': "half of a character",
    f"strategy={'x' * 5000}": "strategy.name: .*'x{80}",
    f"compare.weights={'[' * 5000}": "nested",
}


def test_huge_numbers_are_refused_before_anything_is_allocated() -> None:
    for text, culprit in LIMITS.items():
        with pytest.raises(ConfigError, match=culprit) as caught:
            loads("", [text], names=NAMES)
        assert len(str(caught.value)) < 1000  # thousands of characters are not echoed
