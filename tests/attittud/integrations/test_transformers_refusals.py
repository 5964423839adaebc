"""What a Trainer cannot do with a guide is refused with the culprit and the cure."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs the extra 'transformers'")


pytest.importorskip("accelerate", reason="needs the extra 'transformers'")


import transformers
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType

from attittud.integrations.transformers import FSDP2, AttittudTrainer, check_trainer
from tests.helpers.trainers import SUM, WARNINGS, arguments, make_trainer

pytestmark = WARNINGS


@pytest.fixture(autouse=True)
def _quiet() -> None:
    transformers.utils.logging.disable_progress_bar()


@pytest.mark.parametrize(
    ("where", "name", "value", "culprit"),
    [
        ("", "is_deepspeed_enabled", True, "DeepSpeed"),
        ("", "is_fsdp_enabled", True, "FSDP"),
        ("args", "packing", True, "packing=True"),
        ("", "padding_free", True, "padding_free=True"),
        ("args", "_n_gpu", 2, "DataParallel"),
        ("args", "activation_offloading", True, "activation_offloading"),
        ("args", "optim", "lomo", "lomo"),
    ],
)
def test_refusals_name_the_culprit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, name: str, value: Any, culprit: str
) -> None:
    trainer = make_trainer(str(tmp_path))
    check_trainer(trainer)
    if name == "_n_gpu":
        assert trainer.args.n_gpu <= 1
    if name == "is_fsdp_enabled":
        monkeypatch.setattr(
            trainer.accelerator.state, "fsdp_plugin", SimpleNamespace(fsdp_version=1), raising=False
        )
    setattr(trainer.args if where else trainer, name, value)
    with pytest.raises(ValueError, match=culprit):
        check_trainer(trainer)


def test_accelerate_reads_the_config_in_the_refusals(tmp_path: Path) -> None:
    file = tmp_path / "fsdp2.yaml"
    file.write_text(FSDP2)
    config = load_config_from_file(str(file))
    assert (
        config.distributed_type == DistributedType.FSDP and config.fsdp_config["fsdp_version"] == 2
    )


@pytest.mark.parametrize(
    ("given", "culprit"),
    [
        ({"auxiliary_dataset": []}, "'auxiliary_dataset'"),
        ({}, "auxiliary_datasets"),
        ({"auxiliary_datasets": [], "guide": SUM | {"rnk": 5}}, "'rnk'"),
        ({"auxiliary_datasets": [], "eval_data": []}, "'eval_data'"),
    ],
    ids=str,
)
def test_misspelt_arguments_are_named(given: dict[str, Any], culprit: str) -> None:
    with pytest.raises(TypeError, match=culprit):
        AttittudTrainer(**({"guide": SUM} | given))


@pytest.mark.parametrize("where", ["web", "judge_dataset"])
def test_labels_without_an_output_of_the_model_are_named(tmp_path: Path, where: str) -> None:
    sizes = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    }
    config = transformers.BertConfig(vocab_size=9, num_labels=3, **sizes)

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
