"""A loop of one's own under Accelerate: a Guide needs no adapter there.

    python examples/accelerate_loop.py runs/accelerate            # train; or `accelerate launch examples/accelerate_loop.py ...`
    python examples/accelerate_loop.py runs/accelerate --resume   # go on after a kill, with the same losses

The task, with 32 examples: do the first two of six numbers have the same sign? The auxiliary data
are 256 examples of the same question about the second and third number.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from attittud import Guide, checkpoint, preset
from attittud.integrations import Latest

MICRO_BATCHES = 2  # of each task in one step


def signs(count: int, first: int, seed: int) -> TensorDataset:
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, first] * x[:, first + 1] > 0).long())


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.Tanh())
        self.heads = nn.ModuleDict({"primary": nn.Linear(32, 2), "auxiliary": nn.Linear(32, 2)})

    def forward(self, x: Tensor, head: str) -> Tensor:
        return self.heads[head](self.body(x))


def endless(loader: Any, drawn: int) -> Iterator[list[Tensor]]:
    """Batches without end, from the one after `drawn` on."""
    epoch, skip = divmod(drawn, len(loader))
    while True:
        loader.set_epoch(epoch)
        if skip:
            yield from skip_first_batches(loader, skip)
        else:
            yield from loader
        epoch += 1
        skip = 0


def train(
    folder: Path,
    *,
    steps: int = 12,
    batch_size: int = 8,
    resume: bool = False,
    strategy: Mapping[str, Any] | None = None,
    after_step: Callable[[int], None] = lambda step: None,
    **settings: Any,
) -> list[float]:
    """Returns the summed loss of every step taken."""
    accelerator = Accelerator(
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0),
        **settings,
    )
    set_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = {"primary": signs(32, first=0, seed=1), "auxiliary": signs(256, first=1, seed=2)}
    loaders = {}
    for name, part in data.items():
        loader = DataLoader(part, batch_size=batch_size, shuffle=True)
        loaders[name] = accelerator.prepare(loader)
    model, optimizer = accelerator.prepare(model, optimizer)

    # After prepare: it must see the wrapped model.
    guide = Guide(model, rank=4, refresh_every=3, **(strategy or preset("flip")))
    latest = Latest()
    # save_state and load_state then hold the guide too, in files that cannot run code.
    accelerator.register_save_state_pre_hook(
        lambda _, __, path: checkpoint.save(guide, f"{path}/guide")
    )
    accelerator.register_load_state_pre_hook(
        lambda _, path: checkpoint.load(guide, f"{path}/guide")
    )
    done = 0
    if resume:
        done = max(int(path.name.removeprefix("step_")) for path in folder.glob("step_*"))
        accelerator.load_state(str(folder / f"step_{done}"))
    batches = {name: endless(loader, MICRO_BATCHES * done) for name, loader in loaders.items()}

    def scale(loss: Tensor) -> Tensor:
        if accelerator.scaler is None:  # it has one in float16 only
            return loss
        return accelerator.scaler.scale(loss)

    def losses(name: str) -> Tensor:
        x, y = next(batches[name])
        return cross_entropy(model(x, head=name), y, reduction="none") / MICRO_BATCHES

    curve = []
    for step in range(done + 1, steps + 1):
        total = 0.0
        for _ in range(MICRO_BATCHES):
            loss = losses("primary")
            guide.primary(scale(loss))  # in the place of accelerator.backward
            total += float(loss.detach().mean())
        for _ in range(MICRO_BATCHES):
            loss = losses("auxiliary").mean()
            guide.auxiliary(scale(loss))
            total += float(loss.detach())
        latest.take(guide.combine())
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        curve.append(total)
        numbers = latest.numbers()  # on several workers the shares of the last refresh
        # To the trackers, where there are any.
        accelerator.log({"loss": total, **numbers}, step=step)
        line = f"step {step}: loss {total:.4f}"
        for part in ("neutral", "helpful", "harmful"):
            line += f", {part} {numbers.get(f'attittud/share_{part}', 0):.2f}"
        accelerator.print(line)
        if step % 5 == 0:
            accelerator.save_state(str(folder / f"step_{step}"))
        after_step(step)
    return curve


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="where checkpoints go")
    parser.add_argument(
        "--resume", action="store_true", help="go on from the last checkpoint in the folder"
    )
    options = parser.parse_args(arguments)
    train(options.folder, resume=options.resume)


if __name__ == "__main__":
    main()
