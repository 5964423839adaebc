"""What a Trainer cannot do with a guide is refused with the culprit and the cure."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs the extra 'transformers'")


pytest.importorskip("accelerate", reason="needs the extra 'transformers'")


import transformers

from attittud.integrations.transformers import AttittudTrainer, check_trainer
from tests.helpers.trainers import SUM, WARNINGS, make_trainer

pytestmark = WARNINGS


@pytest.fixture(autouse=True)
def _quiet() -> None:
    transformers.utils.logging.disable_progress_bar()


@pytest.mark.parametrize(
    ("name", "value", "culprit"),
    [
        ("packing", True, "packing=True"),
        ("padding_free", True, "padding_free=True"),
        ("_n_gpu", 2, "DataParallel"),
        ("activation_offloading", True, "activation_offloading"),
    ],
)
def test_refusals_name_the_culprit(tmp_path: Path, name: str, value: Any, culprit: str) -> None:
    trainer = make_trainer(str(tmp_path))
    check_trainer(trainer)
    assert trainer.args.n_gpu <= 1  # reads the setting that is overwritten next
    setattr(trainer.args, name, value)
    with pytest.raises(ValueError, match=culprit):
        check_trainer(trainer)


@pytest.mark.parametrize(
    ("given", "culprit"),
    [
        ({"auxiliary_dataset": []}, "'auxiliary_datasets'"),
        ({"auxiliary_datasets": [], "eval_data": []}, "'eval_data'"),
    ],
    ids=str,
)
def test_misspelt_arguments_are_named(given: dict[str, Any], culprit: str) -> None:
    with pytest.raises(TypeError, match=culprit):
        AttittudTrainer(**({"guide": SUM} | given))
