"""Run by test_integrations_workers_nightly.py: the examples in two processes."""

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))


def workers() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


@contextmanager
def fsdp2_on_cpu() -> Iterator[None]:
    """Make Accelerate take CPU workers for GPUs, so that it runs all its code for FSDP2."""
    from accelerate import PartialState
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType

    def set_device(state: PartialState) -> None:
        state.device = torch.device("cpu")

    several = {
        "_prepare_backend": lambda *_: ("gloo", DistributedType.MULTI_GPU),
        "set_device": set_device,
    }
    # (It also writes into the environment that it is to use FSDP.)
    AcceleratorState._reset_state(reset_partial_state=True)
    with mock.patch.multiple(PartialState, **several), mock.patch.dict(os.environ):
        yield
    AcceleratorState._reset_state(reset_partial_state=True)


def hugging_face_trainer(folder: str, **settings: Any) -> Any:
    from transformers_trainer import make_trainer

    defaults = {
        "max_steps": 4,
        "gradient_accumulation_steps": 2,
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    backend = {"ddp_backend": "gloo"} if workers() > 1 else {}
    batch = 8 // workers()
    trainer = make_trainer(
        folder, use_cpu=True, per_device_train_batch_size=batch, **(defaults | backend | settings)
    )
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # workers draw other masks than one process does
    return trainer


def logged(trainer: Any, *, since_refresh: bool = True) -> list[float]:
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    for entry in logs:
        # Replicas know norms only in steps with a refresh, and show the norms of the last refresh.
        assert "attittud/share_harmful" in entry or not since_refresh
        found = abs(entry["loss"] - entry["loss_primary"] - entry["loss_updown"])
        assert found < 1e-4 * entry["loss"]
    return [entry["loss"] for entry in logs]


def resumed(folder: str, **settings: Any) -> tuple[Any, list[float]]:
    """Saved between refreshes and resumed: the same losses as undisturbed."""
    settings |= {"save_strategy": "steps", "save_steps": 2}
    whole, again = (hugging_face_trainer(folder, **settings) for _ in range(2))
    whole.train()
    again.train(resume_from_checkpoint=f"{folder}/checkpoint-2")
    assert logged(again, since_refresh=False) == logged(whole)
    return whole, logged(whole)


def hugging_face(folder: str) -> list[float]:
    return resumed(f"{folder}/ddp")[1]


def hugging_face_fsdp2(folder: str) -> list[float]:
    if workers() == 1:
        return hugging_face(folder)
    config = {
        "version": 2,
        "transformer_layer_cls_to_wrap": ["GPT2Block"],
        "state_dict_type": "SHARDED_STATE_DICT",
        "reshard_after_forward": True,
    }
    with fsdp2_on_cpu():
        trainer, losses = resumed(f"{folder}/fsdp2", fsdp=True, fsdp_config=config)
    assert trainer.guide.sharded
    return losses


def guarded(folder: str, *, lora: bool, **settings: Any) -> list[float]:
    """SFT that protects: losses, what was forgotten, and the averages with the start weights."""
    from peft import LoraConfig
    from trl_trainers import DEFAULTS, SFTConfig, SFTTrainer, make_model, make_tokenizer, text

    from attittud import averages, weights_of
    from attittud.integrations.guard import GuardMixin

    class Guarded(GuardMixin, SFTTrainer):
        pass

    defaults = {
        "max_steps": 4,
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "learning_rate": 0.05,
    }
    defaults |= {
        "gradient_accumulation_steps": 2,
        "gradient_checkpointing": True,
        "eval_strategy": "steps",
        "eval_steps": 2,
    }
    defaults |= {"gradient_checkpointing_kwargs": {"use_reentrant": False}}
    backend = {"ddp_backend": "gloo"} if workers() > 1 else {}
    batches = {
        "per_device_train_batch_size": 8 // workers(),
        "per_device_eval_batch_size": 8 // workers(),
    }
    found = []
    for guard in ("a_gem", "kl"):
        trainer = Guarded(
            model=make_model(),
            args=SFTConfig(folder, **(DEFAULTS | defaults | backend | batches | settings)),
            train_dataset=text(64, [-1], seed=1),
            eval_dataset=text(13, [-1], seed=7),
            processing_class=make_tokenizer(),
            peft_config=LoraConfig(r=2, target_modules=["q_proj", "v_proj"]) if lora else None,
            # Numbers that workers do not divide: no example may count twice.
            protect_dataset=text(11, [1], seed=2),
            protect_eval_dataset=text(11, [1], seed=3),
            guard=guard,
        )
        start = weights_of(trainer.model)
        trainer.train()
        logs = trainer.state.log_history
        found += [entry["loss"] for entry in logs if "loss" in entry]
        # Offset, so that a relative tolerance fits: forgetting at the start weights is zero.
        found += [1 + entry["eval_forgetting"] for entry in logs if "eval_forgetting" in entry]
        model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
        found += [
            1 + lost for lost in averages(model, start, trainer.forgetting, (0, 0.5)).values()
        ]
    return found


def guard(folder: str) -> list[float]:
    return guarded(f"{folder}/guard", lora=False)


def guard_lora_fsdp2(folder: str) -> list[float]:
    if workers() == 1:
        return guarded(f"{folder}/guard_lora", lora=True)
    config = {"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}
    with fsdp2_on_cpu():
        return guarded(f"{folder}/guard_lora_fsdp2", lora=True, fsdp=True, fsdp_config=config)


def lightning_module(**guide: Any) -> Any:
    from lightning.pytorch import seed_everything
    from lightning_module import Closer, points
    from torch.utils.data import DataLoader, DistributedSampler

    class Ordered(Closer):
        """The order of examples differs by worker, so the basis must not depend on it: exact."""

        def train_dataloader(self) -> dict[str, DataLoader]:
            data = {
                "primary": points(32, wrong=0, seed=1),
                "auxiliary": points(32, wrong=0.33, seed=2),
            }
            number = dist.get_rank() if workers() > 1 else 0
            samplers = {
                name: DistributedSampler(part, workers(), number, shuffle=False)
                for name, part in data.items()
            }
            return {
                name: DataLoader(data[name], 8 // workers(), sampler=samplers[name])
                for name in data
            }

    class Sharded(Ordered):
        def configure_model(self) -> None:
            from torch.distributed.fsdp import FSDPModule, fully_shard

            for part in (self.body, *self.heads.values()):
                if not isinstance(part, FSDPModule):
                    fully_shard(part, mesh=self.device_mesh["data_parallel"])

    seed_everything(0, verbose=False)
    return (Sharded if guide.pop("sharded", False) else Ordered)(basis="exact", **guide)


def fit(
    module: Any, folder: str, *, epochs: int = 2, resume: bool = False, **settings: Any
) -> list[float]:
    from lightning_module import make_trainer

    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "accelerator": "cpu",
        "devices": workers(),
    }
    trainer = make_trainer(folder, max_epochs=epochs, **quiet, **settings)
    trainer.fit(module, ckpt_path=f"{folder}/last.ckpt" if resume else None)
    return [
        float((p.full_tensor() if hasattr(p, "full_tensor") else p).detach().double().abs().sum())
        for p in module.parameters()
    ]


def lightning(folder: str) -> list[float]:
    return fit(lightning_module(), folder, **({"strategy": "ddp"} if workers() > 1 else {}))


def lightning_fsdp2(folder: str) -> list[float]:
    """Resumed where a refresh is due: the basis is not in the checkpoint."""
    four = {"refresh_every": 4}  # steps, as many as in an epoch
    if workers() == 1:
        return fit(lightning_module(**four), folder)
    from lightning.pytorch.strategies import ModelParallelStrategy

    def run(**settings: Any) -> list[float]:
        module = lightning_module(sharded=True, **four)
        strategy = ModelParallelStrategy(data_parallel_size=workers(), tensor_parallel_size=1)
        found = fit(module, f"{folder}/fsdp2", strategy=strategy, **settings)
        assert module.guide.sharded
        return found

    whole = run()
    run(epochs=1)
    assert run(resume=True) == whole
    return whole


def accelerate(folder: str, **settings: Any) -> list[float]:
    from accelerate_loop import train

    return train(Path(folder), steps=4, batch_size=8 // workers(), cpu=True, **settings)


def accelerate_fsdp2(folder: str) -> list[float]:
    if workers() == 1:
        return accelerate(folder)
    from accelerate import FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    with fsdp2_on_cpu():
        return accelerate(folder, fsdp_plugin=plugin)


TRL = (guard, guard_lora_fsdp2)
RUNS = {
    run.__name__: run
    for run in (
        hugging_face,
        hugging_face_fsdp2,
        *(TRL if find_spec("trl") and find_spec("peft") else ()),
        lightning,
        lightning_fsdp2,
        accelerate_fsdp2,
    )
}


def work(folder: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    found = {name: run(folder) for name, run in RUNS.items()}
    Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def fork(number: str, folder: str) -> int:
    """Start a worker, and return its process."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.environ |= {"RANK": number, "LOCAL_RANK": number}
        work(folder)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    for name in (
        "accelerate_loop",
        "lightning_module",
        "transformers_trainer",
        *(["trl_trainers"] if "guard" in RUNS else []),
    ):
        import_module(name)  # once for both: that takes longer than their work
    children = [fork(number, sys.argv[1]) for number in "01"]
    statuses = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(any(statuses))
