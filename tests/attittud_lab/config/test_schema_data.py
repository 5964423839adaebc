"""The data section: its shorthands, and how many sources are allowed."""

from attittud_lab.config.load import loads
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
