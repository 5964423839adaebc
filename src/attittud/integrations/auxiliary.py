"""The auxiliary datasets of a Trainer: prepared like its own dataset, repeated endlessly, and resumed where a run stopped."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Sampler

from attittud.guide import SINGLE

Window = dict[str, tuple[list[Any], Any]]
"""For each dataset, by name: the batches of one step, and the number of items in them as the Trainer counts items."""

JUDGES = "judge_dataset"
"""The name under which judges are drawn and saved."""


class AuxiliaryData:
    """Makes a data loader for every auxiliary dataset and draws batches from it.

    It takes the arguments of `AttittudMixin`; `known` are the names that the mixin's other arguments use.
    """

    def __init__(
        self, trainer: Any, data: Any, collators: Mapping[str, Any], size: int | None, judges: Any, known: Iterable[str]
    ) -> None:
        named = dict(data) if isinstance(data, Mapping) else {SINGLE: data}
        for name in {*collators, *known}:
            if name not in named:
                raise ValueError(f"there is no auxiliary dataset {name!r}, only {', '.join(map(repr, named))}")
        self.trainer, self.collators, self.batch_size = trainer, dict(collators), size
        if judges is not None:
            named[JUDGES] = judges
        self.datasets = {name: self._prepared(name, dataset) for name, dataset in named.items()}
        self.streams: dict[str, Stream] = {}

    @property
    def drawn(self) -> dict[str, int]:
        """How many batches were drawn from each dataset. A checkpoint needs nothing else."""
        return {name: stream.drawn for name, stream in self.streams.items()}

    def begin(self, drawn: Mapping[str, int]) -> None:
        """Make the data loaders. Each continues after the batches that were drawn before."""
        self.streams = {name: self._stream(name, drawn.get(name, 0)) for name in self.datasets}

    def draw(self, count: int, device: Any) -> Window:
        drawn = {n: [s.draw() for _ in range(count)] for n, s in self.streams.items() if n != JUDGES}
        return {n: (batches, self.trainer._get_num_items_in_batch(batches, device)) for n, batches in drawn.items()}

    def _prepared(self, name: str, data: Any) -> Any:
        """Prepare an auxiliary dataset as TRL prepares its own dataset, because TRL tokenizes inside its trainers."""
        trainer = self.trainer
        prepare = getattr(trainer, "_prepare_dataset", None)
        if prepare is None or name in self.collators:
            return data
        has_format = hasattr(trainer, "_formatting_func")
        more = {"packing": False, "formatting_func": trainer._formatting_func} if has_format else {}
        return prepare(data, processing_class=trainer.processing_class, args=trainer.args, dataset_name=name, **more)

    def _stream(self, name: str, drawn: int) -> Stream:
        from accelerate import skip_first_batches

        data, args = self.datasets[name], self.trainer.args
        seed = args.seed if args.data_seed is None else args.data_seed
        shuffled = Shuffled(data, seed, name) if hasattr(data, "__len__") else None
        with self.own_collator(name):
            loader = self.trainer._get_dataloader(
                data,
                description=f"auxiliary {name!r}",
                batch_size=self.batch_size or self.trainer._train_batch_size,
                sampler_fn=lambda _: shuffled,
                is_training=True,
            )
        return Stream(loader, name, shuffled, skip_first_batches, drawn)

    @contextmanager
    def own_collator(self, name: str) -> Iterator[None]:
        """Use the dataset's own collator, if it has one. Such a dataset keeps all its columns, which the Trainer might drop."""
        trainer, args = self.trainer, self.trainer.args
        kept = trainer.data_collator, args.remove_unused_columns
        if name in self.collators:
            trainer.data_collator, args.remove_unused_columns = self.collators[name], False
        try:
            yield
        finally:
            trainer.data_collator, args.remove_unused_columns = kept


class Shuffled(Sampler[int]):
    """A permutation that depends only on (seed, name, epoch), so it is the same on every worker and after a resume."""

    def __init__(self, data: Sized, seed: int, name: str) -> None:
        self.size = len(data)
        # Without the name, two datasets of the same length would be drawn in the same order.
        self.seed = seed + zlib.crc32(name.encode())
        self.epoch = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        yield from torch.randperm(self.size, generator=generator).tolist()


@dataclass
class Stream:
    """Draws from a data loader over and over."""

    loader: Any  # prepared for this worker
    name: str
    shuffled: Shuffled | None  # the sampler of the loader, if it has one
    skip: Callable[[Any, int], Any]  # returns a loader that leaves out the first batches
    drawn: int = 0  # how many batches were drawn before; nothing else has to be saved

    def __post_init__(self) -> None:
        self._batches = self._endless()

    def draw(self) -> Any:
        """Draw the next batch. The global random state does not change, so dropout does not depend on resuming."""
        with torch.random.fork_rng(devices=[]):
            return next(self._batches)

    def _endless(self) -> Iterator[Any]:
        sized = self.shuffled is not None
        epoch, start = divmod(self.drawn, max(1, len(self.loader))) if sized else (0, self.drawn)
        while True:
            if self.shuffled is not None:
                self.shuffled.epoch = epoch
            found = start if sized else 0
            for batch in self.skip(self.loader, start) if sized and start else self.loader:
                found += 1
                if found > start:
                    self.drawn += 1
                    yield batch
            if found == 0:
                raise ValueError(
                    f"the auxiliary dataset {self.name!r} yields no batch; it is empty, or drop_last drops its only batch"
                )
            # If the length is unknown, a resumed run must go through the data to find where it stopped.
            epoch, start = epoch + 1, max(0, start - found)
