"""Configurations of language models: what goes together, and what is refused with its line."""

import pytest

from attittud_lab.config.load import ConfigError, dump, loads

GOOD = "task: causal-lm\nmodel: hf:FOLDER\nlanguage: {learn: new.jsonl, protect: {path: old.jsonl, examples: 32}, guard: a_gem}\n"


def test_a_configuration_is_read_back_as_the_same() -> None:
    config = loads(GOOD)
    assert config.language.learn is not None and config.language.learn.path == "new.jsonl"
    assert config.language.protect is not None and config.language.protect.examples == 32
    assert loads(dump(config)) == config


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("language: {learn: a.jsonl}", "configuration:1: language: is only for task: causal-lm"),
        (f"{GOOD}strategy: flip", "configuration:4: strategy: has no effect with task: causal-lm"),
        (f"{GOOD}training: {{guided: {{steps: 3}}}}", "configuration:4: training: has no effect"),
        ("task: causal-lm\nmodel: small-cnn", "configuration:2: model: .* needs model: hf:FOLDER"),
        ("task: causal-lm\nmodel: {name: hf:FOLDER, width: 3}", "configuration:2: model: .* needs model: hf:FOLDER"),
        ("task: causal-lm\nmodel: hf:FOLDER", "language.learn: is missing; name the data"),
        ("task: causal-lm\nmodel: hf:FOLDER\nlanguage: {learn: {split: train}}", "language.learn.path: is missing"),
        ("task: causal-lm\nmodel: hf:FOLDER\nlanguage: {learn: a.jsonl}", "language.guard: kl needs examples"),
    ],
)
def test_wrong_settings_are_refused_with_their_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        loads(text)


def test_settings_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"language\.refresh_every: has no effect with guard: kl, which projects nothing"
    ):
        loads(GOOD, ["language.guard=kl", "language.refresh_every=3"])
    with pytest.raises(ConfigError, match=r"language\.protect_prompts: cannot be combined with language\.protect"):
        loads(GOOD, ["language.protect_prompts=p.jsonl"])
    with pytest.raises(ConfigError, match=r"language\.accumulate: 3 does not divide batch_size 8"):
        loads(GOOD, ["language.accumulate=3"])
