"""What a Trainer cannot do with a guide is refused with the culprit and the cure."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra 'transformers'")


pytest.importorskip("accelerate", reason="needs the extra 'transformers'")


import transformers
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType

from attittud import Eta
from attittud.integrations.guard import GuardMixin
from attittud.integrations.transformers import FSDP2, AttittudTrainer, check_trainer
from tests.helpers.trainers import SUM, WARNINGS, arguments, make_trainer

pytestmark = WARNINGS


@pytest.fixture(autouse=True)
def _quiet() -> None:
    transformers.utils.logging.disable_progress_bar()


@pytest.mark.parametrize(
    ("where", "name", "value", "message"),
    [
        (
            "",
            "is_deepspeed_enabled",
            True,
            r"DeepSpeed is not supported.*hides \.grad.*accelerate launch.*\n.*fsdp_version: 2",
        ),
        ("", "is_fsdp_enabled", True, r"FSDP of version 1.*fsdp_version: 2"),
        (
            "args",
            "packing",
            True,
            r"packing=True does not work for the primary data.*packing=False.*auxiliary",
        ),
        ("", "padding_free", True, r"padding_free=True does not work for the primary data"),
        ("args", "_n_gpu", 2, r"nn\.DataParallel.*torchrun"),
        ("args", "activation_offloading", True, r"activation_offloading.*gradient_checkpointing"),
        ("args", "optim", "lomo", r"optim='lomo'.*adamw"),
    ],
)
def test_refusals_name_the_culprit_and_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, name: str, value: Any, message: str
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
    with pytest.raises(ValueError, match=f"(?s){message}"):
        check_trainer(trainer)


def test_accelerate_reads_the_config_in_the_refusals(tmp_path: Path) -> None:
    file = tmp_path / "fsdp2.yaml"
    file.write_text(FSDP2)
    config = load_config_from_file(str(file))
    assert (
        config.distributed_type == DistributedType.FSDP and config.fsdp_config["fsdp_version"] == 2
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"auxiliary_dataset": []},
            r"AttittudTrainer has no argument 'auxiliary_dataset' .did you mean 'auxiliary_datasets'",
        ),
        (
            {"auxiliary_datasets": [], "judge_data": []},
            r"no argument 'judge_data' .did you mean 'judge_dataset'",
        ),
        ({}, r"AttittudTrainer needs auxiliary_datasets="),
        ({"auxiliary_datasets": [], "guide": SUM | {"rnk": 5}}, r"'rnk' .did you mean 'rank'"),
        ({"auxiliary_datasets": [], "eval_data": []}, r"unexpected keyword argument 'eval_data'"),
    ],
    ids=str,
)
def test_misspelt_arguments_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        AttittudTrainer(**({"guide": SUM} | given))


def test_misspelt_arguments_of_a_guard_are_named() -> None:
    class Guarded(GuardMixin, transformers.Trainer):
        pass

    with pytest.raises(
        TypeError,
        match=r"Guarded has no argument 'protected_dataset' .did you mean 'protect_dataset'",
    ):
        Guarded(protected_dataset=[])


@pytest.mark.parametrize("where", ["web", "judge_dataset", "nowhere"])
def test_labels_without_an_output_of_the_model_are_named(
    tmp_path: Path, where: str, caplog: pytest.LogCaptureFixture
) -> None:
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
    if where == "nowhere":
        trainer.train()
        assert caplog.text.count("eta='auto' ended with weight 0 for every auxiliary part") == 1
        return
    named = {"web": "the auxiliary dataset 'web'", "judge_dataset": "judge_dataset="}[where]
    with pytest.raises(
        ValueError,
        match=f"{named} has the label 5, but the model has 3 outputs, for labels from 0 to 2",
    ):
        trainer.train()


class OwnForSequenceClassification(transformers.BertForSequenceClassification):
    """A user's class, which knows what to do with labels that its config does not count."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        return super().forward(input_ids, labels=None if labels is None else labels % 3)


def test_labels_of_a_users_own_model_are_its_own_matter(tmp_path: Path) -> None:
    sizes = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    }
    rows = [{"input_ids": [2, 3], "labels": label} for label in (0, 1, 2, 5)]
    trainer = AttittudTrainer(
        model=OwnForSequenceClassification(
            transformers.BertConfig(vocab_size=9, num_labels=3, **sizes)
        ),
        args=arguments(tmp_path, max_steps=1),
        train_dataset=rows[:3],
        auxiliary_datasets={"web": rows},
        guide={"eta": Eta(1, 1, 0), "rank": 2},
    )
    assert trainer.train().global_step == 1
