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

from attittud.integrations.transformers import FSDP2, check_trainer
from tests.helpers.trainers import WARNINGS, make_trainer

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
        ("args", "packing", True, r"packing=True does not work for the primary data.*packing=False.*auxiliary"),
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
        monkeypatch.setattr(trainer.accelerator.state, "fsdp_plugin", SimpleNamespace(fsdp_version=1), raising=False)
    setattr(trainer.args if where else trainer, name, value)
    with pytest.raises(ValueError, match=f"(?s){message}"):
        check_trainer(trainer)


def test_accelerate_reads_the_config_in_the_refusals(tmp_path: Path) -> None:
    file = tmp_path / "fsdp2.yaml"
    file.write_text(FSDP2)
    config = load_config_from_file(str(file))
    assert config.distributed_type == DistributedType.FSDP and config.fsdp_config["fsdp_version"] == 2
