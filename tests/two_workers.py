"""Run by test_workers_in_trainers.py in each of two processes: the examples under Hugging Face, Lightning and Accelerate."""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))


def hugging_face(folder: str) -> list[float]:
    from transformers_trainer import make_trainer

    settings = {"max_steps": 4, "gradient_accumulation_steps": 2, "save_strategy": "no"}
    if dist.is_initialized():
        settings["ddp_backend"] = "gloo"
    batch = 8 // dist.get_world_size() if dist.is_initialized() else 8
    trainer = make_trainer(folder, use_cpu=True, per_device_train_batch_size=batch, disable_tqdm=True, **settings)
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # workers draw other masks than one process does
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert all("attittud/share_harmful" in entry for entry in logs), (
        "steps without norms show those of the last refresh"
    )
    return [entry["loss"] for entry in logs]


def lightning(folder: str) -> list[float]:
    from lightning.pytorch import seed_everything
    from lightning_module import Closer, make_trainer, points
    from torch.utils.data import DataLoader, DistributedSampler

    size = dist.get_world_size() if dist.is_initialized() else 1

    class Ordered(Closer):
        """The sampler deals examples out to the workers in turns, so the basis must not depend on their order: exact."""

        def train_dataloader(self) -> dict[str, DataLoader]:
            data = {"primary": points(32, wrong=0, seed=1), "auxiliary": points(32, wrong=0.33, seed=2)}
            number = dist.get_rank() if size > 1 else 0
            samplers = {name: DistributedSampler(part, size, number, shuffle=False) for name, part in data.items()}
            return {name: DataLoader(data[name], 8 // size, sampler=samplers[name]) for name in data}

    seed_everything(0, verbose=False)
    module = Ordered(basis="exact")
    strategy = {"strategy": "ddp", "devices": size} if size > 1 else {}
    quiet = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu"}
    make_trainer(folder, max_epochs=2, **quiet, **strategy).fit(module)
    return [float(parameter.detach().double().abs().sum()) for parameter in module.parameters()]


def accelerate(folder: str) -> list[float]:
    from accelerate_loop import train

    size = dist.get_world_size() if dist.is_initialized() else 1
    return train(Path(folder), steps=4, batch_size=8 // size, cpu=True)


RUNS = {"hugging_face": hugging_face, "lightning": lightning, "accelerate": accelerate}

if __name__ == "__main__":
    folder = sys.argv[1]
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    found = {name: run(folder) for name, run in RUNS.items()}
    Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
