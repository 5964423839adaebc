"""What is text stays text, and numbers have limits."""

import pytest

from attittud_lab.commands import known_names
from attittud_lab.config.load import ConfigError, loads

NAMES = known_names()


def test_texts_that_yaml_1_1_would_convert_stay_texts():
    config = loads(
        """
        training: {guided: {lr: 1e-4, clip: ~, steps: 1_000}}
        data: {primary: {classes: [no, yes, on, 1, true, 1e3, 010, "quoted", 2024-01-01]}}
        """
    )
    assert config.training.guided.lr == 1e-4 and config.training.guided.clip is None
    expected = ["no", "yes", "on", "1", "true", "1e3", "010", "quoted", "2024-01-01"]
    assert config.data.primary.classes == expected


LIMITS = {
    "training.guided.batch_size=1000000000": "training.guided.batch_size: .*65536",
    "training.guided.lr=0": "training.guided.lr: .*greater than 0",
    "strategy.eta={harmful: -1e38}": "strategy.eta.harmful: .*-1e38",
    f"seed={'9' * 5000}": "seed: ",
    'output="a\\0b"': "output: ",
    "data.primary.path=~no_such_user/x": "data.primary.path: '~no_such_user/x'",
    'data.primary.classes=["\\ud800"]': "data.primary.classes",
    f"strategy={'x' * 5000}": "strategy.name: .*'x{80}",
}


def test_values_beyond_any_use_are_refused():
    for text, culprit in LIMITS.items():
        with pytest.raises(ConfigError, match=culprit) as caught:
            loads("", [text], names=NAMES)
        assert len(str(caught.value)) < 1000  # thousands of characters are not echoed
