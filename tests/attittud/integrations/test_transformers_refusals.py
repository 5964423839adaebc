"""What a Trainer cannot do with a guide is refused with the culprit and the cure."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs the extra 'transformers'")


pytest.importorskip("accelerate", reason="needs the extra 'transformers'")


import transformers

from attittud.integrations.transformers import AttittudTrainer, check_trainer
from tests.helpers.trainers import SUM, WARNINGS, arguments, make_trainer

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
        ("optim", "lomo", "lomo"),
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


@pytest.mark.parametrize("where", ["web", "judge_dataset"])
def test_labels_without_an_output_of_the_model_are_named(tmp_path: Path, where: str) -> None:
    config = transformers.BertConfig(
        vocab_size=9,
        num_labels=3,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
    )

    def rows(*labels: int) -> list[dict[str, Any]]:
        return [{"input_ids": [2, 3], "labels": label} for label in labels]

    data = {"web": rows(0, 1, 2), "judge_dataset": rows(0, 1)}
    data[where] = rows(1, 5)
    trainer = AttittudTrainer(
        model=transformers.BertForSequenceClassification(config),
        args=arguments(tmp_path, max_steps=1),
        train_dataset=rows(0, 1, 2, 1),
        auxiliary_datasets={"web": data["web"]},
        judge_dataset=data["judge_dataset"],
        guide={"eta": "auto", "rank": 2},
    )
    with pytest.raises(ValueError, match=where):
        trainer.train()
