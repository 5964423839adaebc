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
    assert config.data.primary.classes == ["no", "yes", "on", "1", "true", "1e3", "010", "quoted", "2024-01-01"]


LIMITS = {
    "training.guided.batch_size=1000000000": "must be at most 65536, got 1000000000: the examples of a batch are in memory",
    "data.auxiliary.a.batch_size=1000000000": "must be at most 65536, got 1000000000: the examples of a batch are in memory",
    "compare.seeds=99999999999999999999": "must be at most 1000, got 99999999999999999999: every strategy is trained",
    "compare.draws=1000000": "must be at most 1000",
    "data.image_size=30000": "must be at most 4096, got 30000: the examples are in memory",
    "data.max_length=100000000": "must be at most 131072",
    "model.width=10000000": "must be at most 4096, got 10000000: the weights of a layer grow with its square",
    "training.guided.lr=3e38": r"must be at most 1e\+30, got 3e38: 32-bit weights overflow",
    "training.guided.lr=0": "must be above 0, got 0: a rate of 0 would train nothing",
    "training.finetune.lr=0.0": "must be above 0, got 0.0: a rate of 0 would train nothing",
    "training.guided.clip=0": "must be above 0, got 0: write null to switch clipping off",
    "training.guided.weight_decay=1e30": "must be at most 1000000",
    "training.guided.steps=99999999999999999999": "must be at most 1000000000",
    "strategy.rank=1000000000": "must be at most 4096, got 1000000000: each direction is a vector as long as the model",
    "strategy.auxiliary_weight=1e300": "must be at most 10000000000",
    "strategy.eta={harmful: -1e38}": "strategy.eta.harmful: must be at least -10000000000",
    f"seed={'9' * 5000}": "expected a whole number, got '9{80}... .5000 characters",
    f"training.guided.lr=1{'0' * 5000}": "expected a number, got",
    "seed=1__0": "expected a whole number, got '1__0'",
    'output="a\\0b"': "contains a NUL character",
    f"data.primary.path={'x' * 300}": "too long for a path",
    f"model.weights={'x/' * 3000}": "too long for a path",
    "data.primary.path=~no_such_user/x": "no user of this name has a home folder",
    "model=hf:~no_such_user/x": "no user of this name has a home folder",
    "training.guided.clip=none": "expected a number, got 'none', which is read as text; write null for nothing",
    'data.primary.classes=["\\ud800"]': "contains half of a character",
    f"{'a.' * 5000}b=1": "is not a setting; write KEY=VALUE",
    f"strategy={'x' * 5000}": r"unknown strategy 'x{80}",
    f"{'k' * 5000}=1": "unknown key",
    f"compare.weights={'[' * 5000}": "nested too deeply",
}


@pytest.mark.parametrize("text", LIMITS, ids=lambda text: text[:40])
def test_huge_numbers_are_refused_before_anything_is_allocated(text: str) -> None:
    with pytest.raises(ConfigError, match=LIMITS[text]) as caught:
        loads("", [text], names=NAMES)
    assert len(str(caught.value)) < 1000  # thousands of characters are not echoed
